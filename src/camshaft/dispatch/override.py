"""Which backend is asked for: `with backend(...)`, else set_backend_override, else CAMSHAFT_BACKEND, else none."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager

from camshaft import ops
from camshaft.backends.registry import Backend, canonical, present_backend
from camshaft.dispatch.claims import claim_of
from camshaft.dispatch.evidence import ledger
from camshaft.errors import BackendError, CamshaftError
from camshaft.ops.op import Op
from camshaft.settings import settings

_UNSET = "unset"
_context: contextvars.ContextVar[str | None] = contextvars.ContextVar("camshaft_backend", default=_UNSET)
_process: str | None = None


def check_override(name: str) -> str:
    """The backend's or device's own name for a name that can be asked for ('cpu' gives 'simd', 'webgpu:1' itself).

    BackendError for an unknown name, an absent backend, or one of which the evidence says that every variant of some op
    failed; MissingExtraError where an extra would bring it.
    """
    found = present_backend(name)
    for op in ops.all_ops():
        failures = _failures(found, op)
        if failures:
            raise BackendError(f"backend {found.name!r} failed its proof of {op.name}: {'; '.join(failures)}")
    return canonical(name)


def _failures(found: Backend, op: Op) -> list[str]:
    """Why every variant of an op on the backend failed; empty when one did not, or was not tried yet."""
    variants = [v for v in ops.variants_of(op) if found.name in v.backends]
    verdicts = [ledger().get(claim_of(op, v, found.name)) for v in variants]
    known = [v for v in verdicts if v is not None and v.status == "failed"]
    return [f"{v.variant}: {v.reason}" for v in known] if len(known) == len(variants) else []


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
    wanted = settings().backend
    if wanted is None:
        return None
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
