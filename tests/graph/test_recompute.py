"""Checkpoints: gradients with the same bits from less memory, and what a block cannot contain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft.dtypes import f32
from camshaft.errors import PlanError
from camshaft.graph.graph import Graph
from camshaft.graph.passes.rewrite import prepare
from camshaft.ops.spec import TensorSpec
from camshaft.train.memory import estimated_nbytes

ROWS, WIDTH, LAYERS = 256, 32, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)
W = {f"w{i}": RNG.normal(0, 0.3, (WIDTH, 4 * WIDTH)).astype(np.float32) for i in range(LAYERS)}
V = {f"v{i}": RNG.normal(0, 0.3, (4 * WIDTH, WIDTH)).astype(np.float32) for i in range(LAYERS)}


def layer(x: Any, w: Any, v: Any) -> Any:
    h = cs.rms_norm(x, np.ones(WIDTH, np.float32), eps=1e-5) @ w
    return x + (cs.silu(h) * h).reshape(ROWS, 4, WIDTH).reshape(ROWS, 4 * WIDTH) @ v


def loss_of(recomputed: int) -> Any:
    def loss(weights: dict[str, Any], x: Any) -> Any:
        for i in range(LAYERS):
            one = cs.checkpoint(layer) if i < recomputed else layer
            x = one(x, weights[f"w{i}"], weights[f"v{i}"])
        return cs.mean(cs.square(x))

    return loss


def graph_of(recomputed: int) -> Graph:
    graph = Graph()
    weights = {name: graph.input(name, a.shape, "f32") for name, a in (W | V).items()}
    loss = loss_of(recomputed)(weights, graph.input("x", X.shape, "f32"))
    graph.output("loss", loss)
    for name, g in zip(weights, graph.gradients(loss, list(weights.values())), strict=True):
        graph.output(f"gradient {name}", g)
    return graph


def test_gradients_have_the_same_bits_and_the_plan_less_memory() -> None:
    outputs, arenas, estimates = [], [], []
    for recomputed in (0, 2, LAYERS):
        estimates.append(estimated_nbytes(graph_of(recomputed)))
        with cs.compile(graph_of(recomputed), backend="simd", threads=2) as plan:
            outputs.append(plan.run({**W, **V, "x": X}))
            assert plan.run({**W, **V, "x": X})["loss"] == outputs[-1]["loss"]
            arenas.append(plan.bound.memory_plan.arena_nbytes)
    for other in outputs[1:]:
        assert all(np.array_equal(a, other[name]) for name, a in outputs[0].items())
    assert arenas[0] > arenas[1] > arenas[2]
    assert arenas[2] < 0.6 * arenas[0]
    assert estimates == sorted(estimates, reverse=True)
    given = sum(a.nbytes for a in (W | V).values()) + X.nbytes
    for estimate, arena in zip(estimates, arenas, strict=True):
        assert abs(estimate - given - arena) < 0.35 * arena


def test_a_block_is_computed_again_before_its_gradients_alone() -> None:
    names = [node.name for node in prepare(graph_of(LAYERS), "f32").nodes]
    again = [i for i, name in enumerate(names) if name.endswith(".again")]
    assert again
    assert again != list(range(again[0], again[-1] + 1)), "each block in its turn"
    plain = [node.name for node in prepare(graph_of(0), "f32").nodes]
    assert [name for name in names if not name.endswith(".again")] == plain


def test_a_checkpoint_on_arrays_is_the_function() -> None:
    with cs.backend("scalar"):
        np.testing.assert_array_equal(cs.checkpoint(np.negative)(X), -X)


def test_what_a_block_cannot_contain_is_refused() -> None:
    for is_late in (True, False):
        graph = Graph()
        x, state = graph.input("x", (4,), "f32"), graph.state("s", TensorSpec((4,), f32))
        with graph.checkpoint():
            y = cs.exp(cs.sin(x * state) @ np.eye(4, dtype=np.float32))
        graph.output("g", *graph.gradients(cs.sum(y), [state]))
        cs.assign(state, x)
        if is_late:
            prepare(graph, "f32")
            continue
        first = next(i for i, node in enumerate(graph.nodes) if node in graph.derived)
        graph.nodes.insert(first, graph.nodes.pop())
        with pytest.raises(PlanError, match="would be computed again after s was written"):
            prepare(graph, "f32")
    graph = Graph()
    x, state = graph.input("x", (4,), "f32"), graph.state("s", TensorSpec((4,), f32))
    with (
        pytest.raises(PlanError, match=r"assign.* writes a state; wanted nodes that can run again"),
        graph.checkpoint(),
    ):
        cs.assign(state, x + 1.0)
    with graph.checkpoint(), pytest.raises(PlanError, match="one inside of another"), graph.checkpoint():
        pass
