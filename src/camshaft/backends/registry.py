"""The table of backends: their names, why one is absent here, and their devices, each created once."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from camshaft.backends.blas.library import absent as blas_absent
from camshaft.backends.blas.library import blas_library
from camshaft.backends.cpu.device import CpuDevice, cpu_device
from camshaft.backends.device import Backend, Device, DeviceInfo
from camshaft.backends.installed import installed_backends
from camshaft.errors import BackendError
from camshaft.process import ForkLock


def _on_cpu(name: str, alias: str, order: tuple[str, ...], make: Callable[[], Device], *sources: str) -> Backend:
    """Returns the row of a backend whose only device is the host CPU."""

    def one(suffix: str) -> Device:
        if suffix not in ("", "0"):
            raise BackendError(f"no device {alias}:{suffix}; {alias!r} is the only one of its kind")
        return make()

    def infos() -> tuple[DeviceInfo, ...]:
        reason = blas_absent() if name == "blas" else None
        if reason is not None:
            return (DeviceInfo(alias, name, "", reason),)
        made = make()
        features = tuple(sorted(made.features)) if name == "simd" else ()
        return (DeviceInfo(alias, name, _CPU_TEXT[name], None, {"lanes": made.lanes}, features),)

    return Backend(name, order, blas_absent if name == "blas" else lambda: None, one, infos, sources)


def _blas_device() -> CpuDevice:
    blas_library()
    return dataclasses.replace(cpu_device("simd"), name="cpu:blas", backend="blas")


def _not_here(name: str) -> Backend:
    reason = f"camshaft has no {name} backend yet"

    def make(suffix: str) -> Device:
        raise BackendError(f"backend {name!r} is absent: {reason}")

    return Backend(name, (name,), lambda: reason, make, lambda: (DeviceInfo(name, name, "", reason),))


def _module_row(name: str, *sources: str, indexed: bool = True, runs: bool = True) -> Backend:
    """Returns the row of a backend whose module backends/NAME/device.py has absent(), make(index) and devices().

    The module is imported on first use. If not `indexed`, make() receives the text after the colon instead of a number.
    """

    def module() -> Any:
        return import_module(f"camshaft.backends.{name}.device")

    if not (Path(__file__).parent / name / "device.py").is_file():
        return _not_here(name)

    def absent() -> str | None:
        reason: str | None = module().absent()
        return reason

    def make(suffix: str) -> Device:
        if indexed and not _INDEX.fullmatch(suffix or "0"):
            raise BackendError(f"no device {name}:{suffix}; wanted {name} or {name}:NUMBER")
        made: Device = module().make(int(suffix or 0) if indexed else suffix)
        return made

    def infos() -> tuple[DeviceInfo, ...]:
        found: tuple[DeviceInfo, ...] = module().devices()
        return found

    return Backend(name, (name,), absent, make, infos, (*sources, f"backends/{name}/*.py"), runs=runs)


_CPU_TEXT = {
    "scalar": "the CPU, one element at a time",
    "simd": "the CPU through LLVM",
    "blas": "the CPU, products by BLAS",
}
_LLVM = ("emit/*.py", "emit/llvm/**/*.py", "backends/cpu/*.py")
_C_FAMILY = ("emit/*.py", "emit/c_family/*.py", "emit/llvm/**/*.py")
_ROWS = (
    _on_cpu("scalar", "cpu:scalar", ("scalar",), lambda: cpu_device("scalar"), *_LLVM),
    _on_cpu("simd", "cpu", ("simd",), lambda: cpu_device("simd"), *_LLVM),
    _on_cpu("blas", "cpu:blas", ("blas", "simd"), _blas_device, *_LLVM, "backends/blas/*.py"),
    _module_row("c", *_C_FAMILY, "emit/c/*.py", "backends/cpu/*.py"),
    _module_row("webgpu", *_C_FAMILY, "emit/wgsl/*.py"),
    _module_row("cuda", *_LLVM, "emit/nvptx/*.py"),
    _module_row("metal", *_C_FAMILY, "emit/msl/*.py"),
    _module_row("null", "emit/**/*.py", indexed=False, runs=False),
)
# Device names that differ from the backend's name.
ALIASES = {"cpu": "simd", "cpu:scalar": "scalar", "cpu:blas": "blas", "cpu:c": "c"}
# The backends that a plan without an override chooses from.
DEFAULT_ORDER = ("simd", "blas")
# Exactly one spelling per index, so that each device is created once.
_INDEX = re.compile("0|[1-9][0-9]{0,8}")
_lock = ForkLock()
_devices: dict[tuple[str, str], Device] = {}


@functools.cache
def backends() -> Mapping[str, Backend]:
    """Returns every backend by name: the built-in ones, then those of installed packages (entry points `camshaft.backends`).

    BackendError for an entry point that does not load, is not a Backend, or reuses a name.
    """
    rows = {row.name: row for row in _ROWS}
    for found in installed_backends({*rows, *ALIASES}):
        rows[found.name] = found
    return MappingProxyType(rows)


def _parse(name: str) -> tuple[Backend, str]:
    """Splits a name into its backend and the suffix after the colon."""
    rows = backends()
    if not isinstance(name, str):
        raise BackendError(f"no backend or device {name!r}; wanted a name, as 'cpu' or 'webgpu:1'")
    base, _, suffix = name.partition(":")
    found = rows.get(ALIASES.get(name, name))
    if found is not None:
        return found, ""
    if suffix and base in rows and base not in ("simd", "scalar", "blas", "c"):
        return rows[base], suffix
    raise BackendError(f"no backend or device {name!r}; wanted one of {', '.join((*rows, *ALIASES))}")


def backend_named(name: str) -> Backend:
    """Returns the backend with that name, or the backend of the device with that name.

    BackendError with the known names if there is none.
    """
    return _parse(name)[0]


def canonical(name: str) -> str:
    """Returns the canonical name of a device: 'simd' for 'cpu', 'webgpu' for 'webgpu:0'. Errors as `backend_named`."""
    found, suffix = _parse(name)
    return found.name if suffix in ("", "0") else f"{found.name}:{suffix}"


def present_backend(name: str) -> Backend:
    """Returns the backend if it can be used here.

    BackendError with the reason if not; MissingExtraError if an extra would install it.
    """
    found = backend_named(name)
    if found.name == "blas":
        blas_library()
    reason = found.absent()
    if reason is not None:
        raise BackendError(f"backend {found.name!r} is absent: {reason}")
    return found


def device(name: str) -> Device:
    """Returns the device with that name: 'cpu', 'cpu:c', 'webgpu', 'webgpu:1', 'cuda:0', 'metal', 'null', ...

    Each device is created once. A backend's name selects its first device. BackendError for an unknown name, or with the
    reason for a device that cannot be used.
    """
    found, suffix = _parse(name)
    key = found.name, "" if suffix == "0" else suffix
    with _lock:
        if key not in _devices:
            present_backend(found.name)
            _devices[key] = found.make(key[1])
        return _devices[key]


def devices() -> tuple[DeviceInfo, ...]:
    """Returns every device with its limits; for an absent device, the reason."""
    return tuple(info for row in backends().values() for info in row.devices())
