"""Chains of elementwise ops: what becomes one node and what does not, and that every bit stays as the ops one by one have it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft.backends.c.compilers import absent
from camshaft.backends.cpu.device import cpu_device
from camshaft.backends.registry import device as device_named
from camshaft.errors import ShapeError
from camshaft.extent import Extent
from camshaft.graph import functions as f
from camshaft.graph.graph import Graph, Tensor, root
from camshaft.graph.passes.chains import MOST_STEPS, MOST_TENSORS, fuse_chains
from camshaft.ops.elementwise.chains import chain
from camshaft.ops.elementwise.chains.text import parse
from camshaft.ops.spec import TensorSpec
from camshaft.validation.run import run_variant
from camshaft.validation.validate import check_sample
from tests.support.needs import require
from tests.support.quick import full, quick_of

RNG = np.random.default_rng(3)
Values = dict[Tensor, np.ndarray]


def computed(graph: Graph, inputs: dict[str, np.ndarray], backend: str = "simd") -> dict[str, np.ndarray]:
    """The graph's outputs, each node by its first variant, with nothing proved."""
    values: Values = {tensor: inputs[name] for name, tensor in graph.inputs.items()}
    for node in graph.nodes:
        given = tuple(_value(t, values) for t in node.inputs)
        made = run_variant(node.op.variants[0], node.spec, device_named(backend), given)
        values.update(zip(node.outputs, made, strict=True))
    return {name: _value(t, values) for name, t in graph.outputs.items()}


def _value(tensor: Tensor, values: Values) -> np.ndarray:
    if tensor.kind == "constant":
        return tensor.source.data().view(tensor.spec.dtype.numpy).reshape(tensor.spec.bounds)
    return values[tensor] if tensor in values else values[root(tensor)].reshape(tensor.spec.bounds)


def names(graph: Graph) -> list[str]:
    """The ops, in order."""
    return [node.op.name for node in graph.nodes]


def three(shape: tuple[int, ...] = (5, 67), dtype: str = "f32") -> tuple[Graph, list[Tensor]]:
    graph = Graph()
    return graph, [graph.input(name, shape, dtype) for name in "xyz"]


def draw(graph: Graph) -> dict[str, np.ndarray]:
    made = {}
    for name, tensor in graph.inputs.items():
        dtype, shape = tensor.spec.dtype.numpy, tensor.spec.bounds
        numbers = RNG.normal(size=shape) * (30 if dtype.kind in "iu" else 2)
        made[name] = (np.abs(numbers) if dtype.kind == "u" else numbers).astype(dtype)
    return made


def same_bits(graph: Graph, backend: str = "simd") -> Graph:
    """The fused graph, which gives what the other gives, to the bit."""
    fused, inputs = fuse_chains(graph), draw(graph)
    want, got = computed(graph, inputs, backend), computed(fused, inputs, backend)
    assert want.keys() == got.keys()
    for name in want:
        np.testing.assert_array_equal(want[name].reshape(-1).view(np.uint8), got[name].reshape(-1).view(np.uint8))
    return fused


@pytest.mark.parametrize("backend", ["simd", "scalar", "c"])
def test_a_product_is_rounded_before_the_sum_that_reads_it(backend):
    require(backend != "c" or absent() is None, "a C compiler")
    graph, (x, y, z) = three((3, 1000))
    graph.output("y", f.add(f.multiply(x, y), z))
    graph.output("z", f.subtract(z, f.negate(f.gelu(f.square(x)))))
    fused = same_bits(graph, backend)
    assert len(fused.nodes) == 2
    inputs = draw(graph)
    exact = (inputs["x"] * inputs["y"]) + inputs["z"]
    np.testing.assert_array_equal(computed(fused, inputs, backend)["y"], exact)


def test_rows_columns_and_scalars_repeat():
    graph = Graph()
    x, row = graph.input("x", (4, 5, 66), "f32"), graph.input("row", (66,), "f32")
    column, one = graph.input("column", (5, 1), "f32"), graph.input("one", (), "f32")
    graph.output("y", f.maximum(f.add(f.multiply(x, row), column), one))
    (node,) = same_bits(graph).nodes
    assert node.op.name == "chain f32,f32,f32,f32 y0=multiply(x0,x1) y1=add(y0,x2) y2=maximum(y1,x3) -> y2"


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


NARROW: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "i8": lambda t: f.maximum(f.multiply(f.add(t[0], t[1]), t[2]), t[1]),
    "u8": lambda t: f.floor_divide(f.subtract(t[0], f.multiply(t[1], t[2])), t[2]),
    "i16": lambda t: f.cast(f.multiply(f.multiply(t[0], t[0]), f.multiply(t[1], t[2])), to="i64"),
    "u16": lambda t: f.less(f.multiply(t[0], f.multiply(t[1], t[1])), f.multiply(t[2], t[2])),
    "i64": lambda t: f.remainder(f.multiply(t[0], f.multiply(t[1], t[1])), t[2]),
    "f16": lambda t: f.divide(f.add(f.multiply(t[0], t[1]), t[2]), f.exp(f.multiply(t[0], t[0]))),
    "bf16": lambda t: f.where(f.greater(f.add(t[0], t[1]), t[2]), f.cast(f.cast(t[0], to="f64"), to="bf16"), t[1]),
    "f64": lambda t: f.clip(f.add(f.multiply(t[0], t[1]), t[2]), t[1], f.cast(f.cast(t[2], to="f16"), to="f64")),
    "f32": lambda t: f.cast(f.cast(f.multiply(f.exp(t[0]), t[1]), to="u8"), to="f16"),
}


