"""The backends by name: which there are, why one is absent here, and the device of each. Top of backends/."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from camshaft.backends.blas.library import absent as blas_absent
from camshaft.backends.blas.library import blas_library
from camshaft.backends.cpu.device import CpuDevice, cpu_device
from camshaft.errors import BackendError


@dataclass(frozen=True)
class Backend:
    """A kind of target. `absent` gives None, or why it cannot be used here; `order` the backends to take an op's variants
    from: those of the first that the op speaks of at all."""

    name: str
    order: tuple[str, ...]
    absent: Callable[[], str | None]
    device: Callable[[], CpuDevice]


def _blas_device() -> CpuDevice:
    blas_library()
    return dataclasses.replace(cpu_device("simd"), name="cpu:blas", backend="blas")


def _not_here(name: str) -> Backend:
    reason = f"camshaft has no {name} backend yet"

    def device() -> CpuDevice:
        raise BackendError(f"backend {name!r} is absent: {reason}")

    return Backend(name, (name,), lambda: reason, device)


_ROWS = (
    Backend("scalar", ("scalar",), lambda: None, lambda: cpu_device("scalar")),
    Backend("simd", ("simd",), lambda: None, lambda: cpu_device("simd")),
    Backend("blas", ("blas", "simd"), blas_absent, _blas_device),
    *(_not_here(name) for name in ("webgpu", "cuda", "metal")),
)
BACKENDS: dict[str, Backend] = {row.name: row for row in _ROWS}
# Names of devices that `--backend` takes too.
DEVICES = {"cpu": "simd", "cpu:scalar": "scalar", "cpu:blas": "blas"}
# What a plan without an override chooses from.
DEFAULT_ORDER = ("simd", "blas")


def backend_named(name: str) -> Backend:
    """The backend of that name, or that a device belongs to. BackendError that lists the names if there is none."""
    found = BACKENDS.get(DEVICES.get(name, name))
    if found is None:
        raise BackendError(f"no backend {name!r}; wanted one of {', '.join((*BACKENDS, *DEVICES))}")
    return found


def present_backend(name: str) -> Backend:
    """The backend, which can be used here. BackendError with the reason if not; MissingExtraError where an extra brings it."""
    found = backend_named(name)
    if found.name == "blas":
        blas_library()
    reason = found.absent()
    if reason is not None:
        raise BackendError(f"backend {found.name!r} is absent: {reason}")
    return found
