"""Graph: what it takes, what it refuses, and names."""

from __future__ import annotations

import numpy as np
import pytest

import camshaft as cs
from camshaft.errors import ShapeError
from camshaft.graph import functions
from camshaft.graph.graph import Graph, root


def test_nothing_is_computed_and_nodes_keep_their_order_and_scope() -> None:
    graph = Graph()
    x = graph.input("x", (2, 8), "f32")
    with graph.scope("block"), graph.scope("inner"):
        y = cs.add(x, x)
    z = cs.multiply(y, x, name="product")
    assert [(node.name, node.op.name) for node in graph.nodes] == [("block.inner.add", "add"), ("product", "multiply")]
    assert (z.shape, z.name) == ((2, 8), "product")


def test_names_of_inputs_states_and_outputs_are_given_once() -> None:
    graph = Graph()
    x = graph.input("x", (2,), "f32")
    graph.output("y", x)
    graph.state("s", x.spec)
    for again in (
        lambda: graph.input("x", (3,), "i32"),
        lambda: graph.output("y", x),
        lambda: graph.state("s", x.spec),
    ):
        with pytest.raises(ShapeError, match="is taken"):
            again()


def test_tensors_of_another_graph_and_what_is_no_array_are_refused_by_the_op() -> None:
    x, other = Graph().input("x", (2, 8), "f32"), Graph().input("x", (2, 8), "f32")
    for wrong in (other, None, object()):
        with pytest.raises(ShapeError, match=r"^add: got "):
            cs.add(x, wrong)
    with pytest.raises(ShapeError, match="no tensor of a graph"):
        functions.add(np.ones((2, 8), np.float32), np.ones((2, 8), np.float32))


def test_shapes_are_refused_when_the_graph_is_made() -> None:
    graph = Graph()
    x, y = graph.input("x", (2, 8), "f32"), graph.input("y", (2, 9), "f32")
    with pytest.raises(ShapeError, match=r"^multiply: got .*9"):
        cs.multiply(x, y)
    with pytest.raises(ShapeError, match="no dtype"):
        graph.input("z", (2,), "float23")


@pytest.mark.parametrize("shape", [(-1, 8), (2.0, 8), "28", 8, None])
def test_a_shape_is_a_list_of_whole_numbers(shape) -> None:
    with pytest.raises(ShapeError, match=r"input 'x': got the shape .*; wanted a list of integers, 0 or more"):
        Graph().input("x", shape, "f32")
    assert Graph().input("x", [np.int64(2), 8], "f32").shape == (2, 8)


def test_an_output_is_one_tensor_of_the_graph() -> None:
    graph, other = Graph(), Graph().input("x", (2, 8), "f32")
    made = graph.custom(print, [graph.input("x", (2, 8), "f32")], [((2, 8), "f32")])
    for wrong in (made, other, None):
        with pytest.raises(ShapeError, match=r"output 'y': got .*; wanted one tensor of this graph"):
            graph.output("y", wrong)
    assert repr(other) == "the input 'x' f32[2, 8]"


def test_an_op_that_does_not_exist_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no op 'cabbage'"):
        _ = cs.cabbage


def test_views_show_the_memory_of_their_root_and_must_have_its_size() -> None:
    graph = Graph()
    tokens = cs.Extent("tokens", 6)
    x = graph.input("x", (tokens, 8), "f32")
    view = graph.reshape(graph.reshape(x, (tokens, 2, 4)), (tokens, 8))
    assert root(view) is x
    assert graph.nodes == []
    with pytest.raises(ShapeError, match=r"reshape: got .* wanted a plain tensor with as many elements"):
        graph.reshape(x, (tokens, 9))


def test_arrays_become_constants_whatever_their_strides() -> None:
    values = np.arange(32, dtype=np.float32).reshape(8, 4).T
    graph = Graph()
    graph.output("y", cs.add(graph.input("x", (4, 8), "f32"), values))
    with cs.compile(graph, threads=1) as plan:
        assert np.array_equal(plan.run(x=np.ones((4, 8), np.float32))["y"], values + 1)


def test_a_constant_from_a_source_needs_its_spec() -> None:
    class Nothing:
        def data(self) -> np.ndarray:
            return np.zeros(4, np.uint8)

    with pytest.raises(ShapeError, match="'w' from a source got the spec None; wanted its TensorSpec"):
        Graph().constant("w", Nothing())


def test_a_reshape_leaves_extents_where_they_are() -> None:
    tokens = cs.Extent("tokens", 8)
    graph = Graph()
    x = graph.input("x", (tokens, 12), "f32")
    assert graph.reshape(x, (tokens, 3, 4)).shape == (tokens, 3, 4)
    for shape in ((96,), (12, tokens), (cs.Extent("others", 8), 12), (2, tokens, 6)):
        with pytest.raises(ShapeError, match="every Extent where it was"):
            graph.reshape(x, shape)
    with pytest.raises(ShapeError, match="every Extent where it was"):
        graph.reshape(graph.input("fixed", (8, 12), "f32"), (tokens, 12))
