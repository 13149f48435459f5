"""Locks and leases: what other processes hold is skipped in time, what dead ones left is removed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from camshaft.errors import StoreError
from camshaft.store import file_lock, process_lock
from camshaft.store.counters import Counters
from camshaft.store.files import atomic_file
from camshaft.store.objects import Counts
from camshaft.store.process_lock import LEASE_PREFIX, ProcessLeases, locked
from camshaft.store.store import store

pytestmark = pytest.mark.skipif(os.name == "nt", reason="locks and links are POSIX ones")
IN_PLACE = {
    "pipe": lambda path: os.mkfifo(path, 0o600),
    "folder": lambda path: (path / "inner").mkdir(parents=True),
    "dangling link": lambda path: path.symlink_to(path.parent / "none"),
    "link": lambda path: path.symlink_to(path.parent / "file"),
    "loop": lambda path: path.symlink_to(path),
}


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The seconds waited: a pause moves the clock and takes no time."""
    waited: list[float] = []
    monkeypatch.setattr(file_lock.time, "monotonic", lambda: sum(waited))
    monkeypatch.setattr(file_lock.time, "sleep", waited.append)
    process_lock._skipped.clear()
    yield waited
    process_lock._skipped.clear()


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o640)])
def test_a_file_for_others_has_the_mode_that_the_umask_gives(tmp_path: Path, private: bool, mode: int) -> None:
    before = os.umask(0o027)
    try:
        with atomic_file(tmp_path / "file", private=private) as file:
            file.write(b"data")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_lock_that_is_held_is_skipped_once_with_a_warning(tmp_path: Path, pauses: list[float]) -> None:
    with locked(tmp_path / "lock"):
        said = pytest.warns(UserWarning, match=r"another process holds this lock for over 2 s; it is skipped")
        with said, locked(tmp_path / "lock"):
            assert sum(pauses) == pytest.approx(2, abs=0.1)
        pauses.clear()
        with warnings.catch_warnings(action="error"), locked(tmp_path / "lock"):
            assert sum(pauses) == 0
    with locked(tmp_path / "lock"):
        assert process_lock._skipped == set()


@pytest.mark.parametrize("what", IN_PLACE)
def test_what_is_in_a_locks_place_is_removed(tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_text("not a lock")
    IN_PLACE[what](tmp_path / "lock")
    with locked(tmp_path / "lock"):
        assert (tmp_path / "lock").is_file()
    assert (tmp_path / "file").read_text() == "not a lock"


@pytest.mark.parametrize("what", IN_PLACE)
def test_what_is_in_a_leases_place_is_removed(tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_text("not a lease")
    IN_PLACE[what](tmp_path / f"{LEASE_PREFIX}x")
    leases = ProcessLeases(tmp_path)
    leases.acquire()
    assert leases.oldest() is not None
    assert len(list(tmp_path.glob(f"{LEASE_PREFIX}*"))) == 1
    leases.release()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("what", IN_PLACE)
def test_what_is_in_the_counters_place_is_replaced(tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_text("{}")
    IN_PLACE[what](tmp_path / "counters")
    counters = Counters(tmp_path)
    assert counters.read() == {}
    counters.add({"objects": Counts(1, 2, 3)})
    assert counters.read() == {"objects": Counts(1, 2, 3)}


def test_a_file_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removes it between its creation and the lock."""
    made, real = [], file_lock.tempfile.mkstemp

    def swept(**how: object) -> tuple[int, str]:
        made.append(real(**how))
        if len(made) == 1:
            os.unlink(made[0][1])
        return made[-1]

    monkeypatch.setattr(file_lock.tempfile, "mkstemp", swept)
    descriptor, path = file_lock.owned_file(tmp_path, "x-")
    assert (len(made), path.exists()) == (2, True)
    with file_lock.abandoned(path) as is_abandoned:
        assert not is_abandoned
    os.close(descriptor)
    with file_lock.abandoned(path) as is_abandoned:
        assert is_abandoned


def test_a_folder_is_owned_until_its_block_ends(tmp_path: Path) -> None:
    with file_lock.owned_folder(tmp_path, "x-") as folder, file_lock.abandoned(folder) as is_abandoned:
        assert not is_abandoned
    assert not folder.exists()


class TestUnusable:
    """Cache folders that cannot be used: everything is in memory, with one warning."""

    @pytest.fixture(params=["file", "null device", "dangling link", "loop", "pipe", "read-only", "full"])
    def root(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        root = Path("/dev/null") if request.param == "null device" else tmp_path / "cache"
        if request.param == "file":
            root.write_text("")
        elif request.param == "read-only":  # a mode does not stop root
            monkeypatch.setattr("os.mkdir", self.refused)
            monkeypatch.setattr("tempfile.mkstemp", self.refused)
        elif request.param == "full":
            monkeypatch.setattr("camshaft.store.files.Unfinished.write", self.full)
        elif request.param in IN_PLACE:
            IN_PLACE[request.param](root)
        monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(root))
        return root

    @staticmethod
    def refused(*args: object, **how: object) -> None:
        raise OSError(30, "Read-only file system")

    @staticmethod
    def full(self: object, data: bytes) -> None:
        raise StoreError("cannot be written: No space left on device")

    def test_one_warning_and_everything_works(self, root: Path) -> None:
        key, other = "ab" * 32, "cd" * 32
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            current = store()
            assert current.objects.get(other) is None
            for part in current.parts.values():
                part.put(key, b"x")
                assert part.get(key) == b"x"
                assert part.digest()
            current.evidence.put(key, {"passed": True})
            assert current.evidence.get(key) == {"passed": True}
            with current.locked("evidence"):
                current.objects.discard(key)
            assert current.objects.get(key) is None
            current.objects.evict()
            current.finish()
        assert len(seen) == 1
        assert str(seen[0].message).startswith("going on without the cache: ")
        left = [path for path in root.rglob("*") if path.is_file()] if root.is_dir() else []
        assert not [path for path in left if path.name.startswith(".unfinished-")]
