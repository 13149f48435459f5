"""The table of atomics: what each does to an element, and its lowering on each target.

Cells are indexed by the element's kind ('i', 'u', 'f'). An LLVM or PTX cell is the operation of `atomicrmw`, or "cmpxchg". A
C-family cell is a template, or "expand:NAME" for the function NAME + "_" + dtype of the dialect's file. In a template {0} is
the element's address (WGSL: a pointer to an atomic, so the whole array is declared as atomics), {1} and {2} are the operands.
All atomics are relaxed and return the old value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.lang.dialects import Column


@dataclass(frozen=True)
class Atomic:
    """`numpy` computes the new element from the old one and the operands; `operands` is their number."""

    name: str
    kinds: str
    numpy: Callable[..., Any]
    llvm: Column
    ptx: Column
    c: Column
    wgsl: Column
    msl: Column
    operands: int = 1

    def column(self, target: str) -> Column:
        """The cells of a target."""
        column: Column = getattr(self, target)
        return column


def _row(name: str, numpy: Callable[..., Any], llvm: str | dict[str, str], wgsl: str, msl: str, c: str) -> Atomic:
    kinds = "iu"
    opcode: Column = llvm if isinstance(llvm, dict) else dict.fromkeys(kinds, llvm)
    in_c = c if c.startswith("expand:") else f"__atomic_{c}({{0}}, {{1}}, __ATOMIC_RELAXED)"
    return Atomic(
        name,
        kinds,
        numpy,
        opcode,
        opcode,
        dict.fromkeys(kinds, in_c),
        dict.fromkeys(kinds, f"atomic{wgsl}({{0}}, {{1}})"),
        dict.fromkeys(kinds, f"atomic_{msl}_explicit({{0}}, {{1}}, memory_order_relaxed)"),
    )


def _with_floats(row: Atomic, llvm: str) -> Atomic:
    """Add f32 to a row: an instruction in LLVM, elsewhere a compare-exchange loop on the bits."""
    loop = {"f": f"expand:atomic_{row.name}"}
    wide: dict[str, Column] = {t: {**row.column(t), **loop} for t in ("c", "wgsl", "msl")}
    opcode = {**row.llvm, "f": llvm}
    return Atomic(row.name, "iuf", row.numpy, opcode, opcode, wide["c"], wide["wgsl"], wide["msl"])


def _compare_exchange(old: Any, expected: Any, value: Any) -> Any:
    return value if old == expected else old


_SWAP: Column = dict.fromkeys("iu", "cmpxchg")
_SWAP_EXPANDED: Column = dict.fromkeys("iu", "expand:compare_exchange")

_ROWS = (
    _with_floats(_row("add", np.add, "add", "Add", "fetch_add", "fetch_add"), "fadd"),
    _row("min", np.minimum, {"i": "min", "u": "umin"}, "Min", "fetch_min", "expand:atomic_min"),
    _row("max", np.maximum, {"i": "max", "u": "umax"}, "Max", "fetch_max", "expand:atomic_max"),
    _row("and", np.bitwise_and, "and", "And", "fetch_and", "fetch_and"),
    _row("or", np.bitwise_or, "or", "Or", "fetch_or", "fetch_or"),
    _row("xor", np.bitwise_xor, "xor", "Xor", "fetch_xor", "fetch_xor"),
    _row("exchange", lambda old, value: value, "xchg", "Exchange", "exchange", "exchange_n"),
    Atomic(
        "compare_exchange",
        "iu",
        _compare_exchange,
        _SWAP,
        _SWAP,
        _SWAP_EXPANDED,
        _SWAP_EXPANDED,
        _SWAP_EXPANDED,
        operands=2,
    ),
)
ATOMICS: dict[str, Atomic] = {row.name: row for row in _ROWS}
