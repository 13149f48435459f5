"""The object store: what is put is got, atomically, with a full disk, without a folder and by threads that race."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from camshaft.errors import StoreError
from camshaft.store import files
from camshaft.store.objects import ObjectStore
from tests.store.entries import KEY, OTHER, files_of, keys, posix_only


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 1000])
def test_what_is_put_is_got(store: ObjectStore, data: bytes) -> None:
    store.put(KEY, data)
    assert store.get(KEY) == data
    assert ObjectStore(store.root, store.max_nbytes).get(KEY) == data
    assert store.get(OTHER) is None
    assert files_of(store.root) == [KEY]


def test_nothing_is_made_before_the_first_put(store: ObjectStore) -> None:
    assert store.get(KEY) is None
    assert not store.root.exists()


def test_the_last_put_counts(store: ObjectStore) -> None:
    store.put(KEY, b"old")
    store.put(KEY, b"new")
    assert store.get(KEY) == b"new"


@pytest.mark.parametrize(
    "key", ["", "ab", "../" * 8, "AB" * 32, "g" * 32, "a" * 129, "ab" * 8 + "\n", "/etc/passwd/ab"]
)
def test_a_key_is_hex_digits(store: ObjectStore, key: str) -> None:
    for call in (lambda: store.get(key), lambda: store.put(key, b"x")):
        with pytest.raises(StoreError, match="wanted 16 to 128 hex digits"):
            call()


@posix_only
def test_what_cannot_be_written_is_in_memory(tmp_path: Path) -> None:
    errors: list[StoreError] = []
    (tmp_path / "file").write_text("")
    store = ObjectStore(tmp_path / "file", 1000, failed=errors.append)
    empty = store.digest()
    assert store.get(KEY) is None
    store.put(KEY, b"x")
    assert (store.get(KEY), store.get(OTHER)) == (b"x", None)
    assert store.digest() != empty
    assert all("file" in str(error) for error in errors)
    store.discard(KEY)
    assert store.get(KEY) is None
    store.put(KEY, b"old")
    (tmp_path / "file").unlink()
    store.put(KEY, b"new")
    assert ObjectStore(tmp_path / "file", 1000).get(KEY) == store.get(KEY) == b"new"
    with pytest.raises(StoreError, match="more than the store's bound"):
        store.put(KEY, bytes(1000))


def test_a_file_in_the_folders_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is not a folder; wanted a folder"):
        ObjectStore(tmp_path / "file", 1000).put(KEY, b"x")
    with pytest.raises(StoreError, match="cannot be read: not a directory"):
        ObjectStore(tmp_path / "file", 1000).get(KEY)
    with pytest.raises(StoreError, match="the folder cannot be created or used"):
        ObjectStore(tmp_path / "file" / "objects", 1000).put(KEY, b"x")


def test_a_full_disk_leaves_the_old_entry_and_nothing_half_written(store: ObjectStore, monkeypatch) -> None:
    store.put(KEY, b"old")
    write = files.Unfinished.write

    class Full:
        def __init__(self, file) -> None:
            self.file = file

        def write(self, data) -> int:
            if len(data) > 1000:
                return self.file.write(data[:1000])  # a partial write first, as disks do
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def failing(self, data) -> None:
        self._file = Full(self._file) if not isinstance(self._file, Full) else self._file
        write(self, data)

    monkeypatch.setattr(files.Unfinished, "write", failing)
    with pytest.raises(StoreError, match=f"{KEY[2:]}: cannot be written: no space left on device$"):
        store.put(KEY, bytes(5000))
    assert files_of(store.root) == [KEY]
    assert store.get(KEY) == b"old"


def test_an_interrupted_block_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with files.atomic_file(tmp_path / "f") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == []


def test_a_durable_file_and_one_where_no_folder_is(tmp_path: Path) -> None:
    with files.atomic_file(tmp_path / "f", durable=True) as file:
        file.write(b"one ")
        file.write(memoryview(b"two"))
    assert (tmp_path / "f").read_bytes() == b"one two"
    with pytest.raises(StoreError, match="cannot be written"), files.atomic_file(tmp_path / "none" / "f"):
        pytest.fail("the block must not run")


def test_threads_that_race_see_whole_entries(tmp_path: Path) -> None:
    seen: list[bytes | None] = []
    errors: list[BaseException] = []

    def work(letter: bytes) -> None:
        store = ObjectStore(tmp_path, 1 << 16)
        try:
            for i in range(60):
                store.put(KEY, letter * 20_000)
                store.put(keys(60)[i], letter * 3000)  # keeps evictions going
                seen.append(store.get(KEY))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(letter,)) for letter in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert set(seen) <= {b"a" * 20_000, b"b" * 20_000, None}
    assert not [name for name in files_of(tmp_path) if name.startswith(files.TEMPORARY_PREFIX)]
