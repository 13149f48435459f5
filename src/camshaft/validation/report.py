"""Summarize validation for `camshaft doctor`: counts by family of ops, absences by reason, what to install."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from camshaft import ops
from camshaft.backends.registry import backend_named
from camshaft.validation.cases import all_cases
from camshaft.validation.evidence import BackendValidation, ValidationResult


@dataclass(frozen=True)
class Tally:
    """Number of kernels of a family by status on one backend."""

    proved: int = 0
    failed: int = 0
    absent: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.proved + other.proved, self.failed + other.failed, self.absent + other.absent)


@dataclass(frozen=True)
class Absence:
    """Kernels that are absent for one reason; `whole` if the backend itself is, then every kernel written for it."""

    backend: str
    whole: bool
    reason: str
    n_kernels: int
    ops: tuple[str, ...]


@dataclass(frozen=True)
class Failure:
    """A kernel that failed its validation."""

    op: str
    variant: str
    backend: str
    reason: str


@dataclass(frozen=True)
class Advice:
    """A command to run, and what it adds."""

    command: str
    brings: str


Validations = Mapping[str, BackendValidation]


def families(backends: Validations) -> dict[str, dict[str, Tally]]:
    """Tallies by family of ops (a module of ops/), then by backend; without absent backends."""
    tallies: dict[str, dict[str, Tally]] = {}
    for name, validation in backends.items():
        for result in validation.results:
            row = tallies.setdefault(ops.group_of(result.op), {})
            row[name] = row.get(name, Tally()) + Tally(**{result.status: 1})
    return tallies


def absences(backends: Validations) -> tuple[Absence, ...]:
    """Absent backends, then absent kernels by backend and reason, the largest groups first."""
    whole = [
        _backend_absence(name, b.reason) for name, b in backends.items() if not b.results and b.reason and _runs(name)
    ]
    groups: dict[tuple[str, str], list[ValidationResult]] = {}
    for name, validation in backends.items():
        for v in validation.results:
            if v.status == "absent":
                groups.setdefault((name, v.reason or "no reason given"), []).append(v)
    parts = [Absence(name, False, why, len(rows), _ops(rows)) for (name, why), rows in groups.items()]
    return (*whole, *sorted(parts, key=lambda a: -a.n_kernels))


def _runs(backend: str) -> bool:
    """False for a backend that only plans: it has no kernels to validate."""
    return backend_named(backend).runs


def _backend_absence(name: str, reason: str) -> Absence:
    variant_cases = all_cases(name)
    return Absence(name, True, reason, len(variant_cases), tuple(dict.fromkeys(c.op for c in variant_cases)))


def _ops(rows: Iterable[ValidationResult]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(v.op for v in rows))


def failures(backends: Validations) -> tuple[Failure, ...]:
    """The kernels that failed."""
    rows = (v for b in backends.values() for v in b.results if v.status == "failed")
    return tuple(Failure(v.op, v.variant, v.backend, v.reason or "no reason given") for v in rows)


@dataclass(frozen=True)
class _Remedy:
    """Advice for an absent backend; `fits` says whether it applies to this machine."""

    backend: str
    fits: Callable[[], bool]
    command: str
    brings: str


def _lacks(package: str) -> Callable[[], bool]:
    return lambda: find_spec(package) is None


def _has_on_linux(package: str) -> Callable[[], bool]:
    return lambda: sys.platform == "linux" and find_spec(package) is not None


_GPU = "kernels on GPUs"
_REMEDIES = (
    _Remedy("blas", _lacks("scipy_openblas32"), "pip install 'camshaft[blas]'", "matmul and dot through OpenBLAS"),
    _Remedy("c", lambda: sys.platform == "linux", "apt install clang", "the backend c: kernels through a C compiler"),
    _Remedy("c", lambda: sys.platform == "darwin", "xcode-select --install", "the backend c"),
    _Remedy("c", lambda: sys.platform == "win32", "pip install ziglang", "the backend c"),
    _Remedy("webgpu", _lacks("wgpu"), "pip install 'camshaft[webgpu]'", f"{_GPU} of any vendor, through WebGPU"),
    _Remedy(
        "webgpu",
        _has_on_linux("wgpu"),
        "apt install mesa-vulkan-drivers",
        "WebGPU in software, or on GPUs with Mesa drivers",
    ),
    _Remedy("cuda", _lacks("cuda"), "pip install 'camshaft[cuda]'", f"{_GPU} of NVIDIA (needs the driver)"),
    _Remedy(
        "metal",
        lambda: sys.platform == "darwin" and find_spec("Metal") is None,
        "pip install 'camshaft[metal]'",
        f"{_GPU} of Apple",
    ),
)


def advice(backends: Validations) -> tuple[Advice, ...]:
    """Returns what to install for more backends; omits those that this machine cannot have."""
    lacking = {name for name, b in backends.items() if not b.results}
    return tuple(Advice(r.command, r.brings) for r in _REMEDIES if r.backend in lacking and r.fits())
