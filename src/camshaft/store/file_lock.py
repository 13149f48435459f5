"""Locks on open files, files and folders that a running process owns, and removal of those whose owner died.

A process owns a path while it holds the lock of an open descriptor of it; the operating system releases the lock when the process
ends, however it ends.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# Errors for a lock held by another process, and for unsupported locks (some network file systems).
_TAKEN = frozenset({errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK})
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})
WAIT_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02
# Where locks are unsupported, what is older than this has no owner; downloads may take hours.
_STALE_S = 24 * 3600
# Symbolic links must not be followed, nor pipes waited for; O_BINARY exists only on Windows.
SAFE_FLAGS = 0
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT"):
    SAFE_FLAGS |= getattr(os, _name, 0)


def try_lock(descriptor: int) -> bool:
    """Lock an open file. False if another process holds the lock. Raises OSError if locks are unsupported."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


def lock_within(descriptor: int, seconds: float) -> bool:
    """As `try_lock`, again and again for that long."""
    until, pause = time.monotonic() + seconds, _FIRST_PAUSE_S
    while not try_lock(descriptor):
        if time.monotonic() >= until:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    return True


def owned_file(folder: Path, prefix: str, *, private: bool = True) -> tuple[int, Path]:
    """Create a file in the folder and own it until the descriptor is closed. Without locks it has no owner. A `private` file has
    mode 0600, another one the umask's. Raises OSError."""
    while True:
        descriptor, path = _created(folder, prefix, private)
        try:
            if not _supports_locks(descriptor) or os.fstat(descriptor).st_nlink or sys.platform == "win32":
                return descriptor, path
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # a sweep removed it before it was locked


def _created(folder: Path, prefix: str, private: bool) -> tuple[int, Path]:
    if private:
        descriptor, name = tempfile.mkstemp(prefix=prefix, dir=folder)
        return descriptor, Path(name)
    while True:
        path = folder / (prefix + os.urandom(4).hex())  # as long as tempfile's
        with suppress(FileExistsError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | SAFE_FLAGS, 0o666), path


@contextmanager
def owned_folder(folder: Path, prefix: str) -> Iterator[Path]:
    """Create a folder with mode 0700 in the folder; own it during the block, and remove it after. Raises OSError."""
    while True:
        made = tempfile.TemporaryDirectory(prefix=prefix, dir=folder, ignore_cleanup_errors=True)
        with made as name, suppress(FileNotFoundError), _locked_folder(Path(name)):
            if os.path.isdir(name):  # else a sweep removed it before it was locked
                yield Path(name)
                return


@contextmanager
def work_folder(folder: Path, prefix: str) -> Iterator[Path]:
    """As owned_folder, after removing those of that prefix that killed processes left. Raises OSError."""
    names = re.compile(re.escape(prefix) + r"[a-z0-9_]{8}")  # tempfile's
    for old in folder.glob(glob.escape(prefix) + "*"):
        if names.fullmatch(old.name):
            with abandoned(old) as is_abandoned:
                if is_abandoned:
                    shutil.rmtree(old, ignore_errors=True)
    with owned_folder(folder, prefix) as made:
        yield made


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    if sys.platform == "win32":  # folders cannot be opened there
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY | SAFE_FLAGS)
    try:
        _supports_locks(descriptor)
        yield
    finally:
        os.close(descriptor)


def _supports_locks(descriptor: int) -> bool:
    """Lock a new file, which at most a sweep holds for a moment; False if locks are unsupported."""
    try:
        lock_within(descriptor, WAIT_S)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


@contextmanager
def abandoned(path: Path) -> Iterator[bool]:
    """Whether the file or folder is this user's and no running process owns it; it stays so during the block."""
    descriptor = None
    try:
        with suppress(OSError):  # removed meanwhile, a link, or foreign
            if sys.platform != "win32":
                descriptor = os.open(path, os.O_RDONLY | SAFE_FLAGS)
        yield descriptor is not None and _without_owner(descriptor) if sys.platform != "win32" else _is_old(path)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _without_owner(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    if not is_plain or (sys.platform != "win32" and status.st_uid != os.geteuid()):
        return False
    try:
        return try_lock(descriptor)
    except OSError:
        return time.time() - status.st_mtime > _STALE_S


def _is_old(path: Path) -> bool:
    with suppress(OSError):
        return time.time() - path.lstat().st_mtime > _STALE_S
    return False
