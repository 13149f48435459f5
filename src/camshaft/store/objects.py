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

from camshaft.errors import StoreError, reason_of
from camshaft.store.entries import Entry, entries_under, folders_of, is_replaced, make_place, remove_entry
from camshaft.store.file_lock import SAFE_FLAGS
from camshaft.store.files import (
    Field,
    atomic_file,
    digest_of,
    is_ours,
    private_folder,
    read_regular,
    remove_unfinished,
)

_HEADER = b"camshaft object 1 "
HEADER_NBYTES = len(_HEADER) + 64 + 1
_KEY = re.compile(r"[0-9a-f]{16,128}")
TOUCH_SECONDS = 600  # entries used more recently keep their timestamp, so that a warm start writes nothing
# The store is listed for eviction only after this fraction of its bound was added, so that most puts are cheap.
_LIST_FRACTION = 64


def _header(key: str, data: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(key.encode() + b"\n")
    digest.update(data)
    return _HEADER + digest.hexdigest().encode() + b"\n"


@dataclass
class Counts:
    """Counts of this process since they were last collected."""

    hits: int = 0
    misses: int = 0
    added_nbytes: int = 0


def _no_process() -> float | None:
    return None


def _raise(error: StoreError) -> None:
    raise error


class ObjectStore:
    """At most `max_nbytes` of entries under `root`, with eviction of the least recently used ones.

    Entries that a running process may use are never evicted: `living_since` returns the start of the oldest one. `begin` is
    called before the first access. Thread- and process-safe: a reader gets a complete entry or none, and if two processes write
    one key, either entry is valid.

    `failed` is called with the StoreError if the folder cannot be read or written, and by default raises it. If it returns, an
    entry that could not be written is in memory, and one that could not be read is missing.
    """

    def __init__(
        self,
        root: Path,
        max_nbytes: int,
        *,
        begin: Callable[[], None] = lambda: None,
        living_since: Callable[[], float | None] = _no_process,
        failed: Callable[[StoreError], None] = _raise,
    ) -> None:
        self.root, self.max_nbytes = root, max_nbytes
        self.counts = Counts()
        self._begin, self._living_since, self._failed = begin, living_since, failed
        self._memory: dict[str, bytes] = {}  # entries that could not be written

    def path(self, key: str) -> Path:
        """The path of an entry. Raises StoreError unless the key is 16 to 128 lower-case hex digits."""
        if not _KEY.fullmatch(key):
            raise StoreError(f"{self.root}: no entry can be named {key[:80]!r}; wanted 16 to 128 hex digits")
        return self.root / key[:2] / key[2:]

    def get(self, key: str, what: str | None = None) -> bytes | None:
        """Return the data of the key, or None if it is missing. A damaged or foreign entry is deleted, with a warning if
        `what` describes it.

        Calls `failed` if an existing entry cannot be read or deleted.
        """
        path, data = self.path(key), self._memory.get(key)
        try:
            data = self._get(path, key, what) if data is None else data
        except StoreError as error:
            self._failed(error)
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
            if is_replaced(path.parent):  # the next `put` mends it
                return None
            if not path.is_symlink():
                raise StoreError(f"{path}: cannot be read: {reason_of(error)}") from error
            content = None
        if content is not None:
            data = memoryview(content)[HEADER_NBYTES:]
            if content.startswith(_header(key, data)):
                return bytes(data)
        remove_entry(path, "a damaged entry")
        if what is not None:
            warnings.warn(f"{what} is rebuilt: its entry was damaged or foreign", stacklevel=4)
        return None

    def _read_ours(self, path: Path) -> bytes | None:
        descriptor = os.open(path, os.O_RDONLY | SAFE_FLAGS)
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
        """Delete an entry if it exists. Calls `failed` if it cannot be deleted."""
        self._memory.pop(key, None)
        try:
            remove_entry(self.path(key), "a damaged entry")
        except StoreError as error:
            self._failed(error)

    def put(self, key: str, data: bytes) -> None:
        """Store the data under the key, replacing an existing entry, and evict entries over the bound.

        Calls `failed`, leaving no partial entry, if the disk is full or the folder is not private. Raises StoreError if the data
        exceeds the bound.
        """
        path, nbytes = self.path(key), len(data) + HEADER_NBYTES
        if nbytes > self.max_nbytes:
            raise StoreError(f"{path}: an entry of {nbytes} bytes is more than the store's bound, {self.max_nbytes}")
        try:
            self._write(path, key, data)
        except StoreError as error:
            self._failed(error)
            self._memory[key] = data
            return
        self._memory.pop(key, None)
        self.counts.added_nbytes += nbytes
        if self.needs_listing(self.counts.added_nbytes):
            self.evict(path)

    def _write(self, path: Path, key: str, data: bytes) -> None:
        private_folder(self.root)
        self._begin()
        try:
            make_place(path)
            with atomic_file(path, temporary_in=self.root) as file:
                file.write(_header(key, data))
                file.write(data)
        except StoreError as error:
            # Windows cannot replace a file that is being read; the existing entry is then equally valid.
            if os.name != "nt" or not isinstance(error.__cause__, PermissionError) or self._get(path, key) != data:
                raise

    def needs_listing(self, added_nbytes: int) -> bool:
        """Whether enough was added since the last listing that the store may exceed its bound."""
        return added_nbytes > self.max_nbytes // _LIST_FRACTION

    def evict(self, newest: Path | None = None) -> None:
        """List the store; if it exceeds its bound, delete least recently used entries down to nine tenths of the bound, except
        `newest` and entries that a running process may use. Calls `failed` if an entry cannot be deleted."""
        self.counts.added_nbytes = 0
        try:
            self._evict(newest)
        except StoreError as error:
            self._failed(error)

    def _evict(self, newest: Path | None) -> None:
        self.remove_unfinished()
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
                remove_entry(entry.path, "an entry")
                total -= entry.nbytes

    def remove_unfinished(self) -> None:
        """Delete the temporary files of dead processes."""
        remove_unfinished(self.root)

    def entries(self) -> Iterator[Entry]:
        """Every entry. Raises StoreError if they cannot be read."""
        return entries_under(self.root)

    def digest(self) -> str:
        """A digest of all entries, which changes if one is added, changed or deleted."""
        rows: list[Field] = [(key, _header(key, data)) for key, data in sorted(self._memory.items())]
        try:
            paths = sorted(entry.path for entry in self.entries())
        except StoreError as error:
            self._failed(error)
            paths = []
        for path in paths:
            with suppress(OSError):  # removed meanwhile, or not readable: then it is not an entry
                rows.append((path.name, read_regular(path, HEADER_NBYTES)))
        return digest_of(rows)

    def clear(self) -> tuple[int, int]:
        """Delete every entry; return their number and bytes. Files that other processes are writing stay. Raises StoreError."""
        n_entries, nbytes = 0, 0
        self._memory.clear()
        for entry in list(self.entries()):
            remove_entry(entry.path, "an entry")
            n_entries, nbytes = n_entries + 1, nbytes + entry.nbytes
        for folder in list(folders_of(self.root)):
            with suppress(OSError):  # not empty: another file is in it, or one was just added
                folder.rmdir()
        self.remove_unfinished()
        return n_entries, nbytes
