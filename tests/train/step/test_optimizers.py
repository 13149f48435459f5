"""Optimizers against their published formulas in NumPy, schedules, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft import train
from camshaft.errors import PlanError
from camshaft.train.step.graphs import Recipe, step_graph
from camshaft.train.step.tree import tree_of
from tests.support.references import evaluated

Array = np.ndarray[Any, Any]
State = dict[str, Array]
SHAPES = {"w": (3, 4), "b": (4,)}
RATE = 0.1


def sgd(p: Array, g: Array, s: State, t: int, decay: float) -> Array:
    return p - RATE * (g + decay * p)


def nesterov(p: Array, g: Array, s: State, t: int, decay: float) -> Array:
    g = g + decay * p
    s["b"] = 0.9 * s.get("b", 0) + g
    return p - RATE * (g + 0.9 * s["b"])


def adamw(p: Array, g: Array, s: State, t: int, decay: float) -> Array:
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0) + 0.001 * g**2
    m, v = s["m"] / (1 - 0.9**t), s["v"] / (1 - 0.999**t)
    return p - RATE * decay * p - RATE * m / (np.sqrt(v) + 1e-8)


def adam(p: Array, g: Array, s: State, t: int, decay: float) -> Array:
    return adamw(p, g + decay * p, s, t, 0.0)


def lion(p: Array, g: Array, s: State, t: int, decay: float) -> Array:
    direction = np.sign(0.9 * s.get("m", 0) + 0.1 * g)
    s["m"] = 0.99 * s.get("m", 0) + 0.01 * g
    return p - RATE * (direction + decay * p)


def adafactor(p: Array, g: Array, s: State, t: int, decay: float) -> Array:
    old, tiny = 1 - t**-0.8, np.finfo(p.dtype).eps
    if p.ndim < 2:
        s["v"] = estimate = old * s.get("v", 0) + (1 - old) * g**2
    else:
        s["r"] = old * s.get("r", 0) + (1 - old) * (g**2).mean(-1)
        s["c"] = old * s.get("c", 0) + (1 - old) * (g**2).mean(-2)
        estimate = np.outer(s["r"], s["c"]) / max(s["r"].mean(), tiny)
    update = g / np.sqrt(np.maximum(estimate, tiny**2))
    update /= max(1.0, np.sqrt((update**2).mean()))
    relative = max(1e-3, np.sqrt((p**2).mean())) * min(RATE, t**-0.5)
    return p - RATE * decay * p - relative * update


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize(
    ("optimizer", "formula"),
    [
        (train.SGD(weight_decay=0.2, exempt=("b",)), sgd),
        (train.SGD(momentum=0.9, nesterov=True, weight_decay=0.2, exempt=("b",)), nesterov),
        (train.AdamW(weight_decay=0.2, exempt=("b",)), adamw),
        (train.Adam(weight_decay=0.2, exempt=("b",)), adam),
        (train.Lion(weight_decay=0.2, exempt=("b",)), lion),
        (train.Adafactor(weight_decay=0.2, exempt=("b",)), adafactor),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_steps_follow_the_published_formula(optimizer: Any, formula: Callable[..., Array], clip: float | None) -> None:
    rng = np.random.default_rng(0)
    p = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    recipe = Recipe(weighed, tree_of(p), optimizer, clip, 0.75, 1)
    graph = step_graph(recipe, [p])
    for name, tensor in graph.states.items():
        graph.output(f"new {name}", tensor)
    states = {
        name: np.zeros(spec.shape, spec.dtype.numpy) if a is None else a for name, (spec, a) in recipe.states().items()
    }
    average, memory = dict(p), {name: State() for name in p}
    for t in (1, 2, 3):
        g = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
        given = {f"batch[0]['{name}']": a for name, a in g.items()}
        found = evaluated(graph, {**states, **given, "rate": np.array(RATE)}, {})
        states = {name: found[f"new {name}"] for name in states}
        norm = np.sqrt(sum((a**2).sum() for a in g.values()))
        scale = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
        p = {n: formula(p[n], g[n] * scale, memory[n], t, 0.0 if n == "b" else 0.2) for n in p}
        average = {n: 0.75 * average[n] + 0.25 * p[n] for n in p}
        assert found["norm"] == pytest.approx(norm, rel=1e-6)
        for n in p:
            # the scale of clipping is an f32
            np.testing.assert_allclose(states[f"parameters/{n}"], p[n], rtol=1e-12 if clip is None else 1e-6)
            np.testing.assert_allclose(states[f"average/{n}"], average[n], rtol=1e-12 if clip is None else 1e-6)
    assert states["number"] == 3


def weighed(p: dict[str, Any], g: dict[str, Any]) -> Any:
    """A loss whose gradients are `g`."""
    return cs.sum(p["w"] * g["w"]) + cs.sum(p["b"] * g["b"])


@pytest.mark.parametrize("optimizer", [train.SGD(momentum=0.5), train.AdamW(), train.Lion(), train.Adafactor()])
def test_a_step_that_is_not_finite_changes_nothing(optimizer: Any) -> None:
    rng = np.random.default_rng(1)
    p = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    recipe = Recipe(weighed, tree_of(p), optimizer, 1.0, 0.5, 1)
    graph = step_graph(recipe, [p])
    for name, tensor in graph.states.items():
        graph.output(f"new {name}", tensor)
    states = {
        n: np.full(spec.shape, 3, spec.dtype.numpy) if a is None else a for n, (spec, a) in recipe.states().items()
    }
    for bad in (np.nan, np.inf, 1e200):  # 1e200 squared is not an f32
        given = {f"batch[0]['{name}']": np.full(shape, bad) for name, shape in SHAPES.items()}
        found = evaluated(graph, {**states, **given, "rate": np.array(RATE)}, {})
        assert not np.isfinite(found["norm"])
        for name, before in states.items():
            np.testing.assert_array_equal(found[f"new {name}"], before)


def test_schedules_rise_stay_and_fall() -> None:
    assert [train.constant(1.0, warmup=4)(n) for n in (0, 1, 3, 4, 99)] == [0.25, 0.5, 1, 1, 1]
    falls = train.linear(1.0, 12, warmup=2, final=0.5)
    assert [falls(n) for n in (0, 1, 2, 7, 12, 40)] == [0.5, 1, 1, 0.75, 0.5, 0.5]
    half = train.cosine(2.0, 10, final=1.0)
    assert [half(n) for n in (0, 5, 10)] == pytest.approx([2, 1.5, 1])
    stays = train.warmup_stable_decay(1.0, 20, warmup=4, decay=4)
    assert [stays(n) for n in (0, 3, 15, 16, 18, 20)] == [0.25, 1, 1, 1, 0.5, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: train.AdamW(b1=1.0), "AdamW: got b1=1.0; wanted a number from 0 to below 1"),
        (lambda: train.SGD(nesterov=True), "nesterov without momentum"),
        (lambda: train.Lion(weight_decay=-1), "got weight_decay=-1; wanted a finite number from 0 on"),
        (lambda: train.AdamW(exempt="*.b"), "wanted a tuple of patterns"),  # type: ignore[arg-type]
        (lambda: train.cosine(1e-3, 0), "got steps=0"),
        (lambda: train.linear(1e-3, 10, warmup=10), "wanted some that are left"),
        (lambda: train.warmup_stable_decay(1.0, 10, warmup=8, decay=4), "wanted 1 or more of decay"),
        (lambda: train.constant(float("nan")), "got peak=nan"),
    ],
)
def test_what_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()
