"""Ops that quantize their own result: which nodes become one, what they still give, and that not a bit of the results changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

import camshaft as cs
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.graph.graph import Graph, Tensor
from camshaft.graph.passes.rewrite import apply_rules
from camshaft.ops.quantized.samples import random_blocks
from camshaft.ops.rule import Stage
from camshaft.ops.spec import TensorSpec
from tests.support.quick import each_value, quick_of

ROWS, DIM = 37, 256  # a sum in another order is another number in one row of ten
RNG = np.random.default_rng(7)
X, Y = (RNG.normal(size=(ROWS, DIM)).astype(np.float32) for _ in range(2))
W = RNG.normal(size=DIM).astype(np.float32)


def _norm(x: Tensor, y: Tensor) -> list[Tensor]:
    return [cs.rms_norm(x, W, eps=1e-5)]


def _residual(x: Tensor, y: Tensor) -> list[Tensor]:
    total = cs.add(x, y)
    return [cs.rms_norm(total, W, eps=1e-5), total]


def _silu(x: Tensor, y: Tensor) -> list[Tensor]:
    return [cs.silu_multiply(x, y)]


def _gelu(x: Tensor, y: Tensor) -> list[Tensor]:
    return [cs.gelu_multiply(x, y)]


FIRST: dict[str, Callable[[Tensor, Tensor], list[Tensor]]] = {
    "rms_norm_q8": _norm,
    "residual_norm_q8": _residual,
    "silu_multiply_q8": _silu,
    "gelu_multiply_q8": _gelu,
}
# What else there is of y: (formats of the products that read it, another reader, a result of the graph) -> (sums, floats)
READ = {
    "products alone": ((("Q4_1", "Q4_1"), False, False), (((32, 0),), False)),
    "products of both sums": ((("Q3_K", "Q4_1"), False, False), (((16, 4), (32, 0)), False)),
    "another node too": ((("Q4_1",), True, False), (((32, 0),), True)),
    "the caller too": ((("Q4_1",), False, True), (((32, 0),), True)),
}


def graph_of(first: str, read: str) -> Graph:
    (formats, other, result), _ = READ[read]
    graph = Graph()
    x, y = (graph.input(name, (ROWS, DIM), "f32") for name in "xy")
    made, *rest = FIRST[first](x, y)
    for i, form in enumerate(formats):
        weights = graph.constant(
            f"w{i}", random_blocks(form, 48, DIM, seed=i), TensorSpec((48, DIM), BLOCK_FORMATS[form])
        )
        graph.output(f"product{i}", cs.quantized_matmul(made, weights))
    for i, tensor in enumerate([*rest, *([cs.exp(made)] if other else []), *([made] if result else [])]):
        graph.output(f"y{i}", tensor)
    return graph


def without(monkeypatch: pytest.MonkeyPatch, left_out: Stage) -> None:
    """Plans are made without the rules of a stage."""
    monkeypatch.setattr("camshaft.graph.passes.rewrite.Stage", [stage for stage in Stage if stage != left_out])


def run(graph: Graph, threads: int) -> dict[str, np.ndarray]:
    with cs.compile(graph, activations="q8", threads=threads, backend="simd") as plan:
        return {name: np.array(value) for name, value in plan.run(x=X, y=Y).items()}


@pytest.mark.parametrize(("first", "read"), each_value(list(FIRST), list(READ)))
def test_an_op_that_quantizes_its_result_gives_every_bit_that_two_nodes_gave(
    first: str, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, (sums, floats) = graph_of(first, read), READ[read][1]
    ready = apply_rules(graph, Stage.FUSE, Stage.QUANTIZE, Stage.QUANTIZED_RESULT)
    (node,) = (n for n in ready.nodes if n.op.name == first)
    assert (node.attrs["sums"], node.attrs["floats"]) == (sums, floats)
    assert not any(n.op.name == "quantize_activations" for n in ready.nodes)
    fused = [run(graph, threads) for threads in (1, 2)]
    without(monkeypatch, Stage.QUANTIZED_RESULT)
    apart = run(graph, 1)
    for found in fused:
        for name, value in apart.items():
            np.testing.assert_array_equal(found[name].view(np.uint32), value.view(np.uint32), err_msg=name)


def test_what_only_looks_like_the_pattern_stays() -> None:
    graph = Graph()
    x = graph.input("x", (ROWS, DIM), "f32")
    weights = graph.constant("w", random_blocks("Q4_1", 48, DIM, seed=1), TensorSpec((48, DIM), BLOCK_FORMATS["Q4_1"]))
    heads = cs.rms_norm(graph.reshape(x, (ROWS, 4, DIM // 4)), W[: DIM // 4], eps=1e-5)
    seen = graph.reshape(heads, (ROWS, DIM))
    elsewhere = cs.rms_norm(x, W, eps=1e-5)
    graph.output("view", cs.quantized_matmul(seen, weights))
    with graph.on("cpu:scalar"):
        graph.output("elsewhere", cs.quantized_matmul(elsewhere, weights))
    ready = apply_rules(graph, Stage.QUANTIZE, Stage.QUANTIZED_RESULT)
    assert Counter(n.op.name for n in ready.nodes) == {"rms_norm": 2, "quantize_activations": 2, "quantized_matmul": 2}


def test_a_graph_that_quantizes_for_itself_is_left_to_this_pass() -> None:
    graph = Graph()
    norm = cs.rms_norm(graph.input("x", (ROWS, DIM), "f32"), W, eps=1e-5)
    for group in (32, 16):
        graph.output(f"q{group}", cs.quantize_activations(norm, group=group))
    assert Counter(n.op.name for n in apply_rules(graph, Stage.FUSE).nodes) == {
        "rms_norm": 1,
        "quantize_activations": 2,
    }
    (node,) = apply_rules(graph, Stage.QUANTIZED_RESULT).nodes
    assert (node.op.name, node.attrs["sums"], node.attrs["floats"]) == ("rms_norm_q8", ((32, 0), (16, 0)), False)


def gated(
    name: str, rows: int, *, shared: bool = True, read: bool = False, up: str | None = None, act: str = "silu"
) -> Graph:
    """down(act(gate x) up x): `shared` whether gate and up read one x, `read` whether somebody else reads gate's result too."""
    graph = Graph()
    x, y = (graph.input(n, (rows, DIM), "f32") for n in "xy")
    formats = (name, up or name, "Q4_1")
    weights = [
        graph.constant(f"w{i}", random_blocks(form, DIM, DIM, seed=i), TensorSpec((DIM, DIM), BLOCK_FORMATS[form]))
        for i, form in enumerate(formats)
    ]
    first, second = cs.quantized_matmul(x, weights[0]), cs.quantized_matmul(x if shared else y, weights[1])
    graph.output("down", cs.quantized_matmul(getattr(cs, f"{act}_multiply")(first, second), weights[2]))
    if read:
        graph.output("gate", cs.exp(first))
    graph.output("z", cs.negate(y))
    return graph


