"""Find the backends of installed packages by their entry points, and name the package in their errors."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Collection, Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from camshaft.backends.device import Backend, Device, DeviceInfo
from camshaft.errors import BackendError, CamshaftError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "camshaft.backends"
_SUFFIXES = (".dist-info", ".egg-info")


def installed_backends(taken: Collection[str]) -> list[Backend]:
    """Returns the backends of installed packages.

    BackendError for an entry point that does not load, is not a Backend, or has a name in `taken` or of an earlier one.
    """
    rows: dict[str, Backend] = {}
    for point in entry_points(ENTRY_POINTS):
        found = _called(f"the entry point {point.value}", point.load)
        if not isinstance(found, Backend):
            raise BackendError(f"the entry point {point.value} is a {type(found).__name__}; wanted a camshaft Backend")
        if found.name in rows or found.name in taken:
            raise BackendError(f"the entry point {point.value} brings a backend {found.name!r}, which there is already")
        rows[found.name] = _guarded(found)
    return list(rows.values())


def entry_points(group: str) -> Iterable[EntryPoint]:
    """Returns a group's entry points. Importing importlib.metadata takes 20 to 30 ms, scanning the files 1 ms."""
    if not _may_be_named(group):
        return ()
    from importlib.metadata import entry_points as found

    return found(group=group)


def _may_be_named(group: str) -> bool:
    """Returns False only if no installed package's entry_points.txt can contain the group."""
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return True
    return any(_names_in(folder or os.curdir, group) for folder in sys.path)


def _names_in(folder: str, group: str) -> bool:
    if not os.path.isdir(folder):
        return os.path.exists(folder)  # a zip archive is not searched
    with os.scandir(folder) as entries:
        packages = [entry.path for entry in entries if entry.name.endswith(_SUFFIXES)]
    files = (Path(package, "entry_points.txt") for package in packages)
    return any(group.encode() in file.read_bytes() for file in files if file.is_file())


def _guarded(row: Backend) -> Backend:
    """Wraps a third-party backend: its errors name it, and if it cannot list its devices, its row shows the reason."""
    whose = f"backend {row.name!r}"

    def make(suffix: str) -> Device:
        made = _called(whose, row.make, suffix)
        if not hasattr(made, "lanes"):
            raise BackendError(f"{whose} made {type(made).__name__} as the device {suffix!r}; wanted a camshaft Device")
        return cast(Device, made)

    def infos() -> tuple[DeviceInfo, ...]:
        try:
            found = _called(whose, lambda: tuple(row.devices()))
        except BackendError as error:
            return (DeviceInfo(row.name, row.name, "", str(error)),)
        wrong = next((info for info in found if not isinstance(info, DeviceInfo)), None)
        reason = f"{whose} listed {wrong!r} among its devices; wanted DeviceInfo"
        return found if wrong is None else (DeviceInfo(row.name, row.name, "", reason),)

    return dataclasses.replace(row, make=make, devices=infos, absent=lambda: _called(whose, row.absent))


def _called(whose: str, function: Callable[..., Any], *args: object) -> Any:
    try:
        return function(*args)
    except CamshaftError:
        raise
    except Exception as error:
        raise BackendError(f"{whose} failed: {type(error).__name__}: {error}") from error
