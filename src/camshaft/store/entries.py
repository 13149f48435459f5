"""The entries of an object store's folder: list them, remove them, and remove what is in their place.

An entry is a file, in a folder named by its key's first two digits and named by the other digits.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from camshaft.errors import StoreError, reason_of
from camshaft.store.files import naming, remove_foreign

_FLAT = re.compile(r"[0-9a-f]{16,128}")  # of earlier versions
_FOLDER, _ENTRY = re.compile(r"[0-9a-f]{2}"), re.compile(r"[0-9a-f]{14,126}")


@dataclass(frozen=True)
class Entry:
    """A stored file; `used` is the time of its last use, exact within TOUCH_SECONDS."""

    path: Path
    nbytes: int
    used: float


def entries_under(root: Path) -> Iterator[Entry]:
    """Every entry, including those in the flat layout of earlier versions, files in place of a folder, and folders in place of
    an entry. Raises StoreError if they cannot be read."""
    yield from _files(root, _FLAT)
    yield from _files(root, _FOLDER)
    for folder in folders_of(root):
        yield from _files(folder, _ENTRY)


def remove_entry(path: Path, what: str) -> None:
    """Delete an entry, or what is in its place: a link, a pipe, or a folder of this user. Raises StoreError."""
    try:
        remove_foreign(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except PermissionError as error:
        if os.name != "nt":  # Windows cannot delete a file that another process reads
            raise StoreError(f"{path}: {what} cannot be removed: {reason_of(error)}") from error
    except OSError as error:
        raise StoreError(f"{path}: {what} cannot be removed: {reason_of(error)}") from error


def is_replaced(folder: Path) -> bool:
    """Whether something else is in the place of a folder of entries: a file, a pipe or a link."""
    with suppress(OSError):
        return not stat.S_ISDIR(folder.lstat().st_mode)
    return False


def make_place(path: Path) -> None:
    """Remove what is in the place of an entry or of its folder, and is none. Raises StoreError."""
    if is_replaced(path.parent):
        remove_entry(path.parent, "what is in the place of a folder")
    elif path.is_dir():
        remove_entry(path, "a folder in the place of an entry")


def folders_of(root: Path) -> Iterator[Path]:
    """The folders of entries."""
    for item in _listed(root):
        if _FOLDER.fullmatch(item.name) and item.is_dir(follow_symlinks=False):
            yield Path(item.path)


def _files(folder: Path, names: re.Pattern[str]) -> Iterator[Entry]:
    for item in _listed(folder):
        with suppress(FileNotFoundError):  # another process removed it
            if names.fullmatch(item.name) and (names is _ENTRY or not item.is_dir(follow_symlinks=False)):
                status = item.stat(follow_symlinks=False)
                yield Entry(Path(item.path), status.st_size, status.st_mtime)


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    with (
        naming(folder, "the folder cannot be read"),
        suppress(FileNotFoundError, NotADirectoryError),
        os.scandir(folder) as listing,
    ):
        return list(listing)
    return []
