"""Cached plans give the results of compiled ones; damaged and foreign ones are made anew, and a warm start imports little."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from camshaft.errors import PlanError
from camshaft.plan.cached.cached_plan import CachedPlan
from camshaft.plan.cached.stored_plan import FORMAT, from_bytes, to_bytes
from camshaft.store.store import Store
from tests.generate.stored.tiny_plans import IDS, opened, runs_cached, said, started
from tests.support.how_to_validate import same_process

__all__ = ["same_process"]


def test_what_is_kept_gives_the_bits_of_plans_made_anew(kept: Store, path: Path) -> None:
    assert runs_cached(path)
    again = said(path)
    kept.schedules.clear()
    assert not runs_cached(path)
    kept.schedules.clear()
    assert said(path) == again


def test_a_plan_asked_for_is_ground_beside_the_kept_one(kept: Store, path: Path) -> None:
    with opened(path) as lm:
        with lm.session() as session:
            first = session.process(IDS)
        assert lm.plans.origins == {"prompt": "cached"}
        assert "quantized_matmul" in lm.plans.prompt.explain()
        assert lm.plans.origins == {"prompt": "compiled"}
        with lm.session() as session:
            np.testing.assert_array_equal(session.process(IDS), first)
        assert lm.plans.prompt.bound.active[lm.plans.prompt_tokens] == len(IDS)


def test_a_plan_that_cannot_be_kept_says_why(kept: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.schedules.clear()
    monkeypatch.setattr("camshaft.plan.cached.serialize.MAX_COMPUTED_NBYTES", 0)
    with opened(path) as lm:
        lm.logits(IDS)
        assert lm.plans.origins["prompt"].startswith("compiled; cannot be cached: the const")
    assert not list(kept.schedules.entries())


def test_a_damaged_plan_is_made_anew(kept: Store, path: Path) -> None:
    for entry in kept.schedules.entries():
        entry.path.write_bytes(entry.path.read_bytes()[:-9] + b"elsewhere")
    with pytest.warns(UserWarning, match="'prompt' is rebuilt: its entry was damaged"):
        assert not runs_cached(path)
    assert runs_cached(path)
    kept.schedules.clear()


def test_a_plan_of_another_form_is_made_anew_and_says_so(kept: Store, path: Path) -> None:
    for entry in list(kept.schedules.entries()):
        key = entry.path.parent.name + entry.path.name
        data = kept.schedules.get(key)
        assert data is not None
        kept.schedules.put(key, data.replace(b'"format": %d' % FORMAT, b'"format": 0'))
    with pytest.warns(UserWarning, match=f"'prompt' is rebuilt: a cached plan of format 0; wanted {FORMAT}"):
        assert not runs_cached(path)
    kept.schedules.clear()


@pytest.mark.full
def test_a_lost_kernel_is_not_run(kept: Store, path: Path) -> None:
    """In a new process: this one has its kernels in memory."""
    for entry in kept.schedules.entries():
        data = kept.schedules.get(entry.path.parent.name + entry.path.name)
        assert data is not None
        kept.kernels.objects.discard(from_bytes(data).header.kernels[-1][1])
    assert started(path)["n_compiled"] > 0


def test_a_kept_plan_does_what_every_runnable_does(kept: Store, path: Path) -> None:
    """It runs by ranges, tells its extents and is timed."""
    with opened(path) as lm:
        wanted = lm.logits(IDS).tobytes()
        with lm.session() as session:
            session.process(IDS)
        bound = lm.plans._plan("prompt").bound
        assert isinstance(bound, CachedPlan)
        assert bound.active[lm.plans.prompt_tokens] == bound.extent(lm.plans.prompt_tokens) == len(IDS)
        run = bound.timed()
        n_thunks = run.start.shape[1]
        assert run.total_ns > 0
        assert run.programs.sum() >= n_thunks
        bound.run(0, n_thunks // 2)
        bound.run(n_thunks // 2, n_thunks)
        with pytest.raises(PlanError, match=r"thunks \[0, \d+\) of a plan that has"):
            bound.run(0, n_thunks + 1)
        assert lm.logits(IDS).tobytes() == wanted
    with pytest.raises(PlanError, match="closed"):
        bound.run()


def test_bytes_come_back_as_they_were(kept: Store) -> None:
    for entry in kept.schedules.entries():
        data = kept.schedules.get(entry.path.parent.name + entry.path.name)
        assert data is not None
        assert to_bytes(from_bytes(data)) == data


# What a warm start has no use for: the graph's makers, the language, dispatch, and what takes long to import.
NOT_IMPORTED = (
    *(
        "camshaft.graph",
        "camshaft.lang",
        "camshaft.validation",
        "camshaft.eager",
        "camshaft.tune",
        "camshaft.observe",
        "bench.compare",
    ),
    *(
        "camshaft.emit.llvm.module",
        "camshaft.generate.vision.vision_model",
        "camshaft.ops.op",
        "camshaft.plan.compile",
        "camshaft.plan.cached.serialize",
        "camshaft.plan.schedule",
        "camshaft.backends.device",
        "camshaft.backends.registry",
    ),
    *("rich", "asyncio", "pydantic", "email", "importlib.metadata"),
)


def test_a_warm_start_imports_no_more_than_it_runs(kept: Store, path: Path) -> None:
    found = started(path)
    assert found["n_compiled"] == 0
    assert [name for name in found["modules"] if name.startswith(NOT_IMPORTED)] == []
