"""ExecutionPlan.run: which inputs it wants, whose memory its results are, and what `keep`, `out` and `view` do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft.errors import PlanError
from camshaft.plan.memory.allocate import aligned_bytes
from tests.support.devices.fake_device import FakeDevice, Fakes

N = cs.Extent("n", 6)
A = np.arange(6, dtype=np.float32)
B = 10 * A


def graph() -> cs.Graph:
    """`sum` = x + y and `twice` = 2 x over up to 6 elements."""
    made = cs.Graph()
    x, y = made.input("x", (N,), "f32"), made.input("y", (N,), "f32")
    made.output("sum", cs.add(x, y))
    made.output("twice", cs.multiply(x, 2.0))
    return made


def compiled(**options: Any) -> cs.ExecutionPlan:
    return cs.compile(graph(), backend="scalar", threads=1, **options)


def named(name: str) -> cs.ExecutionPlan:
    """`y` = -input, which has this name."""
    made = cs.Graph()
    made.output("y", cs.negate(made.input(name, (6,), "f32")))
    return cs.compile(made, backend="scalar", threads=1)


def placed() -> cs.ExecutionPlan:
    made = cs.Graph()
    with made.on("fake:0"):
        twice = cs.multiply(made.input("x", (N,), "f32"), 2.0)
    made.output("sum", cs.add(twice, made.input("y", (N,), "f32")))
    return cs.compile(made, backend="scalar", threads=1)


def test_missing_inputs_are_named_and_keep_reuses_the_last() -> None:
    with compiled() as plan:
        for call in (plan.run, plan.submit):
            with pytest.raises(
                PlanError, match=r"got inputs none; wanted also x, y \(keep=True reuses the last values\)"
            ):
                call()
            with pytest.raises(PlanError, match=r"got inputs x; wanted also y \(keep=True"):
                call(x=A)
        assert not plan.run(keep=True)["sum"].any(), "at first an input is zeros"
        plan.run(x=A, y=B)
        assert np.array_equal(plan.run(y=A, keep=True)["sum"], 2 * A)
        assert np.array_equal(plan.submit(keep=True).result(30)["sum"], 2 * A)


def test_an_input_is_given_once() -> None:
    with compiled() as plan, pytest.raises(PlanError, match="got x in a dict and by keyword; wanted each input once"):
        plan.run({"x": A, "y": B}, x=B)


@pytest.mark.parametrize("how", ["bound", "instrumented", "devices", "jit"])
def test_results_are_the_callers_own(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "instrumented":
        monkeypatch.setenv("CAMSHAFT_VALIDATE", "1")
    if how == "devices":
        Fakes(FakeDevice("fake:0", {"alignment": 256})).install(monkeypatch)
    run: Callable[..., Any]
    if how == "jit":
        run = cs.jit(lambda x, y: {"sum": x + y}, backend="scalar", threads=1)
    else:
        run = (placed if how == "devices" else compiled)().run
    first = run(x=A, y=B)["sum"]
    before = first.copy()
    second = run(x=B, y=B)["sum"]
    assert np.array_equal(first, before)
    assert not np.shares_memory(first, second)
    assert first.flags.owndata


def test_a_view_is_of_the_plans_memory_until_the_next_run() -> None:
    with compiled() as plan:
        first = plan.run(x=A[:3], y=B[:3], view=True)["sum"]
        assert np.shares_memory(first, plan.outputs["sum"])
        assert first.shape == (3,)
        plan.run(x=B[:3], y=B[:3])
        assert np.array_equal(first, 2 * B[:3])


def test_out_receives_one_output_or_several() -> None:
    with compiled() as plan:
        total, twice = np.empty(4, np.float32), np.empty(4, np.float32)
        results = plan.run(x=A[:4], y=B[:4], out={"sum": total, "twice": twice})
        assert results["sum"] is total
        assert results["twice"] is twice
        assert np.array_equal(total, A[:4] + B[:4])
        assert np.array_equal(twice, 2 * A[:4])
        some = plan.run(x=A[:4], y=A[:4], out={"sum": total})
        assert some["sum"] is total
        assert np.array_equal(some["twice"], twice)
    with named("x") as plan:
        x = A.copy()
        assert plan.run(x=x, out=x)["y"] is x, "inputs are copied in before results are copied out"
        assert np.array_equal(x, -A)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (np.empty(4, np.float32), "out is a ndarray; wanted a dict of arrays for sum, twice"),
        ({"z": np.empty(4, np.float32)}, "out has 'z'; this plan's outputs are sum, twice"),
        ({"sum": [0.0] * 4}, r"out for 'sum' is a list; wanted a writeable C-contiguous array float32 \[4\]"),
        ({"sum": np.empty(5, np.float32)}, r"is float32 \[5\]; wanted .* float32 \[4\]"),
        ({"sum": np.empty(4)}, r"is float64 \[4\]; wanted"),
        ({"sum": np.empty(8, np.float32)[::2]}, r"float32 \[4\], strided; wanted"),
        ({"sum": np.broadcast_to(np.float32(0), 4)}, "read-only; wanted"),
        ({"sum": (one := np.empty(4, np.float32)), "twice": one}, "overlapping arrays for 'sum' and 'twice'"),
    ],
)
def test_an_out_that_does_not_fit_is_refused_before_anything_changes(out: Any, words: str) -> None:
    with compiled() as plan:
        plan.run(x=A, y=B)
        with pytest.raises(PlanError, match=words):
            plan.run(x=A[:4], y=B[:4], out=out)
        with pytest.raises(PlanError, match="out for 'sum' is memory of the plan"):
            plan.run(x=A, y=B, out={"sum": plan.outputs["sum"]})
        assert plan.bound.extent(N) == 6
        with pytest.raises(PlanError, match="got out and view=True; wanted one"):
            plan.run(x=A, y=B, out=out, view=True)


def test_inputs_with_the_names_of_options_go_in_a_dict() -> None:
    for name in ("out", "keep", "view", "inputs", "self"):
        with named(name) as plan:
            assert np.array_equal(plan.run({name: A})["y"], -A)
    with named("out") as plan, pytest.raises(PlanError, match=r"'out' is given in a dict: run\(\{'out': array\}\)"):
        plan.run(out=A)
    with named("keep") as plan, pytest.raises(PlanError, match=r"keep is a ndarray; wanted True or False"):
        plan.run(keep=A)


def test_inputs_in_the_callers_memory_need_not_be_given() -> None:
    x = aligned_bytes(24, 64).view(np.float32)
    with compiled(memory={"x": x}) as plan:
        x[:] = A
        assert np.array_equal(plan.run(y=B)["sum"], A + B)
        with pytest.raises(PlanError, match="got inputs none; wanted also y"):
            plan.run()
