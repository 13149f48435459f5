"""A training step as one plan: bits, micro-batches, memory, and what it says of losses that are not finite."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft import train
from camshaft.backends import registry
from camshaft.errors import CamshaftError, TrainingError
from camshaft.graph.graph import Graph
from camshaft.train.step.diagnosis import first_not_finite
from camshaft.train.step.graphs import Recipe
from camshaft.train.step.tree import tree_of
from tests.support.needs import require
from tests.train.by_references import ReferencePlan, by_references  # noqa: F401 - a fixture
from tests.train.small import examples, flat, loss, parameters, same

X, Y = examples(8)


def made(steps: int = 3, **options: Any) -> tuple[train.Step, list[float]]:
    step = train.Step(loss, parameters(), train.AdamW(), clip=0.5, average=0.5, backend="scalar", **options)
    return step, [step(X, Y, lr=1e-2) for _ in range(steps)]


def test_a_step_is_one_plan_with_the_same_bits_for_any_number_of_threads() -> None:
    (one, losses), *others = [made(threads=n) for n in (1, 2, 5)]
    assert losses[0] > losses[-1]
    assert one.number == 3
    assert one.evaluate(X, Y) < losses[-1]
    for other, found in others:
        assert found == losses
        assert same(other.parameters, one.parameters)
        assert same(other.averages, one.averages)
    held = [one.plan(X, Y).states[f"parameters/{n}"].ctypes.data for n in ("layers.0.w", "layers.1.w")]
    tracemalloc.start()
    one(X, Y, lr=1e-2)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16_000, "less than one parameter has"
    assert held == [one.plan(X, Y).states[f"parameters/{n}"].ctypes.data for n in ("layers.0.w", "layers.1.w")]

    other.states = one.states
    assert other(X, Y, lr=1e-2) == one(X, Y, lr=1e-2)
    assert same(other.averages, one.averages)
    last = one.parameters
    one.close()
    assert same(one.parameters, last)
    assert one(X, Y, lr=0.0) > 0, "a closed step starts again from its last values"


@pytest.mark.usefixtures("by_references")
def test_micro_batches_give_the_gradients_of_the_whole_batch() -> None:
    (whole, losses), (parts, found) = made(2), made(2, micro_batches=4)
    np.testing.assert_allclose(found, losses, rtol=1e-6)
    assert parts.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-5)
    for a, b in zip(flat(parts.parameters), flat(whole.parameters), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)
    with pytest.raises(CamshaftError, match=r"batch\[0\] is \[6, 70\]; wanted 4 micro-batches of equal size"):
        parts(X[:6], Y[:6], lr=1e-2)


@pytest.mark.usefixtures("by_references")
def test_a_step_that_is_not_finite_changes_nothing_and_names_the_step() -> None:
    step, _ = made(1)
    before, bad = step.states, X.copy()
    bad[3, 3] = np.nan
    with pytest.raises(
        TrainingError, match=r"step 2: the loss is nan; the first with a NaN is the input batch\[0\];.* after step 1"
    ):
        step(bad, Y, lr=1e-2)
    for name, value in step.states.items():
        assert value.tobytes() == before[name].tobytes(), name
    assert step(X, Y, lr=1e-2) > 0


@pytest.mark.parametrize(
    ("x", "found"),
    [
        ([1, np.nan, 1], r"a NaN is the input batch\[0\]"),
        ([1, -1, 0], r"a NaN is the result of log \(node 1 of the loss: log of multiply"),
        ([1, 0, 1], r"an infinity is the result of log"),
        ([1, 1e-30, 1], r"an infinity is the result of log.vjp.divide .* of its gradients"),
    ],
)
def test_the_first_tensor_that_is_not_finite_is_named(x: list[float], found: str) -> None:
    def logs(p: dict[str, Any], x: Any) -> Any:
        return cs.sum(cs.log(p["p"] * x) * np.float32(1e30))

    def compiled(graph: Graph) -> ReferencePlan:
        return ReferencePlan(graph, memory={"parameters/p": np.ones(3, np.float32)})

    recipe = Recipe(logs, tree_of({"p": np.ones(3, np.float32)}), train.SGD(), None, None, 1)
    with np.errstate(all="ignore"):
        text = first_not_finite(recipe, [np.array(x, np.float32)], compiled)  # type: ignore[arg-type]
    assert re.search(found, text), text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: train.Step(3, parameters(), train.SGD()), "got the loss 3; wanted a function"),  # type: ignore[arg-type]
        (lambda: train.Step(loss, {"w": np.ones(3, int)}, train.SGD()), r"w is int64 \[3\]; wanted f32 or f64"),
        (lambda: train.Step(loss, {"n": 3}, train.SGD()), "wanted arrays, or a dict"),
        (lambda: train.Step(loss, parameters(), "adam"), "got the optimizer 'adam'"),  # type: ignore[arg-type]
        (
            lambda: train.Step(loss, parameters(), train.SGD())(X, Y, lr=float("nan")),
            "step: got lr=nan; wanted a finite",
        ),
        (lambda: train.Step(loss, parameters(), train.SGD(), clip=0), "got clip=0; wanted a number above 0"),
        (lambda: train.Step(loss, parameters(), train.SGD(), average=1.0), "wanted a decay between 0 and 1"),
        (lambda: train.Step(loss, parameters(), train.SGD(), micro_batches=0), "wanted 1 or more"),
        (
            lambda: train.Step(lambda p, x: x * p, np.ones(3, np.float32), train.SGD())(X[:, :3], lr=0.1),
            "wanted one f32",
        ),
        (
            lambda: train.Step(lambda p: 1.0, np.ones(3, np.float32), train.SGD())(lr=0.1),
            "loss: got 1.0; wanted a tensor",
        ),
        (lambda: setattr(train.Step(loss, parameters(), train.SGD()), "states", {}), "states: got none for 'number'"),
        (lambda: train.Step(loss, parameters(), train.SGD()).averages, "a step without `average`"),
    ],
)
def test_what_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(CamshaftError, match=message):
        make()


@pytest.mark.full
@pytest.mark.parametrize("device", ["webgpu", "c"])
def test_other_devices_train_to_the_same_losses(device: str) -> None:
    reason = registry.backend_named(device).absent()
    require(reason is None, f"{device}: {reason}")
    steps = [train.Step(loss, parameters(), train.AdamW(), clip=0.5, backend=b) for b in ("simd", device)]
    ours, theirs = ([step(X, Y, lr=1e-2) for _ in range(5)] for step in steps)
    np.testing.assert_allclose(theirs, ours, rtol=1e-5)
    steps[1].states = steps[0].states
    assert steps[1].evaluate(X, Y) == pytest.approx(steps[0].evaluate(X, Y), rel=1e-5)
    steps[1].close()
    assert steps[1].number == 5
