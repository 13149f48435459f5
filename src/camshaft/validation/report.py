"""A validation in the large, for people: counts by family of ops, absences by reason, and what to install. Used by doctor."""

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
    """How many kernels of a family stand how on a backend."""

    proved: int = 0
    failed: int = 0
    absent: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.proved + other.proved, self.failed + other.failed, self.absent + other.absent)


@dataclass(frozen=True)
class Absence:
    """Kernels that are not there for one reason: of a backend that is absent as a whole, all that are written for it."""

    backend: str
    whole: bool
    reason: str
    n_kernels: int
    ops: tuple[str, ...]


@dataclass(frozen=True)
class Failure:
    """A kernel that did not pass its proof."""

    op: str
    variant: str
    backend: str
    reason: str


@dataclass(frozen=True)
class Advice:
    """A command, and what it brings."""

    command: str
    brings: str


Validations = Mapping[str, BackendValidation]


def families(found: Validations) -> dict[str, dict[str, Tally]]:
    """Family of ops (a file of ops/, so many ops of one kind) -> backend -> tally; backends that are absent left out."""
    made: dict[str, dict[str, Tally]] = {}
    for name, validation in found.items():
        for result in validation.results:
            row = made.setdefault(ops.group_of(result.op), {})
            row[name] = row.get(name, Tally()) + Tally(**{result.status: 1})
    return made


def absences(found: Validations) -> tuple[Absence, ...]:
    """Backends that are absent as a whole, then absent kernels by backend and reason, the most numerous first."""
    whole = [_whole(name, b.reason) for name, b in found.items() if not b.results and b.reason and _runs(name)]
    groups: dict[tuple[str, str], list[ValidationResult]] = {}
    for name, validation in found.items():
        for v in validation.results:
            if v.status == "absent":
                groups.setdefault((name, v.reason or "no reason given"), []).append(v)
    parts = [Absence(name, False, why, len(rows), _ops(rows)) for (name, why), rows in groups.items()]
    return (*whole, *sorted(parts, key=lambda a: -a.n_kernels))


def _runs(backend: str) -> bool:
    """False for one that only plans, and so lacks nothing."""
    return backend_named(backend).runs


def _whole(name: str, reason: str) -> Absence:
    variant_cases = all_cases(name)
    return Absence(name, True, reason, len(variant_cases), tuple(dict.fromkeys(c.op for c in variant_cases)))


def _ops(rows: Iterable[ValidationResult]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(v.op for v in rows))


def failures(found: Validations) -> tuple[Failure, ...]:
    """What failed, each with its evidence."""
    rows = (v for b in found.values() for v in b.results if v.status == "failed")
    return tuple(Failure(v.op, v.variant, v.backend, v.reason or "no reason given") for v in rows)


@dataclass(frozen=True)
class _Remedy:
    """Advice for a backend that is absent; `fits` says whether it would help here."""

    backend: str
    fits: Callable[[], bool]
    command: str
    brings: str


def _lacks(package: str) -> Callable[[], bool]:
    return lambda: find_spec(package) is None


def _has_on_linux(package: str) -> Callable[[], bool]:
    return lambda: sys.platform == "linux" and find_spec(package) is not None


_GPU = "kernels on a GPU"
_REMEDIES = (
    _Remedy("blas", _lacks("scipy_openblas32"), "pip install 'camshaft[blas]'", "matmul and dot through OpenBLAS"),
    _Remedy("c", lambda: sys.platform == "linux", "apt install clang", "the backend c: kernels through a C compiler"),
    _Remedy("c", lambda: sys.platform == "darwin", "xcode-select --install", "the backend c"),
    _Remedy("c", lambda: sys.platform == "win32", "pip install ziglang", "the backend c"),
    _Remedy("webgpu", _lacks("wgpu"), "pip install 'camshaft[webgpu]'", f"{_GPU} of any make, by WebGPU"),
    _Remedy(
        "webgpu", _has_on_linux("wgpu"), "apt install mesa-vulkan-drivers", "WebGPU in software, or on Mesa's GPUs"
    ),
    _Remedy("cuda", _lacks("cuda"), "pip install 'camshaft[cuda]'", f"{_GPU} of NVIDIA, with NVIDIA's driver"),
    _Remedy(
        "metal",
        lambda: sys.platform == "darwin" and find_spec("Metal") is None,
        "pip install 'camshaft[metal]'",
        f"{_GPU} of Apple",
    ),
)


def advice(found: Validations) -> tuple[Advice, ...]:
    """What to install to get more here; nothing for a backend that this machine cannot have."""
    lacking = {name for name, b in found.items() if not b.results}
    return tuple(Advice(r.command, r.brings) for r in _REMEDIES if r.backend in lacking and r.fits())
