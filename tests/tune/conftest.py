"""Fixtures for tuning tests: a cache folder, no override, tuning off, measuring that is noted instead of started."""

from __future__ import annotations

from pathlib import Path

import pytest

from camshaft.selection import override
from camshaft.tune import jobs
from tests.support.how_to_validate import same_process

__all__ = ["same_process"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("BACKEND", "TUNE", "BEAM"):
        monkeypatch.delenv(f"CAMSHAFT_{name}", raising=False)
    monkeypatch.setattr(override, "_process", None)
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measuring is on; the process is not started but noted."""
    monkeypatch.setenv("CAMSHAFT_MEASURE", "1")
    monkeypatch.setattr(jobs, "_record", jobs._Record())
    monkeypatch.setattr(jobs, "LEAST_NS", 0.0)
    monkeypatch.setattr("atexit.register", lambda *_: None)
    starts: list[str] = []
    monkeypatch.setattr(jobs, "start", lambda: starts.append("started"))
    return starts
