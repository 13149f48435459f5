"""Private folders, and files that are written atomically."""

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
_STALE_SECONDS = 24 * 3600  # downloads may take hours; an older temporary file belongs to a dead process


def reason(error: OSError) -> str:
    """The message of an OSError without number and path, such as 'No space left on device'."""
    return error.strerror or str(error)


def is_ours(status: os.stat_result) -> bool:
    """Whether this user owns the file and nobody else can write it. Always True on Windows, where inherited access lists
    protect a user's folders."""
    if sys.platform == "win32":
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@contextmanager
def naming(path: Path, what: str) -> Iterator[None]:
    """Turn an OSError of the block into a StoreError with the path, what failed, and why."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: {what}: {reason(error)}") from error


def private_folder(path: Path) -> None:
    """Create the folder with mode 0700, or restrict an existing folder of this user to that mode.

    Raises StoreError if it cannot be created, is not a folder, belongs to another user, or others can write to it.
    """
    if path.exists() and not path.is_dir():
        raise StoreError(f"{path}: is not a folder; wanted a folder for the cache")
    with naming(path, "the folder cannot be created or used"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if sys.platform != "win32" and path.stat().st_uid == os.geteuid() and path.stat().st_mode & 0o077:
            path.chmod(0o700)
        if not is_ours(path.stat()):
            raise StoreError(f"{path}: others may write there; set CAMSHAFT_CACHE_DIR to a folder of your own")


class Unfinished:
    """The file handle that `atomic_file` yields."""

    def __init__(self, path: Path, file: io.FileIO) -> None:
        self._path, self._file = path, file

    def write(self, data: bytes | memoryview) -> None:
        """Append all of the data. Raises StoreError, naming the final path, if the disk is full."""
        rest = memoryview(data)
        with naming(self._path, "cannot be written"):
            while rest:
                rest = rest[self._file.write(rest) :]


@contextmanager
def atomic_file(path: Path, *, durable: bool = False, temporary_in: Path | None = None) -> Iterator[Unfinished]:
    """Yield a temporary file that replaces `path` if the block succeeds and is deleted if it fails.

    It has mode 0600 and is created in the same folder, which must exist, or in `temporary_in`; then the final folder is created
    if missing. `durable` flushes it to disk. Raises StoreError if it cannot be created, written or moved; the block's own
    errors pass through.
    """
    with naming(path, "cannot be written"):
        number, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=temporary_in or path.parent)
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
    except FileNotFoundError:  # the folder does not exist yet
        path.parent.mkdir(mode=0o700, exist_ok=True)
        os.replace(temporary, path)


def remove_stale(folder: Path) -> None:
    """Delete temporary files older than a day from the folder."""
    oldest = time.time() - _STALE_SECONDS
    for path in folder.glob(TEMPORARY_PREFIX + "*"):
        with naming(path, "cannot be removed"), suppress(FileNotFoundError):  # another process removed it
            if path.stat().st_mtime < oldest:
                path.unlink()
