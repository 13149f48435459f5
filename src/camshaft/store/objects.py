"""ObjectStore: bytes by key in one private folder, checked when they are read. Kernel objects and evidence live in it.

An entry is one file named by its key: a header line with the SHA-256 of key and data, then the data. Whatever does not
match its digest, is not ours, or could be written by others is removed and never returned.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from camshaft.errors import StoreError
from camshaft.store.files import atomic_file, is_ours, naming, private_folder, reason, remove_stale

_HEADER = b"camshaft object 1 "
_HEADER_NBYTES = len(_HEADER) + 64 + 1
_KEY = re.compile(r"[0-9a-f]{16,128}")
_TOUCH_SECONDS = 60  # a younger entry is not touched again: a warm start writes nothing
# A link or a pipe in an entry's place must not be followed or waited for; O_BINARY is Windows' alone.
_OPEN_FLAGS = os.O_RDONLY
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT"):
    _OPEN_FLAGS |= getattr(os, _name, 0)


def _header(key: str, data: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(key.encode() + b"\n")
    digest.update(data)
    return _HEADER + digest.hexdigest().encode() + b"\n"


@dataclass(frozen=True)
class _Listed:
    path: Path
    nbytes: int
    used: float


class ObjectStore:
    """At most `max_nbytes` of entries under `root`; the least recently used go first. Safe from several threads and
    processes: a reader sees a whole entry or none, and of two writers of a key either's entry is right."""

    def __init__(self, root: Path, max_nbytes: int) -> None:
        self.root, self.max_nbytes = root, max_nbytes
        # Of all entries, as far as this process knows; None before the first listing. Without a lock (a fork could
        # leave it held): an addition lost to another thread only puts off the next listing.
        self._nbytes: int | None = None

    def path(self, key: str) -> Path:
        """Where an entry lies. StoreError unless the key is 16 to 128 lower-case hex digits."""
        if not _KEY.fullmatch(key):
            raise StoreError(f"{self.root}: no entry can be named {key[:80]!r}; wanted 16 to 128 hex digits")
        return self.root / key

    def get(self, key: str) -> bytes | None:
        """The data kept under the key, or None: there is none, or it was damaged or foreign and is now removed.

        StoreError when the entry is there but cannot be read or removed.
        """
        path = self.path(key)
        try:
            content = self._read_ours(path)
        except FileNotFoundError:
            return None
        except PermissionError:  # foreign, or on Windows one that another process is just replacing
            content = None
        except OSError as error:
            if not path.is_symlink():
                raise StoreError(f"{path}: cannot be read: {reason(error)}") from error
            content = None
        if content is not None:
            data = memoryview(content)[_HEADER_NBYTES:]
            if content.startswith(_header(key, data)):
                return bytes(data)
        self.discard(key)
        return None

    def _read_ours(self, path: Path) -> bytes | None:
        descriptor = os.open(path, _OPEN_FLAGS)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not is_ours(status):
                return None
            with open(descriptor, "rb", buffering=0, closefd=False) as file:
                content = file.readall()
        finally:
            os.close(descriptor)
        if time.time() - status.st_mtime > _TOUCH_SECONDS:
            with suppress(OSError):  # the time only orders evictions, and a store that may only be read still serves
                os.utime(path)
        return content

    def discard(self, key: str) -> None:
        """Removes an entry if it is there. StoreError when it cannot be removed."""
        path = self.path(key)
        try:
            path.unlink(missing_ok=True)
        except PermissionError as error:
            if os.name != "nt":  # there a file that another process reads cannot be removed; it is not returned either
                raise StoreError(f"{path}: a damaged entry cannot be removed: {reason(error)}") from error
        except OSError as error:
            raise StoreError(f"{path}: a damaged entry cannot be removed: {reason(error)}") from error

    def put(self, key: str, data: bytes) -> None:
        """Keeps the data under the key, in place of what was there, and evicts what no longer fits.

        StoreError, with nothing half-written, when the disk is full, the folder is not ours, or the data alone is more
        than the bound.
        """
        path, nbytes = self.path(key), len(data) + _HEADER_NBYTES
        if nbytes > self.max_nbytes:
            raise StoreError(f"{path}: an entry of {nbytes} bytes is more than the store's bound, {self.max_nbytes}")
        private_folder(self.root)
        try:
            with atomic_file(path) as file:
                file.write(_header(key, data))
                file.write(data)
        except StoreError as error:
            # Windows refuses to replace a file that is being read: then the other process's entry serves as well.
            if os.name != "nt" or not isinstance(error.__cause__, PermissionError) or self.get(key) != data:
                raise
        self._bound(path, nbytes)

    def _bound(self, newest: Path, nbytes: int) -> None:
        if self._nbytes is None:
            remove_stale(self.root)
            total = sum(entry.nbytes for entry in self._entries())
        else:
            total = self._nbytes + nbytes
        self._nbytes = self._evict(newest) if total > self.max_nbytes else total

    def _entries(self) -> list[_Listed]:
        entries = []
        with naming(self.root, "the folder cannot be read"), os.scandir(self.root) as listing:
            for item in listing:
                with suppress(FileNotFoundError):  # another process removed it
                    if _KEY.fullmatch(item.name):
                        status = item.stat(follow_symlinks=False)
                        entries.append(_Listed(Path(item.path), status.st_size, status.st_mtime))
        return entries

    def _evict(self, newest: Path) -> int:
        # Down to nine tenths of the bound, so that not every following put has to list the folder.
        entries = sorted(self._entries(), key=lambda entry: entry.used)
        total, wanted = sum(entry.nbytes for entry in entries), self.max_nbytes * 9 // 10
        for entry in entries:
            if total <= wanted:
                break
            if entry.path != newest:
                self.discard(entry.path.name)
                total -= entry.nbytes
        return total
