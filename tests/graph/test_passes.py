"""The passes: what they put in place of what, where they must not, and that the numbers stay the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.graph.graph import Graph, Tensor
from camshaft.graph.passes.rewrite import apply_rules, pack_weights, rules_at
from camshaft.ops.quantized.packed.packing import INTERLEAVED
from camshaft.ops.rule import Stage
from camshaft.ops.spec import TensorSpec

ROWS, DIM = 5, 64
RNG = np.random.default_rng(7)
X, Y = (RNG.normal(size=(ROWS, DIM)).astype(np.float32) for _ in range(2))
W, V = (RNG.normal(size=DIM).astype(np.float32) for _ in range(2))


def ops_of(graph: Graph) -> dict[str, int]:
    """How often each op occurs."""
    return dict(Counter(node.op.name for node in graph.nodes))


def norm64(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """rms_norm in float64."""
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w


def two_inputs() -> tuple[Graph, Tensor, Tensor]:
    graph = Graph()
    return graph, graph.input("x", (ROWS, DIM), "f32"), graph.input("y", (ROWS, DIM), "f32")


def _plain(g: Graph, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return {"norm": cs.rms_norm(cs.add(x, y), W, eps=1e-5)}


def _sum_read_after(g: Graph, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    total = cs.add(x, y)
    norm = cs.rms_norm(total, W, eps=1e-5)
    return {"norm": norm, "other": cs.multiply(total, norm)}


def _sum_read_before(g: Graph, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    total = cs.add(x, y)
    other = cs.silu(total)
    return {"other": other, "norm": cs.rms_norm(total, W, eps=1e-5)}


def _sum_is_a_result(g: Graph, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    total = cs.add(x, y)
    return {"total": total, "norm": cs.rms_norm(total, W, eps=1e-5)}


def _two_norms(g: Graph, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    total = cs.add(x, y)
    return {"norm": cs.rms_norm(total, W, eps=1e-5), "second": cs.rms_norm(total, V, eps=1e-5)}


def _chain(g: Graph, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    first = cs.rms_norm(cs.add(x, y), W, eps=1e-5)
    return {"norm": first, "second": cs.rms_norm(cs.add(first, x), V, eps=1e-5)}


TOTAL = X.astype(np.float64) + Y
NORM = norm64(TOTAL, W)
FUSED: dict[str, tuple[Callable[..., dict[str, Tensor]], dict[str, int], dict[str, np.ndarray]]] = {
    "alone": (_plain, {"residual_norm": 1}, {"norm": NORM}),
    "sum read after": (_sum_read_after, {"residual_norm": 1, "multiply": 1}, {"norm": NORM, "other": TOTAL * NORM}),
    "sum read before": (
        _sum_read_before,
        {"residual_norm": 1, "silu": 1},
        {"norm": NORM, "other": TOTAL / (1 + np.exp(-TOTAL))},
    ),
    "sum is a result": (_sum_is_a_result, {"residual_norm": 1}, {"total": TOTAL, "norm": NORM}),
    "two norms": (_two_norms, {"residual_norm": 1, "rms_norm": 1}, {"norm": NORM, "second": norm64(TOTAL, V)}),
    "chain": (_chain, {"residual_norm": 2}, {"norm": NORM, "second": norm64(NORM + X, V)}),
}


def _bias(g: Graph, x: Tensor, y: Tensor) -> Tensor:
    return cs.rms_norm(cs.add(x, V), W, eps=1e-5)


def _weight_is_an_input(g: Graph, x: Tensor, y: Tensor) -> Tensor:
    return cs.rms_norm(cs.add(x, y), g.input("w", (DIM,), "f32"), eps=1e-5)


def _through_a_view(g: Graph, x: Tensor, y: Tensor) -> Tensor:
    heads = g.reshape(cs.add(x, y), (ROWS, 4, DIM // 4))
    return g.reshape(cs.rms_norm(heads, W[: DIM // 4], eps=1e-5), (ROWS, DIM))


NOT_FUSED = {
    "a bias": (_bias, norm64(X.astype(np.float64) + V, W)),
    "a weight that is not a constant": (_weight_is_an_input, NORM),
    "a view between": (_through_a_view, norm64(TOTAL.reshape(ROWS, 4, -1), W[: DIM // 4]).reshape(ROWS, DIM)),
}


@pytest.mark.parametrize("what", FUSED)
def test_an_add_and_its_rms_norm_become_a_residual_norm(what: str) -> None:
    build, wanted_ops, wanted = FUSED[what]
    graph, x, y = two_inputs()
    for name, tensor in build(graph, x, y).items():
        graph.output(name, tensor)
    assert ops_of(apply_rules(graph, Stage.FUSE)) == wanted_ops
    with cs.compile(graph, threads=2) as plan:
        results = plan.run(x=X, y=Y)
        assert set(results) == set(wanted)
        for name, value in wanted.items():
            np.testing.assert_allclose(results[name], value, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("what", NOT_FUSED)
def test_what_only_looks_like_the_pattern_stays_and_is_right(what: str) -> None:
    build, wanted = NOT_FUSED[what]
    graph, x, y = two_inputs()
    graph.output("norm", build(graph, x, y))
    assert ops_of(apply_rules(graph, Stage.FUSE)) == {"add": 1, "rms_norm": 1}
    with cs.compile(graph, threads=1) as plan:
        given = {"x": X, "y": Y} | ({"w": W} if "w" in plan.inputs else {})
        np.testing.assert_allclose(plan.run(**given)["norm"], wanted, rtol=2e-5, atol=2e-5)


def _q4(n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random Q4_1 weights [n, k]: their bytes and their values."""
    block = BLOCK_FORMATS["Q4_1"]
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (n * k // 32, block.block_nbytes), np.uint8)
    raw[:, :4] = rng.uniform(-0.1, 0.1, (len(raw), 2)).astype(np.float16).view(np.uint8)
    return raw, block.dequantize(raw).reshape(n, k)


class Bytes:
    """A source of a constant's bytes that counts how often they were asked for."""

    def __init__(self, raw: np.ndarray) -> None:
        self.raw, self.asked = np.ascontiguousarray(raw).reshape(-1), 0

    def data(self) -> np.ndarray:
        self.asked += 1
        return self.raw


def _three_products() -> tuple[Graph, list[np.ndarray]]:
    graph, x, y = two_inputs()
    raws, values = zip(*(_q4(32, DIM, seed) for seed in range(3)), strict=True)
    spec = TensorSpec((32, DIM), BLOCK_FORMATS["Q4_1"])
    weights = [graph.constant(f"w{i}", Bytes(raw), spec) for i, raw in enumerate(raws)]
    for name, tensor, weight in (("a", x, 0), ("b", x, 1), ("c", y, 2)):
        graph.output(name, cs.quantized_matmul(tensor, weights[weight]))
    return graph, [X @ values[0].T, X @ values[1].T, Y @ values[2].T]


def test_activations_are_quantized_once_per_tensor_and_shared() -> None:
    graph, _ = _three_products()
    assert ops_of(apply_rules(graph, Stage.QUANTIZE)) == {"quantize_activations": 2, "quantized_matmul": 3}
    again = apply_rules(graph, Stage.QUANTIZE, Stage.QUANTIZE)
    assert ops_of(again) == {"quantize_activations": 2, "quantized_matmul": 3}


@pytest.mark.parametrize(("mode", "tolerance"), [("f32", 1e-5), ("q8", 2e-2)])
def test_products_are_right_in_both_modes(mode: str, tolerance: float) -> None:
    graph, wanted = _three_products()
    with cs.compile(graph, activations=mode, threads=2) as plan:
        counted = Counter(thunk.op for thunk in plan.bound.schedule.thunks)
        assert counted["quantize_activations"] == (2 if mode == "q8" else 0)
        results = plan.run(x=X, y=Y)
    for name, value in zip("abc", wanted, strict=True):
        assert np.abs(results[name] - value).max() < tolerance * np.abs(value).max()


def test_block_weights_get_the_packed_layout_and_others_keep_theirs() -> None:
    graph, _ = _three_products()
    graph.output("norm", cs.rms_norm(graph.inputs["x"], W, eps=1e-5))
    packed = pack_weights(graph)
    layouts = {t.name: t.spec.layout for node in packed.nodes for t in node.inputs if t.kind == "constant"}
    assert {name for name, layout in layouts.items() if layout is INTERLEAVED} == {"w0", "w1", "w2"}
    assert len(layouts) == 4


def test_rewrites_find_every_rule_of_every_op() -> None:
    by_op = {(op.name, rule.stage, name) for op in ops.all_ops() for rule in op.rules for name in rule.roots}
    found = {
        (op.name, stage, name)
        for name in ops.NAMES
        for stage in Stage
        for op in ops.all_ops()
        if set(op.rules) & set(rules_at(name, stage))
    }
    assert by_op == found
