"""Private folders and files that appear whole or not at all."""

from __future__ import annotations

import io
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from camshaft.errors import StoreError

TEMPORARY_PREFIX = ".unfinished-"
_STALE_SECONDS = 24 * 3600  # a download may take hours; an older unfinished file was left by a process that died


def reason(error: OSError) -> str:
    """What an OSError says, without its number and path: 'No space left on device'."""
    return error.strerror or str(error)


def is_ours(status: os.stat_result) -> bool:
    """Whether this user owns the file and nobody else may write it. Always True on Windows, where a user's folders
    are closed to others by inherited access lists and no owner number says so."""
    if sys.platform == "win32":
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@contextmanager
def naming(path: Path, what: str) -> Iterator[None]:
    """Turns an OSError of the block into a StoreError: the path, what could not be done, why."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: {what}: {reason(error)}") from error


def private_folder(path: Path) -> None:
    """Makes the folder with mode 0700, or closes an existing one of ours to others.

    StoreError when it cannot be made, is no folder, belongs to somebody else, or stays open to others' writing.
    """
    if path.exists() and not path.is_dir():
        raise StoreError(f"{path}: is no folder; wanted one to keep files in")
    with naming(path, "the folder cannot be made or used"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if sys.platform != "win32" and path.stat().st_uid == os.geteuid() and path.stat().st_mode & 0o077:
            path.chmod(0o700)
        if not is_ours(path.stat()):
            raise StoreError(f"{path}: others may write there; set CAMSHAFT_CACHE_DIR to a folder of your own")


class Unfinished:
    """The file that `atomic_file` hands out."""

    def __init__(self, path: Path, file: io.FileIO) -> None:
        self._path, self._file = path, file

    def write(self, data: bytes | memoryview) -> None:
        """Appends the data, all of it. StoreError, naming the final path, when the disk is full."""
        rest = memoryview(data)
        with naming(self._path, "cannot be written"):
            while rest:
                rest = rest[self._file.write(rest) :]


@contextmanager
def atomic_file(path: Path, *, durable: bool = False, beside: Path | None = None) -> Iterator[Unfinished]:
    """A file to write that takes the place of `path` when the block ends well, and is gone when it does not.

    Mode 0600, made in the same folder, which must be there, or in `beside`: then the file's own folder is made when need be.
    `durable` waits until the disk has it. StoreError when it cannot be made, written or put in place; errors of the block's
    own pass through.
    """
    with naming(path, "cannot be written"):
        number, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=beside or path.parent)
    temporary, file = Path(name), io.FileIO(number, "wb")
    try:
        yield Unfinished(path, file)
        with naming(path, "cannot be written"):
            if durable:
                os.fsync(file.fileno())
            file.close()
            _replace(temporary, path)
    finally:
        file.close()
        temporary.unlink(missing_ok=True)


def _replace(temporary: Path, path: Path) -> None:
    try:
        os.replace(temporary, path)
    except FileNotFoundError:  # the first file of its folder
        path.parent.mkdir(mode=0o700, exist_ok=True)
        os.replace(temporary, path)


def remove_stale(folder: Path) -> None:
    """Removes unfinished files older than a day from the folder."""
    oldest = time.time() - _STALE_SECONDS
    for path in folder.glob(TEMPORARY_PREFIX + "*"):
        with naming(path, "cannot be removed"), suppress(FileNotFoundError):  # another process was first
            if path.stat().st_mtime < oldest:
                path.unlink()
