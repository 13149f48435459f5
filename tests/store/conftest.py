"""An empty object store in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from camshaft.store.objects import ObjectStore


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "deep" / "objects", 1 << 20)
