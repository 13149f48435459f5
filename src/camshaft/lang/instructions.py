"""The instruction table: one row per instruction with its type rule, its meaning in NumPy and its LLVM lowering.

The LLVM column holds an opcode per kind of operand ('f', 'i', 'u', 'b'), an intrinsic ("llvm.sqrt"), or "expand:NAME" for what
emit/llvm_math.py spells out. Accuracy of the expansions (f32, worst seen over all exponents): exp 1.5 ulp, log 1.5 ulp, tanh 3 ulp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Instruction:
    """`result`: 'same' as the first operand, 'bool' for comparisons, 'attr' when the tracer names it. `kinds`: operand kinds taken."""

    name: str
    arity: int
    kinds: str
    result: str
    numpy: Callable[..., Any]
    llvm: Mapping[str, str]


def _same(text: str, kinds: str) -> dict[str, str]:
    return dict.fromkeys(kinds, text)


def _dot4(acc: Any, a: Any, b: Any) -> Any:
    """acc + sum of u8(a, byte) * s8(b, byte) over the 4 bytes of each 32-bit word, wrapping."""
    a, b = np.broadcast_arrays(np.asarray(a, np.uint32), np.asarray(b, np.uint32))
    u = np.ascontiguousarray(a)[..., None].view(np.uint8).astype(np.int32)
    s = np.ascontiguousarray(b)[..., None].view(np.int8).astype(np.int32)
    return acc + (u * s).sum(-1, dtype=np.int32)


def _shift_left(a: Any, b: Any) -> Any:
    return np.left_shift(a, b)


_ROWS = (
    Instruction("add", 2, "fiu", "same", np.add, {"f": "fadd contract", "i": "add", "u": "add"}),
    Instruction("subtract", 2, "fiu", "same", np.subtract, {"f": "fsub contract", "i": "sub", "u": "sub"}),
    Instruction("multiply", 2, "fiu", "same", np.multiply, {"f": "fmul contract", "i": "mul", "u": "mul"}),
    Instruction("divide", 2, "f", "same", np.divide, {"f": "fdiv"}),
    Instruction("floor_divide", 2, "iu", "same", np.floor_divide, {"i": "expand:floor_divide", "u": "udiv"}),
    Instruction("remainder", 2, "iu", "same", np.remainder, {"i": "expand:remainder", "u": "urem"}),
    Instruction("negate", 1, "fi", "same", np.negative, {"f": "fneg", "i": "expand:negate"}),
    Instruction("fma", 3, "f", "same", lambda a, b, c: a * b + c, {"f": "llvm.fma"}),
    Instruction("minimum", 2, "fiu", "same", np.minimum, {"f": "llvm.minimum", "i": "llvm.smin", "u": "llvm.umin"}),
    Instruction("maximum", 2, "fiu", "same", np.maximum, {"f": "llvm.maximum", "i": "llvm.smax", "u": "llvm.umax"}),
    Instruction("abs", 1, "f", "same", np.abs, {"f": "llvm.fabs"}),
    Instruction("sqrt", 1, "f", "same", np.sqrt, {"f": "llvm.sqrt"}),
    Instruction("rsqrt", 1, "f", "same", lambda a: 1 / np.sqrt(a), {"f": "expand:rsqrt"}),
    Instruction("floor", 1, "f", "same", np.floor, {"f": "llvm.floor"}),
    Instruction("round", 1, "f", "same", np.rint, {"f": "llvm.roundeven"}),
    Instruction("exp", 1, "f", "same", np.exp, {"f": "expand:exp"}),
    Instruction("log", 1, "f", "same", np.log, {"f": "expand:log"}),
    Instruction("tanh", 1, "f", "same", np.tanh, {"f": "expand:tanh"}),
    Instruction("and", 2, "iub", "same", np.bitwise_and, _same("and", "iub")),
    Instruction("or", 2, "iub", "same", np.bitwise_or, _same("or", "iub")),
    Instruction("xor", 2, "iub", "same", np.bitwise_xor, _same("xor", "iub")),
    Instruction("shift_left", 2, "iu", "same", _shift_left, _same("shl", "iu")),
    Instruction("shift_right", 2, "iu", "same", np.right_shift, {"i": "ashr", "u": "lshr"}),
    Instruction("less", 2, "fiu", "bool", np.less, {"f": "fcmp olt", "i": "icmp slt", "u": "icmp ult"}),
    Instruction("less_equal", 2, "fiu", "bool", np.less_equal, {"f": "fcmp ole", "i": "icmp sle", "u": "icmp ule"}),
    Instruction("equal", 2, "fiu", "bool", np.equal, {"f": "fcmp oeq", "i": "icmp eq", "u": "icmp eq"}),
    Instruction("not_equal", 2, "fiu", "bool", np.not_equal, {"f": "fcmp une", "i": "icmp ne", "u": "icmp ne"}),
    Instruction("select", 3, "fiub", "second", np.where, _same("expand:select", "fiub")),
    Instruction("cast", 1, "fiub", "attr", lambda a: a, _same("expand:cast", "fiub")),
    Instruction("bitcast", 1, "fiu", "attr", lambda a: a, _same("bitcast", "fiu")),
    Instruction("dot4", 3, "iu", "same", _dot4, _same("expand:dot4", "iu")),
)
INSTRUCTIONS: dict[str, Instruction] = {row.name: row for row in _ROWS}

# Values that are not computed from operands by a row above: the emitter and the interpreter each know all of these.
STRUCTURAL = frozenset(
    "const program scalar index lane lane_count load var_get reduce splat iota element vector_sum vector_max".split()
)

# accumulator kind -> (instruction that combines, identity for floats; integers take the dtype's own extremes)
COMBINERS: dict[str, str] = {"sum": "add", "max": "maximum", "min": "minimum"}


def identity(kind: str, dtype: np.dtype[Any]) -> float | int:
    """The value that changes nothing: 0 for sum, the lowest for max, the greatest for min."""
    if kind == "sum":
        return 0
    if dtype.kind == "f":
        return float("-inf") if kind == "max" else float("inf")
    return int(np.iinfo(dtype).min if kind == "max" else np.iinfo(dtype).max)
