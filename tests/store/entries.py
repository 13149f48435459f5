"""Keys of entries, and what lies in a store, for the tests of the object store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

KEY, OTHER = "ab" * 32, "cd" * 32
posix_only = pytest.mark.skipif(os.name == "nt", reason="owner, mode and messages are POSIX ones")


def files_of(root: Path) -> list[str]:
    """Everything that lies there, entries by their keys."""
    paths = (path.relative_to(root) for path in root.rglob("*") if not path.is_dir())
    return sorted("".join(path.parts) if len(path.parts) == 2 else str(path) for path in paths)


def keys(n: int) -> list[str]:
    return [f"{i:032x}" for i in range(n)]
