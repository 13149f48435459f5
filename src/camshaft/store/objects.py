"""ObjectStore: bytes by key in one private folder, checked when they are read. Kernel objects and evidence live in it.

An entry is one file named by its key, in a folder named by the key's first two digits: a header line with the SHA-256 of key and
data, then the data. Whatever does not match its digest, is not ours, or could be written by others is removed and never returned.
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
TOUCH_SECONDS = 600  # a younger entry is not touched again: a warm start writes nothing
# A process lists the store when what was added since the last time passes this part of the bound: a put lists nothing.
_PART_LISTED = 64
# A link or a pipe in an entry's place must not be followed or waited for; O_BINARY is Windows' alone.
_OPEN_FLAGS = os.O_RDONLY
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT"):
    _OPEN_FLAGS |= getattr(os, _name, 0)


def _header(key: str, data: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(key.encode() + b"\n")
    digest.update(data)
    return _HEADER + digest.hexdigest().encode() + b"\n"


@dataclass(frozen=True)
class Entry:
    """A file that is kept: `used` is when it was last read or written, within TOUCH_SECONDS."""

    path: Path
    nbytes: int
    used: float


@dataclass
class Counts:
    """What this process did since the counts were last taken."""

    hits: int = 0
    misses: int = 0
    added_nbytes: int = 0


def _nobody() -> float | None:
    return None


class ObjectStore:
    """At most `max_nbytes` of entries under `root`; the least recently used go first, but none that a process may have in use:
    `living_since` says when the oldest living one began. Safe from several threads and processes: a reader sees a whole entry
    or none, and of two writers of a key either's entry is right."""

    def __init__(
        self,
        root: Path,
        max_nbytes: int,
        *,
        begin: Callable[[], None] = lambda: None,
        living_since: Callable[[], float | None] = _nobody,
    ) -> None:
        self.root, self.max_nbytes = root, max_nbytes
        self.counts = Counts()
        self._begin, self._living_since = begin, living_since

    def path(self, key: str) -> Path:
        """Where an entry lies. StoreError unless the key is 16 to 128 lower-case hex digits."""
        if not _KEY.fullmatch(key):
            raise StoreError(f"{self.root}: no entry can be named {key[:80]!r}; wanted 16 to 128 hex digits")
        return self.root / key[:2] / key[2:]

    def get(self, key: str, what: str | None = None) -> bytes | None:
        """The data kept under the key, or None: there is none, or it was damaged or foreign and is now removed, which is a
        warning that says `what` was there, where that is given.

        StoreError when the entry is there but cannot be read or removed.
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
        if what is not None:
            warnings.warn(f"{what} is made anew: its entry was damaged or foreign", stacklevel=4)
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
            with suppress(OSError):  # the time only orders evictions, and a store that may only be read still serves
                os.utime(path)
        return content

    def discard(self, key: str) -> None:
        """Removes an entry if it is there. StoreError when it cannot be removed."""
        _remove(self.path(key), "a damaged entry")

    def put(self, key: str, data: bytes) -> None:
        """Keeps the data under the key, in place of what was there, and evicts what no longer fits.

        StoreError, with nothing half-written, when the disk is full, the folder is not ours, or the data alone is more
        than the bound.
        """
        path, nbytes = self.path(key), len(data) + _HEADER_NBYTES
        if nbytes > self.max_nbytes:
            raise StoreError(f"{path}: an entry of {nbytes} bytes is more than the store's bound, {self.max_nbytes}")
        private_folder(self.root)
        self._begin()
        try:
            with atomic_file(path, beside=self.root) as file:
                file.write(_header(key, data))
                file.write(data)
        except StoreError as error:
            # Windows refuses to replace a file that is being read: then the other process's entry serves as well.
            if os.name != "nt" or not isinstance(error.__cause__, PermissionError) or self._get(path, key) != data:
                raise
        self.counts.added_nbytes += nbytes
        if self.is_due(self.counts.added_nbytes):
            self.bound(path)

    def is_due(self, added_nbytes: int) -> bool:
        """Whether so much was added since the store was listed that it may have passed its bound."""
        return added_nbytes > self.max_nbytes // _PART_LISTED

    def bound(self, newest: Path | None = None) -> None:
        """Lists the store, and evicts where it is over its bound: the least recently used, down to nine tenths of the bound, but
        neither `newest` nor what a living process may use. StoreError when an entry cannot be removed."""
        self.counts.added_nbytes = 0
        self.remove_stale()
        entries = sorted(self.entries(), key=lambda entry: entry.used)
        total = sum(entry.nbytes for entry in entries)
        if total <= self.max_nbytes:
            return
        since = self._living_since()
        for entry in entries:
            in_use = since is not None and entry.used >= since - TOUCH_SECONDS
            if total <= self.max_nbytes * 9 // 10 or in_use:  # all that follow were used later
                break
            if entry.path != newest:
                _remove(entry.path, "an entry")
                total -= entry.nbytes

    def remove_stale(self) -> None:
        """Removes what writers that died over a day ago left unfinished. StoreError when that cannot be done."""
        remove_stale(self.root)

    def entries(self) -> Iterator[Entry]:
        """Every entry; those that an earlier version kept in no folder of their own too, and files in a folder's place.
        StoreError when they cannot be read."""
        yield from _files(self.root, _KEY)
        yield from _files(self.root, _FOLDER)
        for folder in _folders(self.root):
            yield from _files(folder, re.compile(r"[0-9a-f]{14,126}"))

    def digest(self) -> str:
        """Stands for all entries: another one where an entry came, changed or went. StoreError when they cannot be read."""
        digest = hashlib.sha256()
        for entry in sorted(self.entries(), key=lambda entry: entry.path):
            with naming(entry.path, "cannot be read"), suppress(FileNotFoundError), open(entry.path, "rb") as file:
                digest.update(f"{entry.path.name}|".encode() + file.read(_HEADER_NBYTES))
        return digest.hexdigest()

    def clear(self) -> tuple[int, int]:
        """Removes every entry; how many, and their bytes. What another process is just writing stays. StoreError as above."""
        n_entries, nbytes = 0, 0
        for entry in list(self.entries()):
            _remove(entry.path, "an entry")
            n_entries, nbytes = n_entries + 1, nbytes + entry.nbytes
        for folder in list(_folders(self.root)):
            with suppress(OSError):  # something that is no entry is in it, or just came
                folder.rmdir()
        self.remove_stale()
        return n_entries, nbytes


def _remove(path: Path, what: str) -> None:
    try:
        path.unlink(missing_ok=True)
    except PermissionError as error:
        if os.name != "nt":  # there a file that another process reads cannot be removed; it is not returned either
            raise StoreError(f"{path}: {what} cannot be removed: {reason(error)}") from error
    except NotADirectoryError:  # a file where the folder of entries should be: it holds none
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