@pytest.mark.parametrize(
    ("name", "rows", "act"),
    quick_of(product(["Q4_1", "Q8_0", "Q6_K"], [1, 29], ["silu", "gelu"]), [("Q4_1", 1, "gelu"), ("Q6_K", 29, "silu")]),
)
def test_gate_and_up_as_one_node_give_every_bit_that_three_nodes_gave(
    name: str, rows: int, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = (RNG.normal(size=(rows, DIM)).astype(np.float32) for _ in range(2))
    found = []
    for fused in (True, False):
        if not fused:
            without(monkeypatch, Stage.GATED_PRODUCT)
        for threads in (1, 2):
            with cs.compile(gated(name, rows, act=act), activations="q8", threads=threads, backend="simd") as plan:
                ops = {t.op for t in plan.bound.schedule.thunks}
                assert ("gated_product" in ops, f"{act}_multiply_q8" in ops) == (fused, not fused)
                found.append(plan.run(x=x, y=y)["down"].copy())
    for other in found[1:]:
        np.testing.assert_array_equal(other.view(np.uint32), found[0].view(np.uint32))


@pytest.mark.parametrize("how", [{"shared": False}, {"read": True}, {"up": "Q6_K"}])
def test_products_that_others_read_or_of_two_kinds_stay(how: dict[str, object]) -> None:
    ready = apply_rules(gated("Q4_1", ROWS, **how), Stage.QUANTIZE, Stage.QUANTIZED_RESULT, Stage.GATED_PRODUCT)  # type: ignore[arg-type]
    counted = Counter(n.op.name for n in ready.nodes)
    assert (counted["gated_product"], counted["quantized_matmul"], counted["silu_multiply_q8"]) == (0, 3, 1)
