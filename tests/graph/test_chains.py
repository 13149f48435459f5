"""Chains of elementwise ops: every bit stays as the ops one by one have it, and a chain's spelling is its op."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import camshaft as cs
from camshaft.backends.c.compilers import absent
from camshaft.backends.cpu.device import cpu_device
from camshaft.errors import ShapeError
from camshaft.extent import Extent
from camshaft.graph import functions as f
from camshaft.graph.graph import Graph, Tensor
from camshaft.ops.elementwise.chains import chain
from camshaft.ops.elementwise.chains.text import parse
from camshaft.validation.validate import check_sample
from tests.graph.chain_graphs import computed, draw, same_bits, three
from tests.support.needs import require
from tests.support.quick import full, quick_of

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("backend", ["simd", full("scalar"), "c"])
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


@pytest.mark.parametrize("dtype", quick_of(NARROW, [*NARROW][::2]))
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


@pytest.mark.parametrize("seed", quick_of(range(12), range(3)))
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


@pytest.mark.parametrize("text", quick_of(CHAINS, CHAINS[::2]))
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
