"""Where a chain of elementwise ops ends: what others read or wait for, another shape or device, and its greatest length."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft.graph import functions as f
from camshaft.graph.graph import Graph
from camshaft.graph.passes.chains import MOST_STEPS, MOST_TENSORS, fuse_chains
from camshaft.ops.elementwise.chains.text import parse
from camshaft.ops.spec import TensorSpec
from tests.graph.chain_graphs import same_bits, three
from tests.support.quick import full


def names(graph: Graph) -> list[str]:
    """The ops, in order."""
    return [node.op.name for node in graph.nodes]


def test_what_somebody_else_reads_comes_out_too():
    graph, (x, y, z) = three()
    inner = f.exp(f.minimum(x, y))
    graph.output("total", f.sum(inner, axes=1))
    graph.output("y", f.multiply(inner, z))
    assert names(same_bits(graph)) == [
        "chain f32,f32,f32 y0=minimum(x0,x1) y1=exp(y0) y2=multiply(y1,x2) -> y1,y2",
        "sum",
    ]


def test_a_result_that_is_wanted_whole_comes_out():
    graph, (x, y, _) = three()
    inner = graph.output("inner", f.add(x, y))
    graph.output("outer", f.tanh(inner))
    graph.output("view", graph.reshape(inner, (67, 5)))
    (node,) = same_bits(graph).nodes
    assert [t.name for t in node.outputs] == ["tanh", "tanh:1"]
    assert node.op.name.endswith("-> y0,y1")


def test_no_node_waits_for_itself_through_another():
    """The mean stands between: the quotient needs it, and it needs the power."""
    graph, (x, y, z) = three((5, 1))
    power = f.exp(f.add(x, y))
    mean = f.mean(power, axes=1, keepdims=True)
    graph.output("y", f.multiply(f.divide(power, mean), z))
    found = names(same_bits(graph))
    assert found[1] == "mean"
    assert [name.count("=") for name in found] == [2, 0, 2]


def test_two_chains_that_cross_stay_apart():
    """first -> second's other half, second -> first's other half: joining both would be a circle."""
    graph, (x, y, _) = three((1, 1))
    a, b = f.exp(x), f.exp(y)
    across_a, across_b = f.sum(a, axes=1, keepdims=True), f.sum(b, axes=1, keepdims=True)
    graph.output("c", f.add(a, across_b))
    graph.output("d", f.add(b, across_a))
    fused = same_bits(graph)
    assert len(fused.nodes) == 5
    assert sum(node.op.name.startswith("chain") for node in fused.nodes) == 1


def test_a_circle_through_a_node_that_stands_before_both_is_seen():
    """The sum stands before `second` and needs exp(x), whose group also has what reads `second`."""
    graph = Graph()
    x, y = graph.input("x", (4, 5), "f32"), graph.input("y", (4, 1), "f32")
    first = f.exp(x)
    total = f.sum(first, axes=1, keepdims=True)
    second = f.exp(y)
    graph.output("a", f.add(first, second))
    graph.output("b", f.multiply(second, total))
    assert [name.split()[0] for name in names(same_bits(graph))] == ["exp", "chain", "sum", "multiply"]


def test_a_chain_may_wait_for_a_long_program():
    graph = Graph()
    x, y = graph.input("x", (4, 5), "f32"), graph.input("y", (4, 1), "f32")
    first = f.exp(x)
    graph.output("total", f.sum(first, axes=1))
    for _ in range(1200):
        y = f.sum(y, axes=1, keepdims=True)
    graph.output("z", f.add(first, y))
    assert names(fuse_chains(graph))[-3:] == ["sum", "chain f32,f32 y0=exp(x0) y1=add(y0,x1) -> y0,y1", "sum"]


def layered(n: int) -> Graph:
    """A chain a layer, all of which read one that stands before the first."""
    graph, (x, y, _) = three((2, 3))
    shared = f.exp(y)
    for _ in range(n):
        x = f.add(f.multiply(f.silu(f.softmax(x)), shared), x)
    graph.output("y", x)
    return graph


def mirrored(n: int) -> Graph:
    """What the last layers add was made in the first, in turn: every search for a circle goes far."""
    graph, (x, *_) = three((2, 3))
    kept = []
    for _ in range(n):
        x = f.silu(f.softmax(x))
        kept.append(x)
    for _ in range(n):
        x = f.add(f.softmax(x), kept.pop())
    graph.output("y", x)
    return graph


def counted(n: int) -> Graph:
    """A state that is updated and read n times over."""
    graph = Graph()
    x, state = graph.input("x", (4,), "f32"), graph.state("state", TensorSpec((4,), cs.dtypes.f32))
    for _ in range(n):
        graph.custom(lambda read, held: None, (x, state), (), updates=(1,))
        x = f.negate(f.exp(f.add(state, x)))
    graph.output("y", x)
    return graph


def lines_run(graph: Graph) -> int:
    """How many lines of the pass run for a graph."""
    n_lines = 0

    def count(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal n_lines
        if not frame.f_code.co_filename.endswith("chains.py"):
            return None
        n_lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        fuse_chains(graph)
    finally:
        sys.settrace(before)
    return n_lines


@pytest.mark.parametrize("program", [layered, full(mirrored), full(counted)])
def test_its_steps_grow_with_the_nodes(program):
    small, large = (lines_run(program(n)) for n in (50, 100))
    assert large < 2.2 * small


def test_another_shape_or_device_ends_a_chain():
    graph, (x, y, _) = three()
    graph.output("a", f.multiply(f.exp(graph.input("row", (67,), "f32")), x))
    with graph.on("cpu"):
        placed = f.exp(y)
    graph.output("b", f.negate(placed))
    assert names(fuse_chains(graph)) == ["exp", "multiply", "exp", "negate"]


def test_a_view_of_an_inner_value_ends_a_chain():
    graph, (x, y, _) = three((4, 4))
    inner = f.add(x, y)
    turned = graph.reshape(graph.reshape(inner, (16,)), (4, 4))
    graph.output("y", f.multiply(inner, turned))
    assert names(same_bits(graph)) == ["add", "multiply"]


def test_a_state_is_read_where_the_program_says():
    graph = Graph()
    x = graph.input("x", (4,), "f32")
    state = graph.state("state", TensorSpec((4,), cs.dtypes.f32))

    def count(read: np.ndarray, held: np.ndarray) -> None:
        held += read

    before = f.add(state, x)
    graph.custom(count, (x, state), (), updates=(1,))
    graph.output("y", f.multiply(before, state))
    plan = cs.compile(graph)
    ones = np.ones(4, np.float32)
    np.testing.assert_array_equal(plan.run(x=ones)["y"], [1.0] * 4)
    np.testing.assert_array_equal(plan.run(x=ones)["y"], [4.0] * 4)


def test_a_chain_has_a_greatest_length_and_number_of_tensors():
    graph, (x, *_) = three((7,))
    for _ in range(2 * MOST_STEPS + 1):
        x = f.abs(f.negate(x))
    graph.output("y", x)
    fused = same_bits(graph)
    assert max(len(parse(node.op.name).steps) for node in fused.nodes) == MOST_STEPS
    wide = Graph()
    tensors = [wide.input(f"x{i}", (7,), "f32") for i in range(2 * MOST_TENSORS)]
    total = tensors[0]
    for tensor in tensors[1:]:
        total = f.add(total, tensor)
    wide.output("y", total)
    assert max(len(node.inputs) + len(node.outputs) for node in same_bits(wide).nodes) == MOST_TENSORS
