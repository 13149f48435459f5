"""The fixture of tests that break a model on purpose."""

from __future__ import annotations

import pytest

from camshaft.generate.stored.plan_cache import PlanCache


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """For what is broken on purpose: such plans are not cached, since the key of a cached plan does not cover patches."""
    for name in ("get", "add"):
        monkeypatch.setattr(PlanCache, name, lambda *_: None)
    return monkeypatch
