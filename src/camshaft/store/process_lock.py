"""Which processes live: a lease each, a locked file that the operating system lets go of when its process ends.

What a living process may have loaded is not evicted (objects.py): an entry's time is at most `TOUCH_SECONDS` older than its last
use, so nothing is in use that is older than the start of the oldest living process less that much. No list of entries is kept.
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


# What says that another has the lock (Windows: the last one, after ten seconds), and that a file system has none.
_TAKEN = frozenset({errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK})
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Takes the lock of an open file; False where another process has it and `wait` is False. OSError where there are none."""
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
    """Holds the lock of a file, made if need be in a folder that is there, against all others of the machine.

    Where the file system has no locks, as some of networks, there is none to hold: of what two processes keep at once, one's is
    then lost and made again. StoreError when the file cannot be made.
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


class Living:
    """The leases under `folder`, this process's among them once it holds one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mutex = threading.Lock()
        self._held: tuple[int, Path, int] | None = None  # process, file, its descriptor

    def hold(self) -> None:
        """Takes this process's lease unless it has one. Where none can be made (a store that may only be read, a full disk, no
        locks) there is none: the store serves as well, and what others evict is made again."""
        if self._held is not None and self._held[0] == os.getpid():
            return
        with self._mutex, suppress(OSError, StoreError):
            if self._held is None or self._held[0] != os.getpid():  # a child of a fork takes its own
                self._held = self._take()

    def _take(self) -> tuple[int, Path, int]:
        private_folder(self.folder)
        while True:
            descriptor, name = tempfile.mkstemp(prefix=LEASE_PREFIX, dir=self.folder)
            try:
                kept = _lock(descriptor, wait=True) and _is_there(descriptor)
            except OSError:
                os.close(descriptor)
                os.unlink(name)
                raise
            if kept:
                return os.getpid(), Path(name), descriptor
            os.close(descriptor)

    def release(self) -> None:
        """Gives the lease back, if this very process has one."""
        held, self._held = self._held, None
        if held is not None and held[0] == os.getpid():
            with suppress(OSError):  # unlocked it counts for nothing, and the next sweep removes it
                os.close(held[2])
                held[1].unlink()

    def oldest(self) -> float | None:
        """When the oldest living process took its lease (a file's time), None where none lives. Those of the dead are removed."""
        times = [t for path in self.folder.glob(LEASE_PREFIX + "*") if (t := self._living_since(path)) is not None]
        return min(times, default=None)

    def _living_since(self, path: Path) -> float | None:
        with suppress(FileNotFoundError):  # its process ended just now
            since = path.stat().st_mtime
            mine = self._held is not None and self._held[1] == path
            return since if mine or not _removed_as_dead(path) else None
        return None


def _is_there(descriptor: int) -> bool:
    """Whether nobody who swept removed the file before it was locked; on Windows nobody can while it is open."""
    return sys.platform == "win32" or os.fstat(descriptor).st_nlink > 0


def _removed_as_dead(path: Path) -> bool:
    """Removes the lease of a process that ended; False for one that lives."""
    if sys.platform == "win32":
        with suppress(PermissionError):  # open in a living process
            path.unlink()
            return True
        return False
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if not _lock(descriptor, wait=False):
            return False
        path.unlink()  # under its lock: one that is just being taken is then seen to be gone
        return True
    finally:
        os.close(descriptor)
