"""Files of packed weights: large ones move to huge pages in pieces, and a forked child waits for no thread."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from camshaft.plan.memory import weight_cache

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a mapping replaces another one by Linux's calls")


def test_large_files_move_in_pieces(tmp_path: Path) -> None:
    bytes_of = np.random.default_rng(1).integers(0, 256, 2 * weight_cache.HUGE_PAGE + 5000, np.uint8)
    (path := tmp_path / "file.weights").write_bytes(bytes_of.tobytes())
    path.chmod(0o600)
    memory = weight_cache._mapped(path, bytes_of.size)
    assert memory is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_cache, "_MOVED", weight_cache.HUGE_PAGE)
        weight_cache.WeightCache(tmp_path, lambda: None)._enlarge(memory)
    np.testing.assert_array_equal(memory, bytes_of)
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_a_forked_child_has_no_lock_of_a_thread(tmp_path: Path) -> None:
    cache = weight_cache.WeightCache(tmp_path, lambda: None)
    with cache._closed._cond:  # as a thread that waits has it for a moment
        child = os.fork()
        if not child:
            signal.alarm(5)
            cache.close()
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
