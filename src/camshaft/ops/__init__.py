"""One file per op, one word each here. OPS is the table from which functions, tests, benchmarks and proofs follow."""

from __future__ import annotations

import functools
from importlib import import_module

from camshaft.ops.op import Op

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
