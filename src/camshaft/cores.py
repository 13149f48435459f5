"""The number of cores that this process may use: its affinity mask and the CPU quota of its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_MEMBERSHIP, _MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


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
