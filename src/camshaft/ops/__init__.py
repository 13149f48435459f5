"""One file per op, one word each here. OPS is the table from which functions, tests, benchmarks and proofs follow."""

from __future__ import annotations

import functools
import threading
from importlib import import_module

from camshaft.errors import BackendError
from camshaft.ops.op import KernelVariant, Op

NAMES = (
    "rms_norm",
    "matmul",
    "quantize_activations",
    "quantized_matmul",
    "embedding",
    "add",
    "multiply",
    "silu",
    "silu_multiply",
    "residual_norm",
    "copy",
    "gather",
    "argmax",
    "repeat_penalty",
    "softmax",
    "rope",
    "kv_cache_update",
    "sample",
    "attention",
)


@functools.cache
def get(name: str) -> Op:
    """The Op of that name. KeyError if there is none."""
    if name not in NAMES:
        raise KeyError(name)
    found: Op = import_module(f"camshaft.ops.{name}").OP
    return found


def all_ops() -> tuple[Op, ...]:
    """Every op, in the table's order."""
    return tuple(get(name) for name in NAMES)


_registered: dict[str, tuple[KernelVariant, ...]] = {}
_lock = threading.Lock()


def variants_of(op: Op) -> tuple[KernelVariant, ...]:
    """The op's own variants, then those registered for it from elsewhere."""
    return op.variants + _registered.get(op.name, ())


def register_variant(op: str, variant: KernelVariant) -> None:
    """Adds a way to compute an op of camshaft. Plans made later prove it like any other and choose it where it is the fastest.

    Call it while the module that defines `variant.build` is imported: a child process that proves the variant imports that
    module. Registering an equal variant again changes nothing. BackendError for an unknown op, a name that the op has already,
    or a build that was defined in a script or a notebook.
    """
    if op not in NAMES:
        raise BackendError(f"register_variant: no op {op!r}; wanted one of {', '.join(NAMES)}")
    if variant.build.__module__ == "__main__":
        raise BackendError(
            f"register_variant: {variant.name} is defined in a script; wanted a module that can be imported"
        )
    with _lock:
        names = {v.name: v for v in variants_of(get(op))}
        if names.get(variant.name) is variant:
            return
        if variant.name in names:
            raise BackendError(f"register_variant: {op} has a variant {variant.name!r} already")
        _registered[op] = (*_registered.get(op, ()), variant)
