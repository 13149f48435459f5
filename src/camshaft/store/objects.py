"""ObjectStore: a size-bounded store of bytes by key in a private folder, with verified reads.

An entry is one file, named by its key in a folder named by the key's first two digits: a header line with the SHA-256 of key and
data, then the data. An entry with a wrong digest, a foreign owner or write access for others is deleted, never returned.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from camshaft.errors import StoreError
from camshaft.store.files import atomic_file, is_ours, naming, private_folder, reason, remove_stale

_HEADER = b"camshaft object 1 "
_HEADER_NBYTES = len(_HEADER) + 64 + 1
_KEY = re.compile(r"[0-9a-f]{16,128}")
_FOLDER = re.compile(r"[0-9a-f]{2}")
TOUCH_SECONDS = 600  # entries used more recently keep their timestamp, so that a warm start writes nothing
# The store is listed for eviction only after this fraction of its bound was added, so that most puts are cheap.
_LIST_FRACTION = 64
# Symbolic links must not be followed, nor pipes waited for; O_BINARY exists only on Windows.
_OPEN_FLAGS = os.O_RDONLY
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT"):
    _OPEN_FLAGS |= getattr(os, _name, 0)


def _header(key: str, data: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(key.encode() + b"\n")
    digest.update(data)
    return _HEADER + digest.hexdigest().encode() + b"\n"


@dataclass(frozen=True)
class Entry:
    """A stored file; `used` is the time of its last use, exact within TOUCH_SECONDS."""

    path: Path
    nbytes: int
    used: float


@dataclass
class Counts:
    """Counts of this process since they were last collected."""

    hits: int = 0
    misses: int = 0
    added_nbytes: int = 0


def _no_process() -> float | None:
    return None


class ObjectStore:
    """At most `max_nbytes` of entries under `root`, with eviction of the least recently used ones.

    Entries that a running process may use are never evicted: `living_since` returns the start of the oldest one. `begin` is
    called before the first access. Thread- and process-safe: a reader gets a complete entry or none, and if two processes write
    one key, either entry is valid.
    """

    def __init__(
        self,
        root: Path,
        max_nbytes: int,
        *,
        begin: Callable[[], None] = lambda: None,
        living_since: Callable[[], float | None] = _no_process,
    ) -> None:
        self.root, self.max_nbytes = root, max_nbytes
        self.counts = Counts()
        self._begin, self._living_since = begin, living_since

    def path(self, key: str) -> Path:
        """The path of an entry. Raises StoreError unless the key is 16 to 128 lower-case hex digits."""
        if not _KEY.fullmatch(key):
            raise StoreError(f"{self.root}: no entry can be named {key[:80]!r}; wanted 16 to 128 hex digits")
        return self.root / key[:2] / key[2:]

    def get(self, key: str, what: str | None = None) -> bytes | None:
        """Return the data of the key, or None if it is missing. A damaged or foreign entry is deleted, with a warning if
        `what` describes it.

        Raises StoreError if an existing entry cannot be read or deleted.
        """
        path = self.path(key)
        data = self._get(path, key, what)
        if data is None:
            self.counts.misses += 1
        else:
            self.counts.hits += 1
        return data

    def _get(self, path: Path, key: str, what: str | None = None) -> bytes | None:
        try:
            content = self._read_ours(path)
        except FileNotFoundError:
            return None
        except PermissionError:  # foreign, or on Windows currently being replaced by another process
            content = None
        except OSError as error:
            if not path.is_symlink():
                raise StoreError(f"{path}: cannot be read: {reason(error)}") from error
            content = None
        if content is not None:
            data = memoryview(content)[_HEADER_NBYTES:]
            if content.startswith(_header(key, data)):
                return bytes(data)
        if what is not None:
            warnings.warn(f"{what} is rebuilt: its entry was damaged or foreign", stacklevel=4)
        self.discard(key)
        return None

    def _read_ours(self, path: Path) -> bytes | None:
        descriptor = os.open(path, _OPEN_FLAGS)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not is_ours(status):
                return None
            self._begin()
            content = os.read(descriptor, status.st_size + 1)
            while len(content) < status.st_size and (more := os.read(descriptor, status.st_size - len(content))):
                content += more
        finally:
            os.close(descriptor)
        if time.time() - status.st_mtime > TOUCH_SECONDS:
            with suppress(OSError):  # the timestamp only orders evictions; a read-only store still works
                os.utime(path)
        return content

    def discard(self, key: str) -> None:
        """Delete an entry if it exists. Raises StoreError if it cannot be deleted."""
        _remove(self.path(key), "a damaged entry")

    def put(self, key: str, data: bytes) -> None:
        """Store the data under the key, replacing an existing entry, and evict entries over the bound.

        Raises StoreError, leaving no partial entry, if the disk is full, the folder is not private, or the data exceeds the
        bound.
        """
        path, nbytes = self.path(key), len(data) + _HEADER_NBYTES
        if nbytes > self.max_nbytes:
            raise StoreError(f"{path}: an entry of {nbytes} bytes is more than the store's bound, {self.max_nbytes}")
        private_folder(self.root)
        self._begin()
        try:
            with atomic_file(path, temporary_in=self.root) as file:
                file.write(_header(key, data))
                file.write(data)
        except StoreError as error:
            # Windows cannot replace a file that is being read; the existing entry is then equally valid.
            if os.name != "nt" or not isinstance(error.__cause__, PermissionError) or self._get(path, key) != data:
                raise
        self.counts.added_nbytes += nbytes
        if self.needs_listing(self.counts.added_nbytes):
            self.evict(path)

    def needs_listing(self, added_nbytes: int) -> bool:
        """Whether enough was added since the last listing that the store may exceed its bound."""
        return added_nbytes > self.max_nbytes // _LIST_FRACTION

    def evict(self, newest: Path | None = None) -> None:
        """List the store; if it exceeds its bound, delete least recently used entries down to nine tenths of the bound, except
        `newest` and entries that a running process may use. Raises StoreError if an entry cannot be deleted."""
        self.counts.added_nbytes = 0
        self.remove_stale()
        entries = sorted(self.entries(), key=lambda entry: entry.used)
        total = sum(entry.nbytes for entry in entries)
        if total <= self.max_nbytes:
            return
        since = self._living_since()
        for entry in entries:
            in_use = since is not None and entry.used >= since - TOUCH_SECONDS
            if total <= self.max_nbytes * 9 // 10 or in_use:  # later entries were used more recently
                break
            if entry.path != newest:
                _remove(entry.path, "an entry")
                total -= entry.nbytes

    def remove_stale(self) -> None:
        """Delete temporary files that dead processes left over a day ago. Raises StoreError on failure."""
        remove_stale(self.root)

    def entries(self) -> Iterator[Entry]:
        """Every entry, including those in the flat layout of earlier versions, and files in place of a folder. Raises
        StoreError if they cannot be read."""
        yield from _files(self.root, _KEY)
        yield from _files(self.root, _FOLDER)
        for folder in _folders(self.root):
            yield from _files(folder, re.compile(r"[0-9a-f]{14,126}"))

    def digest(self) -> str:
        """A digest of all entries, which changes if one is added, changed or deleted. Raises StoreError on read errors."""
        digest = hashlib.sha256()
        for entry in sorted(self.entries(), key=lambda entry: entry.path):
            with naming(entry.path, "cannot be read"), suppress(FileNotFoundError), open(entry.path, "rb") as file:
                digest.update(f"{entry.path.name}|".encode() + file.read(_HEADER_NBYTES))
        return digest.hexdigest()

    def clear(self) -> tuple[int, int]:
        """Delete every entry; return their number and bytes. Files that other processes are writing stay. Raises StoreError."""
        n_entries, nbytes = 0, 0
        for entry in list(self.entries()):
            _remove(entry.path, "an entry")
            n_entries, nbytes = n_entries + 1, nbytes + entry.nbytes
        for folder in list(_folders(self.root)):
            with suppress(OSError):  # not empty: another file is in it, or one was just added
                folder.rmdir()
        self.remove_stale()
        return n_entries, nbytes


def _remove(path: Path, what: str) -> None:
    try:
        path.unlink(missing_ok=True)
    except PermissionError as error:
        if os.name != "nt":  # Windows cannot delete a file that another process reads
            raise StoreError(f"{path}: {what} cannot be removed: {reason(error)}") from error
    except NotADirectoryError:  # a file in place of the entry's folder
        pass
    except OSError as error:
        raise StoreError(f"{path}: {what} cannot be removed: {reason(error)}") from error


def _folders(root: Path) -> Iterator[Path]:
    for item in _listed(root):
        if _FOLDER.fullmatch(item.name) and item.is_dir(follow_symlinks=False):
            yield Path(item.path)


def _files(folder: Path, names: re.Pattern[str]) -> Iterator[Entry]:
    for item in _listed(folder):
        with suppress(FileNotFoundError):  # another process removed it
            if names.fullmatch(item.name) and not item.is_dir(follow_symlinks=False):
                status = item.stat(follow_symlinks=False)
                yield Entry(Path(item.path), status.st_size, status.st_mtime)


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    with naming(folder, "the folder cannot be read"), suppress(FileNotFoundError), os.scandir(folder) as listing:
        return list(listing)
    return []
