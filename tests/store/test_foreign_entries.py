"""Entries of the store that are damaged, foreign or not to be trusted: found, removed and never followed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from camshaft.errors import StoreError
from camshaft.store.objects import ObjectStore
from tests.store.entries import KEY, OTHER, files_of, keys, posix_only

FOREIGN = ("file", "folder", "pipe", "link", "dangling link", "loop")


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
