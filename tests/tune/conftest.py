"""Fixtures for tuning tests: a cache folder, no override, tuning off, measuring that is noted instead of started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from camshaft.selection import override
from camshaft.tune import compile_worker, jobs, nodes
from camshaft.tune.benchmark import Candidate
from camshaft.tune.compilation import Compiled, Compiler
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


class SameProcess(Compiler):
    """Compiles in the test's own process what its worker would, which takes 0.3 s to start."""

    def _compile(self, candidate: Candidate) -> Compiled:
        try:
            node = compile_worker.node_from(json.loads(json.dumps(compile_worker.node_json(candidate.node))))
            return Compiled(compile_worker.compiled(candidate.case, node))
        except Exception as error:
            return Compiled(failed=f"{type(error).__name__}: {error}")


@pytest.fixture(autouse=True)
def compiled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates are compiled in the test's own process."""
    monkeypatch.setattr(nodes, "Compiler", SameProcess)


@pytest.fixture
def compiled_in_a_child(compiled_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """... but here in a child process, as users' are."""
    monkeypatch.setattr(nodes, "Compiler", Compiler)
