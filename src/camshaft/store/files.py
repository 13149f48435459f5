"""Private folders, files that are written atomically, and the digests that name them."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from camshaft.errors import StoreError, reason_of
from camshaft.store.file_lock import SAFE_FLAGS, abandoned, owned_file

TEMPORARY_PREFIX = ".unfinished-"
Field: TypeAlias = "str | bytes | int | Iterable[Field] | None"
_UNFINISHED = re.compile(re.escape(TEMPORARY_PREFIX) + r"[a-z0-9_]{8}")  # tempfile's names


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
        raise StoreError(f"{path}: {what}: {reason_of(error)}") from error


def private_folder(path: Path) -> None:
    """Create the folder with mode 0700, or restrict an existing folder of this user to that mode.

    Raises StoreError if it cannot be created, is not a folder, belongs to another user, or others can write to it.
    """
    with naming(path, "the folder cannot be created or used"):
        if path.exists() and not path.is_dir():
            raise StoreError(f"{path}: is not a folder; wanted a folder for the cache")
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
def atomic_file(
    path: Path, *, durable: bool = False, temporary_in: Path | None = None, private: bool = True
) -> Iterator[Unfinished]:
    """Yield a temporary file that replaces `path` if the block succeeds and is deleted if it fails.

    It is created in the same folder, which must exist, or in `temporary_in`; then the final folder is created if missing. A
    `private` file has mode 0600, another one the umask's. This process owns it meanwhile (file_lock.py). `durable` flushes it to
    disk. Raises StoreError if it cannot be created, written or moved; the block's own errors pass through.
    """
    with naming(path, "cannot be written"):
        number, temporary = owned_file(temporary_in or path.parent, TEMPORARY_PREFIX, private=private)
    file = io.FileIO(number, "wb")
    try:
        yield Unfinished(path, file)
        with naming(path, "cannot be written"):
            if durable:
                os.fsync(file.fileno())
            if os.name == "nt":  # an open file cannot be moved there; elsewhere it is owned until it has its name
                file.close()
            _replace(temporary, path)
    finally:
        with suppress(OSError):  # close reports delayed write errors only on file systems where fsync is needed anyway
            file.close()
        with suppress(OSError):  # moved, or the folder is gone or read-only by now
            temporary.unlink()


def _replace(temporary: Path, path: Path) -> None:
    try:
        os.replace(temporary, path)
    except FileNotFoundError:  # the folder does not exist yet
        path.parent.mkdir(mode=0o700, exist_ok=True)
        os.replace(temporary, path)


def remove_unfinished(folder: Path) -> None:
    """Delete the temporary files of dead processes from the folder, as far as that is possible."""
    with suppress(OSError):
        for path in folder.glob(TEMPORARY_PREFIX + "*"):
            if _UNFINISHED.fullmatch(path.name) and not path.is_dir():
                with (
                    abandoned(path) as is_abandoned,
                    suppress(OSError),
                ):  # another process removed it, or a read-only disk
                    if is_abandoned:
                        path.unlink()


def remove_foreign(path: Path) -> None:
    """Delete what is in the place of a file of the cache: a link, pipe or folder of this user. Raises OSError."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        path.unlink()
    elif sys.platform == "win32" or status.st_uid == os.geteuid():
        shutil.rmtree(path)


def open_regular(path: Path) -> io.BufferedReader[io.FileIO]:
    """Open a file to read. Raises OSError, also for a link, a folder or a pipe, which is not waited for."""
    file = io.BufferedReader(io.FileIO(os.open(path, os.O_RDONLY | SAFE_FLAGS)))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return file


def read_regular(path: Path, most_nbytes: int = -1) -> bytes:
    """The first bytes of a file, by default all. Raises as `open_regular`."""
    with open_regular(path) as file:
        return file.read(most_nbytes)


def digest_of(*fields: Field) -> str:
    """The SHA-256 of the fields as 64 hex digits. Every key of the store is one, or a join of some.

    Each field is encoded as its kind, its length and its content, so names that come from files may contain any character.
    Fields are texts, bytes, integers, None, and nested lists or other iterables of these; others raise TypeError.
    """
    out = bytearray()
    _append(out, fields)
    return hashlib.sha256(out).hexdigest()


def _append(out: bytearray, fields: Iterable[Field]) -> None:
    n_fields = 0
    for field in fields:
        n_fields += 1
        match field:
            case str():
                data = field.encode("utf-8", "surrogatepass")
                out += b"s%d:" % len(data) + data
            case bytes():
                out += b"b%d:" % len(field) + field
            case int():
                out += b"i%d;" % field
            case None:
                out += b"n"
            case _:
                out += b"("
                _append(out, field)
    out += b")%d;" % n_fields
