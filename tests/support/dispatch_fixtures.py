"""A cache folder of its own for tests that write evidence, with no override asked for."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    from camshaft.selection import override

    monkeypatch.delenv("CAMSHAFT_BACKEND", raising=False)
    monkeypatch.setattr(override, "_process", None)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts a child fails."""
    from camshaft.validation import proof

    def refuse() -> None:
        raise AssertionError("a child process was started")

    monkeypatch.setattr(proof, "_Child", refuse)
