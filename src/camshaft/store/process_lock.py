"""Named locks, and a lease per running process: a file that it owns until it ends (file_lock.py).

Entries that a running process may have loaded are not evicted (objects.py). An entry's timestamp is at most TOUCH_SECONDS older
than its last use, so entries older than the oldest lease by more than that are not in use.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from camshaft.errors import StoreError
from camshaft.process import ForkLock, renewed, unforked
from camshaft.store.file_lock import NO_LOCKS, SAFE_FLAGS, WAIT_S, abandoned, lock_within, owned_file, try_lock
from camshaft.store.files import naming, private_folder, remove_foreign

LEASE_PREFIX = "lease-"
_skipped: set[Path] = set()  # locks that this process did not get in time: they are not waited for again


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, created in an existing folder if missing.

    A lock that another process holds for WAIT_S is skipped with a warning, and so are locks on file systems without them: of two
    concurrent writers one result is lost and computed again later. Raises StoreError if the file cannot be created.
    """
    with naming(path, "cannot be locked"):
        held = _Held(path)
    try:
        with naming(path, "cannot be locked"):
            _wait_for(held.descriptor, path)
        yield
    finally:
        held.close()


class _Held:
    """The open file of a lock. A child that another thread forks closes its copy, with which it would hold the lock too."""

    def __init__(self, path: Path) -> None:
        self._thread = threading.get_ident()
        with unforked:
            self.descriptor = _open(path)
            renewed(self)

    def close(self) -> None:
        """Release the lock."""
        with unforked:
            if self.descriptor >= 0:
                os.close(self.descriptor)
            self.descriptor = -1

    def renew(self) -> None:
        """In a forked child: release what its thread does not hold."""
        if threading.get_ident() != self._thread:
            self.close()


def _open(path: Path) -> int:
    """Open a lock's file. What is in its place and no file is removed first, if it is this user's. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | SAFE_FLAGS, 0o600)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    except OSError:
        if path.is_file() and not path.is_symlink():
            raise
    with suppress(FileNotFoundError):
        remove_foreign(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | SAFE_FLAGS, 0o600)


def _wait_for(descriptor: int, path: Path) -> None:
    try:
        if lock_within(descriptor, 0.0 if path in _skipped else WAIT_S):
            _skipped.discard(path)
            return
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return
    if path not in _skipped:
        _skipped.add(path)
        warnings.warn(f"{path}: another process holds this lock for over {WAIT_S:g} s; it is skipped", stacklevel=4)


class ProcessLeases:
    """The leases under `folder`, including this process's own once acquired."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mutex = ForkLock()
        self._own: tuple[int, Path, int] | None = None  # process id, path, file descriptor

    def acquire(self) -> None:
        """Acquire this process's lease once. Without one (read-only store, full disk, no locks) the store still works; entries
        evicted by others are rebuilt."""
        if self._own is not None and self._own[0] == os.getpid():
            return
        with self._mutex, suppress(OSError, StoreError):
            if self._own is None or self._own[0] != os.getpid():  # a forked child acquires its own
                self._own = self._take()

    def _take(self) -> tuple[int, Path, int]:
        private_folder(self.folder)
        descriptor, path = owned_file(self.folder, LEASE_PREFIX)
        try:
            try_lock(descriptor)
        except OSError:  # without locks it would be unknown that its process ended
            os.close(descriptor)
            path.unlink()
            raise
        return os.getpid(), path, descriptor

    def release(self) -> None:
        """Release the lease if this process (not its parent) acquired it."""
        own, self._own = self._own, None
        if own is not None and own[0] == os.getpid():
            with suppress(OSError):  # an unlocked lease is void; the next sweep deletes it
                os.close(own[2])
                own[1].unlink()

    def oldest(self) -> float | None:
        """The start time of the oldest running process with a lease, or None. Deletes the leases of dead processes."""
        times = [t for path in self.folder.glob(LEASE_PREFIX + "*") if (t := self._living_since(path)) is not None]
        return min(times, default=None)

    def _living_since(self, path: Path) -> float | None:
        with suppress(OSError):  # its process ended meanwhile
            since = path.lstat().st_mtime
            mine = self._own is not None and self._own[1] == path
            return since if mine or not _removed_as_dead(path) else None
        return None


def _removed_as_dead(path: Path) -> bool:
    """Delete the lease of a dead process, or what is in a lease's place and no file; False if the process is running."""
    if sys.platform == "win32":
        with suppress(PermissionError):  # open in a running process
            path.unlink()
            return True
        return False
    if not stat.S_ISREG(path.lstat().st_mode):
        remove_foreign(path)
        return True
    with abandoned(path) as is_dead:
        if is_dead:
            path.unlink()  # while locked, so that a process that is acquiring it notices
        return is_dead
