"""One file per op, one word each here; simple ops are rows of a family's file. Functions, tests and proofs follow from it."""

from __future__ import annotations

import functools
import threading
from importlib import import_module
from typing import TYPE_CHECKING

from camshaft.errors import BackendError

if TYPE_CHECKING:
    from camshaft.ops.op import KernelVariant, Op

# family's module -> the ops that are rows of it
_FAMILY_ROWS = {
    "binary": "add subtract multiply divide minimum maximum floor_divide remainder power",
    "unary": "negate abs exp log sqrt rsqrt square reciprocal tanh sigmoid silu gelu gelu_erf softcap erf sin cos "
    "isnan ceil trunc floor round",
    "comparison": "equal not_equal less less_equal greater greater_equal where clip logical_and logical_or logical_xor "
    "logical_not",
    "reduction": "sum mean prod max min dot",
    "argmax": "argmax argmin",
    "pieces": "concat split outer",
    "quantizing": "rms_norm_q8 residual_norm_q8 silu_multiply_q8",
}
FAMILIES: dict[str, tuple[str, ...]] = {module: tuple(rows.split()) for module, rows in _FAMILY_ROWS.items()}
_HOMES = {name: module for module, names in FAMILIES.items() for name in names}
NAMES = (
    "rms_norm",
    "layer_norm",
    "matmul",
    "rounded_matmul",
    "quantize_activations",
    "quantized_matmul",
    "embedding",
    "silu_multiply",
    "residual_norm",
    "copy",
    "gather",
    "cast",
    "transpose",
    "repeat_penalty",
    "softmax",
    "rope",
    "kv_cache_update",
    "kv_cache_quantize",
    "sample",
    "attention",
    "gated_product",
    *_HOMES,
)


@functools.cache
def get(name: str) -> Op:
    """The Op of that name. KeyError if there is none."""
    if name not in NAMES:
        raise KeyError(name)
    module = import_module(module_of(name))
    found: Op = module.OPS[name] if name in _HOMES else module.OP
    return found


def module_of(name: str) -> str:
    """The module that an op of the table is written in."""
    return f"camshaft.ops.{group_of(name)}"


def group_of(name: str) -> str:
    """The family that an op is a row of; its own name where it has a file of its own; 'chain' of a chain (ops/chain.py)."""
    return _HOMES.get(name, name.partition(" ")[0])


def all_ops() -> tuple[Op, ...]:
    """Every op, in the table's order."""
    return tuple(get(name) for name in NAMES)


# op -> (variant, the module that registers it when imported)
_registered: dict[str, tuple[tuple[KernelVariant, str], ...]] = {}
_lock = threading.Lock()


def has_registered() -> bool:
    """Whether any op has a variant from elsewhere."""
    return any(_registered.values())


def variants_of(op: Op) -> tuple[KernelVariant, ...]:
    """The op's own variants, then those registered for it from elsewhere."""
    return op.variants + tuple(variant for variant, _ in _registered.get(op.name, ()))


def home_of(op: Op, variant: KernelVariant) -> str | None:
    """The module that registers a variant from elsewhere; None for one of the op's own."""
    return next((home for held, home in _registered.get(op.name, ()) if held.name == variant.name), None)


def register_variant(op: str, variant: KernelVariant, module: str | None = None) -> None:
    """Adds a way to compute an op of camshaft. Plans made later prove it like any other and choose it where it is the fastest.

    A child process that proves the variant imports `module` (by default the one that defines `variant.build`), which must then
    register it. Registering the same variant again changes nothing. BackendError for an unknown op, what is no variant of
    backends, a name that the op has already, or a module that cannot be imported by name because it is a script.
    """
    if op not in NAMES:
        raise BackendError(f"register_variant: no op {op!r}; wanted one of {', '.join(NAMES)}")
    _check_variant(variant)
    home = module or variant.build.__module__
    if home == "__main__":
        raise BackendError(
            f"register_variant: {variant.name} is defined in a script; wanted a module that can be imported"
        )
    with _lock:
        names = {v.name: v for v in variants_of(get(op))}
        if names.get(variant.name) is variant:
            return
        if variant.name in names:
            raise BackendError(f"register_variant: {op} has a variant {variant.name!r} already")
        _registered[op] = (*_registered.get(op, ()), (variant, home))


def _check_variant(variant: KernelVariant) -> None:
    """BackendError for what nobody could choose: no name, no backends, or the names of devices for theirs."""
    from camshaft.ops.op import KernelVariant  # here: who only asks for a spec needs no ops

    if not isinstance(variant, KernelVariant) or not isinstance(variant.name, str) or not variant.name:
        raise BackendError(f"register_variant: got {variant!r}; wanted a KernelVariant with a name")
    from camshaft.backends.registry import ALIASES  # here: an op alone needs no devices

    names = variant.backends
    if not isinstance(names, (set, frozenset)) or not names or not all(isinstance(name, str) for name in names):
        raise BackendError(f"register_variant: {variant.name} is for {names!r}; wanted a frozenset of backends' names")
    for name in sorted(names):
        if name in ALIASES or ":" in name:
            backend = ALIASES.get(name, name.partition(":")[0])
            raise BackendError(
                f"register_variant: {variant.name} is for the device {name!r}; wanted its backend, {backend!r}"
            )