@pytest.mark.parametrize("dtype", NARROW)
def test_inner_values_are_rounded_and_wrap_as_memory_has_them(dtype):
    graph, tensors = three((3, 67), dtype)
    graph.output("y", NARROW[dtype](tensors))
    assert len(same_bits(graph).nodes) == 1


UNARY = ("negate", "abs", "exp", "tanh", "sigmoid", "silu", "gelu", "square", "floor", "erf")
BINARY = ("add", "subtract", "multiply", "minimum", "maximum")


def random_graph(seed: int) -> Graph:
    """Elementwise ops on what was made before, rows and columns among the inputs, with a sum here and there."""
    rng = np.random.default_rng(seed)
    graph = Graph()
    shapes = [(3, 37), (3, 37), (37,), (3, 1), ()]
    tensors = [graph.input(f"x{i}", shape, "f32") for i, shape in enumerate(shapes)]
    for _ in range(rng.integers(5, 14)):
        a, b = (tensors[i] for i in rng.integers(0, len(tensors), 2))
        kind = rng.integers(0, 12)
        if kind < 6:
            tensors.append(getattr(f, str(rng.choice(BINARY)))(a, b))
        elif kind < 11 or a.shape != (3, 37):
            tensors.append(getattr(f, str(rng.choice(UNARY)))(a))
        else:
            tensors.append(f.sum(a, axes=1, keepdims=True))
    for i in rng.integers(len(shapes), len(tensors), 3):
        if f"y{i}" not in graph.outputs:
            graph.output(f"y{i}", tensors[i])
    graph.output("last", tensors[-1])
    return graph


@pytest.mark.parametrize("seed", quick_of(range(12), range(5)))
def test_random_graphs_give_the_same_bits(seed):
    graph = random_graph(seed)
    assert len(same_bits(graph).nodes) < len(graph.nodes)


CHAINS = (
    "chain f32,f32,f32 y0=sigmoid(x0) y1=multiply(x0,y0) y2=multiply(y1,x1) y3=add(y2,x2) -> y3",
    "chain f32,f32 y0=exp(x0) y1=exp(y0) y2=subtract(y1,x1) y3=less(y2,x1) -> y2,y3",
    "chain f16,f16 y0=multiply(x0,x1) y1=softcap(y0,cap=2.5) y2=cast(y1,to='f32') -> y1,y2",
    "chain bool,i32,i32 y0=where(x0,x1,x2) y1=remainder(y0,x2) -> y1",
    "chain f32 y0=log(x0) y1=exp(y0) y2=subtract(y1,x0) -> y2",
    "chain f64 y0=sigmoid(x0) y1=multiply(x0,y0) y2=cast(y1,to='f32') -> y1,y2",
)


@pytest.mark.parametrize("text", CHAINS)
def test_the_op_of_a_spelling_is_proved_by_its_samples(text):
    op = chain.OPS[text]
    assert parse(text).text == text
    samples = list(op.samples())
    for sample in samples:
        checked = check_sample(op, op.variants[0], cpu_device("simd"), sample)
        assert checked.max_error <= checked.tolerance, sample.name
        assert checked.tolerance < 1e-4 or "log" in text, "where all is lost but rounding, any rounding will do"
    assert any(isinstance(d, Extent) for spec in samples[-1].specs for d in spec.shape)
    for error in op.error_samples():
        with pytest.raises(ShapeError, match=error.match):
            op.infer(error.specs, error.attrs)


def test_a_wrong_chain_is_found_out():
    """The proof compares with the parts: here the kernel of another chain, of which one step differs."""
    op, other = (chain.op_of(f"chain f32,f32 y0=add(x0,x1) y1={last}(y0) -> y1") for last in ("silu", "gelu"))
    sample = next(iter(op.samples()))
    checked = check_sample(op, other.variants[0], cpu_device("simd"), sample)
    assert not checked.max_error <= checked.tolerance


@pytest.mark.parametrize(
    "text", ["add x", "chain f32 y0=exp(x1) -> y0", "chain f32 y0=matmul(x0,x0) -> y0", "chain f12 y0=exp(x0) -> y0"]
)
def test_what_spells_no_chain_is_refused(text):
    with pytest.raises(ShapeError, match="chain: got"):
        chain.op_of(text)


def test_a_plan_shows_its_chains_and_runs_them_on_fewer_rows():
    rows = Extent("rows", 9)
    graph = Graph()
    x, y = graph.input("x", (rows, 33), "f32"), graph.input("y", (33,), "f32")
    graph.output("z", f.multiply(f.tanh(f.add(x, y)), y))
    plan = cs.compile(graph)
    assert "chain f32,f32 y0=add(x0,x1) y1=tanh(y0) y2=multiply(y1,x1) -> y2/row_blocks" in plan.explain()
    a, b = RNG.normal(size=(4, 33)).astype(np.float32), RNG.normal(size=33).astype(np.float32)
    want = np.tanh((a + b).astype(np.float64)) * b
    np.testing.assert_allclose(plan.run(x=a, y=b)["z"], want, rtol=1e-5, atol=1e-7)
