"""The store's size bound: what is evicted and cleared, and what stays."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from camshaft.errors import StoreError
from camshaft.store import files, objects
from camshaft.store.objects import ObjectStore
from tests.store.entries import KEY, OTHER, files_of, keys, posix_only


def age(store: ObjectStore, key: str, seconds: float) -> None:
    os.utime(store.path(key), (time.time() - seconds,) * 2)


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path, 10_000)
    for i, key in enumerate(keys(9)):
        store.put(key, bytes(1000))
        age(store, key, 2000 - i)
    (tmp_path / "a note").write_text("not an entry")
    assert store.get(keys(9)[0]) is not None  # touched: now the youngest
    store.put(OTHER, bytes(1000))
    assert files_of(tmp_path) == sorted([keys(9)[0], *keys(9)[3:], OTHER, "a note"])


def test_a_second_process_counts_what_it_finds(tmp_path: Path) -> None:
    for key in keys(9):
        ObjectStore(tmp_path, 1 << 20).put(key, bytes(1000))
    store = ObjectStore(tmp_path, 5000)
    store.put(OTHER, bytes(1000))
    assert sum(entry.nbytes for entry in store.entries()) <= 5000
    assert store.get(OTHER) is not None


def test_more_than_the_bound_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="an entry of 1083 bytes is more than the store's bound, 1000"):
        ObjectStore(tmp_path, 1000).put(KEY, bytes(1000))


def test_a_young_entry_is_not_touched_again(store: ObjectStore) -> None:
    store.put(KEY, b"x")
    age(store, KEY, objects.TOUCH_SECONDS / 2)
    before = store.path(KEY).stat().st_mtime_ns
    store.get(KEY)
    assert store.path(KEY).stat().st_mtime_ns == before
    age(store, KEY, objects.TOUCH_SECONDS * 2)
    store.get(KEY)
    assert store.path(KEY).stat().st_mtime_ns > before


@posix_only
def test_what_a_dead_process_left_unfinished_is_removed(store: ObjectStore) -> None:
    store.root.mkdir(parents=True)
    names = [f"{files.TEMPORARY_PREFIX}{name}" for name in ("abcd1234", "notes.txt", "abcd1235", "abcd1236")]
    left, other, folder, link = (store.root / name for name in names)
    left.write_bytes(b"half")
    other.write_bytes(b"a file of another program")
    folder.mkdir()
    link.symlink_to(other)
    with files.atomic_file(store.root / "being written") as file:
        file.write(b"half")
        store.evict()
        assert len(list(store.root.glob(f"{files.TEMPORARY_PREFIX}*"))) == 4
    assert not left.exists()
    assert other.exists()
    assert (store.root / "being written").exists()


@posix_only
def test_without_locks_old_files_have_no_owner(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    store.put(KEY, b"x")
    old, young = (store.root / f"{files.TEMPORARY_PREFIX}abcd123{i}" for i in range(2))
    old.write_bytes(b"half")
    young.write_bytes(b"half")
    os.utime(old, (time.time() - 100_000,) * 2)
    store.evict()
    assert (old.exists(), young.exists()) == (False, True)


def test_what_a_living_process_may_use_is_not_evicted(tmp_path: Path) -> None:
    now = time.time()
    store = ObjectStore(tmp_path, 5000, living_since=lambda: now - 5000)
    for i, key in enumerate(keys(8)):
        ObjectStore(tmp_path, 1 << 20).put(key, bytes(1000))
        age(
            store, key, 5000 + objects.TOUCH_SECONDS + 100 * (2 - i) - 50
        )  # only the first two are older than what it used
    store.evict()
    assert files_of(tmp_path) == keys(8)[2:]
    ObjectStore(tmp_path, 5000).evict()
    assert files_of(tmp_path) == keys(8)[4:]


def test_entries_of_an_earlier_layout_are_counted_and_cleared(store: ObjectStore) -> None:
    store.put(KEY, b"x")
    (store.root / OTHER).write_bytes(b"an entry as it lay once")
    assert sorted(entry.nbytes for entry in store.entries()) == [23, 84]
    assert store.clear() == (2, 107)
    assert files_of(store.root) == []


def test_a_file_in_a_folders_place_is_cleared(store: ObjectStore) -> None:
    store.root.mkdir(parents=True)
    (store.root / KEY[:2]).write_text("no folder")
    assert store.clear() == (1, 9)
    store.put(KEY, b"x")
    assert files_of(store.root) == [KEY]


def test_a_folder_in_an_entrys_place_is_cleared(store: ObjectStore) -> None:
    (store.path(KEY) / "inner").mkdir(parents=True)
    assert store.clear()[0] == 1
    assert list(store.root.iterdir()) == []


def test_clear_leaves_what_is_being_written_and_what_is_no_entry(store: ObjectStore) -> None:
    store.put(KEY, b"x")
    (store.root / KEY[:2] / "a note").write_text("not an entry")
    with files.atomic_file(store.root / "young"):
        assert store.clear() == (1, 84)
        assert len(files_of(store.root)) == 2
    assert files_of(store.root) == ["aba note", "young"]
    assert ObjectStore(store.root / "none", 1000).clear() == (0, 0)


def test_a_clear_between_a_writers_steps_costs_it_nothing(store: ObjectStore) -> None:
    store.put(OTHER, b"x")
    with files.atomic_file(store.path(KEY), temporary_in=store.root) as file:
        file.write(b"all")
        store.clear()
    assert files_of(store.root) == [KEY]
