"""The backend override: `with backend(...)`, else set_backend_override, else CAMSHAFT_BACKEND, else none."""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from camshaft.backends.device import Backend
from camshaft.backends.registry import canonical, present_backend
from camshaft.errors import BackendError, CamshaftError
from camshaft.settings import setting
from camshaft.validation.cases import all_cases
from camshaft.validation.evidence import ValidationResult, validation_cache

_UNSET = "unset"
_context: contextvars.ContextVar[str | None] = contextvars.ContextVar("camshaft_backend", default=_UNSET)
_process: str | None = None
# `table` checks CAMSHAFT_BACKEND on every call. os.environ takes a microsecond to report an unset variable; CPython's
# underlying dictionary takes 30 ns. Other Pythons use os.environ.
_ENVIRON = os.environ
_VARIABLES: Any = getattr(_ENVIRON, "_data", _ENVIRON)
_KEY: Any = getattr(_ENVIRON, "encodekey", str)("CAMSHAFT_BACKEND")


def check_override(name: str) -> str:
    """Return the canonical name of a backend or device ('cpu' gives 'simd'; 'webgpu:1' itself).

    Raises BackendError for an unknown name, an absent backend, or one whose kernels all failed validation; MissingExtraError
    if an extra would provide it. A backend of which only some kernels failed is accepted: selection deals with those.
    """
    wanted = present_backend(name)
    failures = _failures(wanted)
    if failures:
        first = f"{failures[0].op}/{failures[0].variant}: {failures[0].reason}"
        raise BackendError(f"backend {wanted.name!r} failed validation: all {len(failures)} kernels did; {first}")
    return canonical(name)


def _failures(backend: Backend) -> list[ValidationResult]:
    """The results of all of a backend's cases if every one failed; empty if any did not or was not tried."""
    failures: list[ValidationResult] = []
    for case in all_cases(backend.name):
        result = validation_cache().get(case)
        if result is None or result.status != "failed":
            return []
        failures.append(result)
    return failures


def set_backend_override(name: str | None) -> None:
    """Set the backend for the whole process, or None for no override. Raises as `check_override` does."""
    global _process
    _process = None if name is None else check_override(name)


def get_backend_override() -> str | None:
    """The backend override in this context, or None. Raises as `check_override` does, for CAMSHAFT_BACKEND."""
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
    """Check the variable's value once: every call of a table reads the override."""
    try:
        return check_override(wanted)
    except CamshaftError as error:
        raise BackendError(f"CAMSHAFT_BACKEND={wanted}: {error}") from error


@contextmanager
def backend(name: str | None) -> Iterator[None]:
    """Override the backend in this thread or task; None removes the override. Raises as `check_override` does."""
    token = _context.set(None if name is None else check_override(name))
    try:
        yield
    finally:
        _context.reset(token)
