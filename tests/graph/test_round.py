"""Activations of products with bf16 weights: what rounds them, once, and that it gives every bit that rounding apart gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import camshaft as cs
from camshaft.dtypes import bf16, f32
from camshaft.graph.graph import Graph, Tensor
from camshaft.graph.passes.rewrite import apply_rules, prepare
from camshaft.ops.matmul.matmul import FEW_ROWS
from camshaft.ops.rule import Stage
from tests.support.quick import quick_of

ROWS, DIM = FEW_ROWS + 1, 68
RNG = np.random.default_rng(11)
X, Y = (RNG.normal(size=(ROWS, DIM)).astype(np.float32) for _ in range(2))
W = RNG.normal(size=DIM).astype(np.float32)
PRODUCTS = [RNG.normal(size=(n, DIM)).astype(np.float32) for n in (70, 64)]


def _norm(x: Tensor, y: Tensor) -> list[Tensor]:
    return [cs.rms_norm(x, W, eps=1e-5)]


def _residual(x: Tensor, y: Tensor) -> list[Tensor]:
    total = cs.add(x, y)
    return [cs.rms_norm(total, W, eps=1e-5), total]


def _act(x: Tensor, y: Tensor) -> list[Tensor]:
    return [cs.silu_multiply(x, y)]


def _other(x: Tensor, y: Tensor) -> list[Tensor]:
    return [cs.exp(x)]


MAKERS: dict[str, Callable[[Tensor, Tensor], list[Tensor]]] = {
    "rms_norm": _norm,
    "residual_norm": _residual,
    "silu_multiply": _act,
    "exp": _other,
}


def graph_of(maker: str, *, rows: int = ROWS, dtype: type = ml_dtypes.bfloat16, read: bool = False) -> Graph:
    """Two products of what `maker` makes; `read`: its result is one of the graph's too."""
    graph = Graph()
    x, y = (graph.input(name, (rows, DIM), "f32") for name in "xy")
    made, *rest = MAKERS[maker](x, y)
    for i, weights in enumerate(PRODUCTS):
        w = graph.constant(f"w{i}", weights.astype(dtype))
        graph.output(f"product{i}", cs.matmul(made, w, transpose_b=True))
    for i, tensor in enumerate([*rest, *([made] if read else [])]):
        graph.output(f"y{i}", tensor)
    return graph


def ops_of(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in apply_rules(graph, Stage.FUSE, Stage.ROUNDED_RESULT, Stage.ROUND).nodes)


@pytest.mark.parametrize("maker", ["rms_norm", "residual_norm", "silu_multiply"])
def test_what_makes_a_tensor_rounds_it_where_products_alone_read_it(maker: str) -> None:
    ready = apply_rules(graph_of(maker), Stage.FUSE, Stage.ROUNDED_RESULT, Stage.ROUND)
    assert Counter(node.op.name for node in ready.nodes) == {maker: 1, "matmul": 2}
    first = ready.nodes[0].outputs
    assert first[0].spec.dtype == bf16
    assert all(tensor.spec.dtype == f32 for tensor in first[1:])
    assert all(node.inputs[0] is first[0] for node in ready.nodes[1:])


@pytest.mark.parametrize(("maker", "read"), [("rms_norm", True), ("silu_multiply", True), ("exp", False)])
def test_one_cast_rounds_for_all_products_what_others_read_or_make(maker: str, read: bool) -> None:
    assert ops_of(graph_of(maker, read=read)) == {maker: 1, "cast": 1, "matmul": 2}


def test_activations_beside_other_weights_stay_as_they_are() -> None:
    assert ops_of(graph_of("exp", dtype=np.float32)) == {"exp": 1, "matmul": 2}


def test_products_with_f16_weights_may_be_rounded() -> None:
    assert ops_of(graph_of("exp", dtype=np.float16)) == {"exp": 1, "rounded_matmul": 2}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_few_rows_stay_f32(dtype: type) -> None:
    assert ops_of(graph_of("exp", rows=FEW_ROWS, dtype=dtype)) == {"exp": 1, "matmul": 2}


def test_nothing_is_rounded_where_activations_stay_f32() -> None:
    nodes = prepare(graph_of("exp", dtype=np.float16), "f32").nodes
    assert Counter(node.op.name for node in nodes) == {"exp": 1, "matmul": 2}


@pytest.mark.parametrize("maker", quick_of(MAKERS, [*MAKERS][:2]))
def test_rounding_in_the_maker_gives_every_bit_that_a_cast_gives(maker: str) -> None:
    found = []
    for read in (False, True):
        with cs.compile(graph_of(maker, read=read), activations="q8", threads=2, backend="simd") as plan:
            found.append({name: np.array(value) for name, value in plan.run(x=X, y=Y).items()})
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name].view(np.uint32), value.view(np.uint32), err_msg=name)
    rounded = found[1]["y0" if maker != "residual_norm" else "y1"].astype(ml_dtypes.bfloat16).astype(np.float64)
    for i, weights in enumerate(PRODUCTS):
        wanted = rounded @ weights.astype(ml_dtypes.bfloat16).astype(np.float64).T
        np.testing.assert_allclose(found[0][f"product{i}"], wanted, rtol=1e-4, atol=1e-4)
