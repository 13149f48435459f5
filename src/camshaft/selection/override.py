"""Which backend is asked for: `with backend(...)`, else set_backend_override, else CAMSHAFT_BACKEND, else none."""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from camshaft.backends.registry import Backend, canonical, present_backend
from camshaft.errors import BackendError, CamshaftError
from camshaft.settings import setting
from camshaft.validation.cases import all_cases
from camshaft.validation.evidence import ValidationResult, validation_cache

_UNSET = "unset"
_context: contextvars.ContextVar[str | None] = contextvars.ContextVar("camshaft_backend", default=_UNSET)
_process: str | None = None
# Every call of `table` asks whether CAMSHAFT_BACKEND is set, and os.environ takes a microsecond to say no: CPython's has a
# dictionary beneath that says so in 30 ns. Where there is none, os.environ is asked.
_ENVIRON = os.environ
_VARIABLES: Any = getattr(_ENVIRON, "_data", _ENVIRON)
_KEY: Any = getattr(_ENVIRON, "encodekey", str)("CAMSHAFT_BACKEND")


def check_override(name: str) -> str:
    """The backend's or device's own name for a name that can be asked for ('cpu' gives 'simd', 'webgpu:1' itself).

    BackendError for an unknown name, an absent backend, or one of which the evidence says that all that it claims failed;
    MissingExtraError where an extra would bring it. What failed of a backend that has something right is select.py's: it goes
    elsewhere in sight, or is an error in strict plans.
    """
    found = present_backend(name)
    failures = _failures(found)
    if failures:
        first = f"{failures[0].op}/{failures[0].variant}: {failures[0].reason}"
        raise BackendError(f"backend {found.name!r} failed its proof: all {len(failures)} kernels did; {first}")
    return canonical(name)


def _failures(found: Backend) -> list[ValidationResult]:
    """The verdicts on all that a backend claims, where each is a failure; empty where one is not, or was not tried yet."""
    failures: list[ValidationResult] = []
    for case in all_cases(found.name):
        result = validation_cache().get(case)
        if result is None or result.status != "failed":
            return []
        failures.append(result)
    return failures


def set_backend_override(name: str | None) -> None:
    """Asks for a backend in the whole process; None for no override. Errors as check_override's."""
    global _process
    _process = None if name is None else check_override(name)


def get_backend_override() -> str | None:
    """The backend asked for here and now, None when the choice is free. Errors as check_override's, for CAMSHAFT_BACKEND."""
    local = _context.get()
    if local != _UNSET:
        return local
    if _process is not None:
        return _process
    if _KEY not in _VARIABLES and os.environ is _ENVIRON:
        return None
    wanted = setting("backend")
    return None if wanted is None else _from_environment(wanted)


@functools.cache
def _from_environment(wanted: str) -> str:
    """Checked once: every call of a table asks."""
    try:
        return check_override(wanted)
    except CamshaftError as error:
        raise BackendError(f"CAMSHAFT_BACKEND={wanted}: {error}") from error


@contextmanager
def backend(name: str | None) -> Iterator[None]:
    """with backend("scalar"): asks for a backend in this thread or task only; None frees the choice. Errors as above."""
    token = _context.set(None if name is None else check_override(name))
    try:
        yield
    finally:
        _context.reset(token)
