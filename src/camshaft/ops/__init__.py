"""One file per op, one word each here. OPS is the table from which functions, tests, benchmarks and proofs follow."""

from __future__ import annotations

import functools
from importlib import import_module

from camshaft.ops.op import Op

NAMES = ("rms_norm",)


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
