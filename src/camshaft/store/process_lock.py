"""File locks, and a lease per running process: a locked file, released by the operating system when the process ends.

Entries that a running process may have loaded are not evicted (objects.py). An entry's timestamp is at most TOUCH_SECONDS older
than its last use, so entries older than the oldest lease by more than that are not in use.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from camshaft.errors import StoreError
from camshaft.store.files import naming, private_folder

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LEASE_PREFIX = "lease-"


# Errors for a lock held by another process (on Windows the last one, after ten seconds), and for unsupported locks.
_TAKEN = frozenset({errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK})
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Lock an open file. False if another process holds the lock and `wait` is False. Raises OSError if unsupported."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, created in an existing folder if missing.

    On file systems without locks (some network file systems) it does not lock: of two concurrent writers one result is lost and
    computed again later. Raises StoreError if the file cannot be created.
    """
    with naming(path, "cannot be locked"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        with naming(path, "cannot be locked"):
            _wait_for(descriptor)
        yield
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int) -> None:
    try:
        while not _lock(descriptor, wait=True):
            pass
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


class ProcessLeases:
    """The leases under `folder`, including this process's own once acquired."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mutex = threading.Lock()
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
        while True:
            descriptor, name = tempfile.mkstemp(prefix=LEASE_PREFIX, dir=self.folder)
            try:
                is_locked = _lock(descriptor, wait=True) and _still_exists(descriptor)
            except OSError:
                os.close(descriptor)
                os.unlink(name)
                raise
            if is_locked:
                return os.getpid(), Path(name), descriptor
            os.close(descriptor)

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
        with suppress(FileNotFoundError):  # its process ended meanwhile
            since = path.stat().st_mtime
            mine = self._own is not None and self._own[1] == path
            return since if mine or not _removed_as_dead(path) else None
        return None


def _still_exists(descriptor: int) -> bool:
    """Whether no sweep deleted the file before it was locked; on Windows an open file cannot be deleted."""
    return sys.platform == "win32" or os.fstat(descriptor).st_nlink > 0


def _removed_as_dead(path: Path) -> bool:
    """Delete the lease of a dead process; False if the process is running."""
    if sys.platform == "win32":
        with suppress(PermissionError):  # open in a running process
            path.unlink()
            return True
        return False
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if not _lock(descriptor, wait=False):
            return False
        path.unlink()  # while locked, so that a process that is acquiring it notices
        return True
    finally:
        os.close(descriptor)
