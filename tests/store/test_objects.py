"""The object store: atomic entries, its size bound, foreign and damaged entries."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from camshaft.errors import StoreError
from camshaft.store import files, objects
from camshaft.store.objects import ObjectStore

FOREIGN = ("file", "folder", "pipe", "link", "dangling link", "loop")
KEY, OTHER = "ab" * 32, "cd" * 32
posix_only = pytest.mark.skipif(os.name == "nt", reason="owner, mode and messages are POSIX ones")


def files_of(root: Path) -> list[str]:
    """Everything that lies there, entries by their keys."""
    paths = (path.relative_to(root) for path in root.rglob("*") if not path.is_dir())
    return sorted("".join(path.parts) if len(path.parts) == 2 else str(path) for path in paths)


def put_in_place(what: str, place: Path, elsewhere: Path) -> None:
    """Replace what is at `place`."""
    if place.is_dir():
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    if what == "file":
        place.write_text("no entry")
    elif what == "folder":
        (place / "inner").mkdir(parents=True)
    elif what == "pipe":
        os.mkfifo(place, 0o600)
    else:
        place.symlink_to({"link": elsewhere, "dangling link": elsewhere / "none", "loop": place}[what])


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "deep" / "objects", 1 << 20)


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


@pytest.mark.parametrize("position", [0, 17, 18, 60, 82, 83, 100, -1])
def test_a_flipped_bit_is_found_and_the_entry_removed(store: ObjectStore, position: int) -> None:
    store.put(KEY, b"machine code" * 10)
    content = bytearray(store.path(KEY).read_bytes())
    content[position] ^= 1
    store.path(KEY).write_bytes(content)
    assert store.get(KEY) is None
    assert not store.path(KEY).exists()


@pytest.mark.parametrize("keep", [0, 5, 82, 83, 90])
def test_a_truncated_entry_is_removed(store: ObjectStore, keep: int) -> None:
    store.put(KEY, b"machine code")
    store.path(KEY).write_bytes(store.path(KEY).read_bytes()[:keep])
    assert store.get(KEY) is None
    assert not store.path(KEY).exists()


def test_an_entry_under_another_key_is_removed(store: ObjectStore) -> None:
    store.put(KEY, b"good for one thing")
    store.path(OTHER).parent.mkdir()
    store.path(KEY).rename(store.path(OTHER))
    assert store.get(OTHER) is None
    assert not store.path(OTHER).exists()


@posix_only
def test_the_folder_and_its_entries_are_private(store: ObjectStore) -> None:
    store.put(KEY, b"x")
    assert store.root.stat().st_mode & 0o777 == 0o700
    assert store.path(KEY).stat().st_mode & 0o777 == 0o600
    store.root.chmod(0o777)
    store.put(OTHER, b"x")
    assert store.root.stat().st_mode & 0o777 == 0o700


@posix_only
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_an_entry_that_others_may_write_is_removed(store: ObjectStore, mode: int) -> None:
    store.put(KEY, b"x")
    store.path(KEY).chmod(mode)
    assert store.get(KEY) is None
    assert not store.path(KEY).exists()


@posix_only
def test_an_entry_of_another_user_is_removed_and_their_folder_refused(store: ObjectStore, monkeypatch) -> None:
    store.put(KEY, b"x")
    monkeypatch.setattr(os, "geteuid", lambda: store.root.stat().st_uid + 1)
    assert store.get(KEY) is None
    assert not store.path(KEY).exists()
    with pytest.raises(StoreError, match=r"others may write there; set CAMSHAFT_CACHE_DIR to a folder of your own$"):
        store.put(KEY, b"x")


@posix_only
def test_a_link_in_an_entrys_place_is_not_followed(store: ObjectStore) -> None:
    store.put(KEY, b"x")
    content = store.path(KEY).rename(store.root / "elsewhere")
    store.path(KEY).symlink_to(content)
    assert store.get(KEY) is None
    assert not store.path(KEY).is_symlink()
    assert content.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_in_an_entrys_place_does_not_block(store: ObjectStore) -> None:
    store.put(OTHER, b"x")
    store.path(KEY).parent.mkdir()
    os.mkfifo(store.path(KEY), 0o600)
    assert store.get(KEY) is None
    assert not store.path(KEY).exists()


@posix_only
@pytest.mark.parametrize("call", ["get", "put"])
@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_in_an_entrys_place_is_removed(store: ObjectStore, what: str, call: str) -> None:
    """Nothing is followed or waited for."""
    store.put(OTHER, b"x")
    elsewhere = store.root.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("not ours to change")
    for place in (store.path(KEY), store.path(OTHER).parent):
        put_in_place(what, place, elsewhere)
    if call == "get":
        assert (store.get(KEY), store.get(OTHER)) == (None, None)
    store.put(KEY, b"y")
    store.put(OTHER, b"z")
    assert (store.get(KEY), store.get(OTHER)) == (b"y", b"z")
    assert files_of(store.root) == sorted([KEY, OTHER])
    assert [path.name for path in elsewhere.iterdir()] == ["file"]


@posix_only
def test_a_linked_store_stays_linked(tmp_path: Path) -> None:
    """A user may have moved a folder of the cache to another disk."""
    (tmp_path / "moved").mkdir()
    (tmp_path / "objects").symlink_to(tmp_path / "moved")
    store = ObjectStore(tmp_path / "objects", 5000)
    (tmp_path / "moved" / OTHER).write_bytes(b"an entry as earlier versions wrote it")
    for key in keys(9):
        store.put(key, bytes(1000))
    assert store.clear()[0] > 0
    assert store.root.is_symlink()


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


@posix_only
def test_a_damaged_entry_that_cannot_be_removed_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    failures: list[StoreError] = []
    store = ObjectStore(tmp_path, 1 << 20, failed=failures.append)
    store.put(KEY, b"x")
    store.path(KEY).write_bytes(b"damaged")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("camshaft.store.entries.remove_foreign", refuse)
    assert store.get(KEY, "the cached plan") is None
    assert (len(failures), len(recwarn)) == ((0, 1) if os.name == "nt" else (1, 0))


def test_a_file_in_the_folders_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is not a folder; wanted a folder"):
        ObjectStore(tmp_path / "file", 1000).put(KEY, b"x")
    with pytest.raises(StoreError, match="cannot be read: Not a directory"):
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
    with pytest.raises(StoreError, match=f"{KEY[2:]}: cannot be written: No space left on device$"):
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


def age(store: ObjectStore, key: str, seconds: float) -> None:
    os.utime(store.path(key), (time.time() - seconds,) * 2)


def keys(n: int) -> list[str]:
    return [f"{i:032x}" for i in range(n)]


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
