"""Host detection: plain values, None for what the system does not report."""

from __future__ import annotations

import json
import sys

import pytest

from camshaft.cli.command import plain
from camshaft.selection import host_info
from camshaft.selection.host_info import capabilities


def test_capabilities_are_plain_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    found = capabilities()
    assert found.lanes in (4, 8, 16)
    assert found.cores >= 1
    assert found.features
    assert set(found.cache_nbytes) == {"l1d", "l2", "l3"}
    assert [b.used_by for b in found.blas] == ["backend blas", "NumPy"]
    assert json.loads(json.dumps(plain(found)))["llvm_version"] == found.llvm_version


@pytest.mark.skipif(sys.platform != "linux", reason="reads /sys")
def test_cache_sizes(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i, (level, kind, size) in enumerate(
        (("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M"))
    ):
        folder = tmp_path / f"index{i}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    monkeypatch.setattr(host_info, "_SYS_CACHES", tmp_path)
    assert host_info._caches() == {"l1d": 48 << 10, "l2": 2 << 20, "l3": None}
