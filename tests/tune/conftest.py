"""Fixtures for tuning tests: a cache folder, no override, tuning off."""

from __future__ import annotations

from pathlib import Path

import pytest

from camshaft.selection import override
from tests.support.how_to_validate import same_process

__all__ = ["same_process"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("BACKEND", "TUNE", "BEAM"):
        monkeypatch.delenv(f"CAMSHAFT_{name}", raising=False)
    monkeypatch.setattr(override, "_process", None)
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"
