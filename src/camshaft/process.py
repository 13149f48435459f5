"""This process: its cores and threads, a pause of its garbage collector, children that end with it, and state that a fork resets.

In a child, locks that other threads of the parent may have held are free, and the work of those threads is forgotten.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from camshaft.errors import SettingError
from camshaft.settings import setting

_MEMBERSHIP, _MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


class Renewed(Protocol):
    """Something of threads that a forked child does not have."""

    def renew(self) -> None:
        """Forget the parent's other threads; called in the child, before anything else runs there."""


class Lock(Protocol):
    """A lock of `threading`."""

    def acquire(self) -> bool:
        """Wait for it and hold it."""

    def release(self) -> None:
        """Let others have it."""


L = TypeVar("L", bound=Lock)
R = TypeVar("R", bound=Renewed)
_all: WeakValueDictionary[int, Renewed] = WeakValueDictionary()  # in the order of their making


def renewed(each: R) -> R:
    """Have `each.renew()` called in every forked child, as long as it is there; returns it."""
    _all[id(each)] = each
    return each


class ForkLock:
    """A reentrant lock, free in a forked child unless the thread that forked has it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        renewed(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    @contextmanager
    def if_free(self) -> Iterator[bool]:
        """Hold the lock unless another thread has it; whether this one does."""
        lock = self._lock
        is_ours = lock.acquire(blocking=False)
        try:
            yield is_ours
        finally:
            if is_ours:
                lock.release()

    def renew(self) -> None:
        """Be free, if a thread had it that is the parent's."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


def awaited(lock: L) -> L:
    """Have forks wait until no other thread holds the lock, for what a thread must not leave half done, such as LLVM's state;
    returns it. Locks are taken in the reverse order of these calls."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


# Held while something is made, or ended, that a forked child is told of. The first of these locks, so that any other may be held.
unforked = awaited(threading.RLock())


def _in_child() -> None:
    for each in list(_all.values()):
        each.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


# Linux sends a child this signal when the thread that started it ends; elsewhere it ends when it next reads its stdin.
_END_WITH_PARENT = """import ctypes, os, runpy, signal, sys
parent, module = sys.argv[1:3]
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(parent):  # it has ended
    os._exit(1)
sys.argv[:] = [module, *sys.argv[3:]]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def python_child(module: str, *arguments: str) -> list[str]:
    """The command of a child process `python -m MODULE ARGUMENTS` that ends when this one does, also by a signal and while
    native code runs. The thread that starts it waits for it."""
    if sys.platform != "linux":
        return [sys.executable, "-m", module, *arguments]
    return [sys.executable, "-c", _END_WITH_PARENT, str(os.getpid()), module, *arguments]


def available_cores() -> int:
    """Returns the number of cores, at least 1.

    A quota of 1.5 cores counts as 1: two busy threads would use it up and then stop for the rest of each 100 ms.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min([cores, *map(int, quotas(_MEMBERSHIP, _MOUNT))]))


def quotas(membership: Path, mount: Path) -> Iterator[float]:
    """Yields the CPU quotas, in cores, of the control groups named in `membership` and of their parents; versions 1 and 2."""
    for line in _text(membership).splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = mount / "cpu" if controllers else mount
        path = PurePosixPath(group.lstrip("/"))
        for folder in (path, *path.parents):
            yield from _quota(root / folder, bool(controllers))


def _quota(folder: Path, first_version: bool) -> Iterator[float]:
    if first_version:
        words = [_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    else:
        words = _text(folder / "cpu.max").split()
    if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
        yield int(words[0]) / int(words[1])


def _text(path: Path) -> str:
    """The file's text, or nothing where this system has no such file or does not show it."""
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return ""


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable the garbage collector in the block and restore its state afterwards.

    Opening a model otherwise spends 0.08 s of 0.45 in collections that free nothing.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


limit_to_cores = True  # False in tests, which want several workers on any machine


def thread_count(requested: int | None = None) -> int:
    """The number of worker threads: `requested`, else CAMSHAFT_THREADS, at most the cores available to this process; by
    default all of these. More workers than cores would wait for each other."""
    is_number = isinstance(requested, int) and not isinstance(requested, bool)
    if requested is not None and not (is_number and 1 <= requested <= 1024):
        raise SettingError(f"threads={requested!r}: wanted 1 to 1024")
    cores, wanted = available_cores(), requested or setting("threads")
    return cores if wanted is None else min(wanted, cores) if limit_to_cores else wanted


@functools.cache
def eager_threads() -> int:
    """The worker threads of eager calls, found once: the number of cores is in files."""
    return thread_count()
