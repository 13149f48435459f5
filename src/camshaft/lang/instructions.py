"""The instruction table: one row per instruction with its type rule, its meaning in NumPy and its lowering on each target.

A cell of the LLVM column, per operand kind ('f', 'i', 'u', 'b'), is one of: an opcode; an intrinsic ("llvm.sqrt");
"expand:NAME", a function of emit/llvm/expanded/expansions.py; "expand", an instruction that lang/expand/functions.py replaces
before emission. The PTX column equals the LLVM column except for the cells in _PTX. The C, WGSL and MSL columns are in
lang/dialects.py. No cell is empty: where a target lacks an instruction, the cell is Absent(reason).

Worst measured error of the expansions in f32 and f64, over sweeps of all exponents including subnormal arguments and
results: exp 0.92 ulp, log 0.95 ulp, tanh 1.51 ulp, erf 1.18 ulp, sin and cos 0.82 ulp (0.51 in f32) for any magnitude
of x. The limits in the tests are 1, 1, 2, 1.5 and 1.

Integers wrap, except that i64 (indexes) must not overflow. A shift count must be less than the width, and a divisor must not
be 0; the interpreter reports violations. A cast from float to integer truncates and saturates, and NaN gives 0. A cast of a
subnormal to bf16 may give 0. dot2 of bf16 may flush subnormal operands and results to 0; on NEON it adds its two products to
each other first, with its own rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import erf
from typing import Any

import numpy as np

from camshaft.dtypes import DType, bf16, f16
from camshaft.lang.dialects import C_FAMILY, Column
from camshaft.lang.targets import STRUCTURAL as STRUCTURAL


@dataclass(frozen=True)
class Instruction:
    """One row of the instruction table.

    `kinds`: the accepted operand kinds. `result`: the result dtype: 'same' (first operand), 'second' (second operand), 'bool',
    or 'attr' (given by the tracer). `numpy` takes the operands, and for 'attr' rows also the result's DType.
    """

    name: str
    arity: int
    kinds: str
    result: str
    numpy: Callable[..., Any]
    llvm: Mapping[str, str]
    ptx: Column = field(default_factory=dict)
    c: Column = field(default_factory=dict)
    wgsl: Column = field(default_factory=dict)
    msl: Column = field(default_factory=dict)

    def column(self, target: str) -> Column:
        """Return the cells of a target by operand kind: 'llvm', 'c', 'wgsl', 'msl' or 'ptx'."""
        column: Column = getattr(self, target)
        return column


def _same(text: str, kinds: str) -> dict[str, str]:
    return dict.fromkeys(kinds, text)


def _dot4(acc: Any, a: Any, b: Any) -> Any:
    """acc + sum of u8(a, byte) * s8(b, byte) over the 4 bytes of each 32-bit word, wrapping."""
    u = np.array(a, np.uint32, order="C")[..., None].view(np.uint8).astype(np.int32)
    s = np.array(b, np.uint32, order="C")[..., None].view(np.int8).astype(np.int32)
    return acc + (u * s).sum(-1, dtype=np.int32)


def _dot2(acc: Any, a: Any, b: Any) -> Any:
    """acc + high(a) high(b), then + low(a) low(b), of the halves of 32-bit words: bf16 for an f32 acc, each sum rounded once as
    in fma; 16-bit integers for an i32 acc, wrapping."""
    words = [np.array(x).view(np.uint32) for x in (a, b)]
    if acc.dtype == np.int32:
        shorts = [np.array(w, np.uint32, order="C")[..., None].view(np.int16).astype(np.int32) for w in words]
        return acc + (shorts[0] * shorts[1]).sum(-1, dtype=np.int32)
    high, low = ([(w << s & 0xFFFF0000).astype(np.uint32).view(np.float32) for w in words] for s in (0, 16))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return _fma(low[0], low[1], _fma(high[0], high[1], acc))


def _byte_pairs(acc: Any, a: Any, b: Any) -> Any:
    """In each half of a word: acc + the two products u8(a) * s8(b) of its bytes, in 16 bits, wrapping."""
    total = byte_pair_sums(a, b).astype(np.int16)
    shorts = np.array(np.broadcast_to(acc, total.shape[:-1]), np.uint32, order="C")[..., None].view(np.int16)
    return (shorts + total).view(np.uint32)[..., 0]


def byte_pair_sums(a: Any, b: Any) -> Any:
    """The two sums of two products u8(a) * s8(b) in each word, as i32 in a further axis."""
    a, b = (np.array(x, np.uint32, order="C") for x in np.broadcast_arrays(a, b))
    products = a[..., None].view(np.uint8).astype(np.int32) * b[..., None].view(np.int8)
    return products[..., 0::2] + products[..., 1::2]


def _byte_signs(a: Any, by: Any) -> Any:
    """Each byte of a, signed, times the sign of the same byte of `by`, wrapping."""
    a, by = (np.array(x, np.uint32, order="C") for x in np.broadcast_arrays(a, by))
    signs = np.sign(by[..., None].view(np.int8).astype(np.int32))
    return (a[..., None].view(np.int8) * signs).astype(np.int8).view(np.uint32)[..., 0]


def _byte_lookup(indexes: Any, *table: Any) -> Any:
    """For each byte i of a u32 word, byte i & 15 of the 16 bytes in the table's four words, lowest first."""
    words, *parts = (np.array(x, np.uint32) for x in np.broadcast_arrays(indexes, *table))
    octets = np.stack(parts, -1).view(np.uint8)
    found = np.take_along_axis(octets, (words[..., None].view(np.uint8) & 15).astype(np.int64), -1)
    return found.view(np.uint32)[..., 0]


def _fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c: f32 through f64, where the product is exact; f64 with the rounding errors of product and sum added back."""
    if a.dtype == np.float32:
        return (np.float64(a) * np.float64(b) + np.float64(c)).astype(np.float32)
    product = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    lost = ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2
    total = product + c
    back = total - product
    lost = lost + ((product - (total - back)) + (c - back))
    return total + np.where(np.isfinite(lost), lost, 0.0)


def _halves(a: Any) -> tuple[Any, Any]:
    """Split an f64 into two parts of 26 bits (Veltkamp)."""
    scaled = a * 134217729.0
    high = scaled - (scaled - a)
    return high, a - high


def _cast(a: Any, to: DType) -> Any:
    """Convert by value; conversions from and to 16-bit floats go through f32."""
    if a.dtype == to.numpy:
        return a
    if np.float32 not in (a.dtype, to.numpy) and (a.dtype in _HALVES or to.numpy in _HALVES):
        return _cast(a.astype(np.float32), to)
    if a.dtype.kind == "f" and to.is_integer:
        return _saturate(a, to)
    return a.astype(to.numpy)


def _saturate(a: Any, to: DType) -> Any:
    info = np.iinfo(to.numpy)
    low, high = float(info.min), float(info.max)
    inside = (a > low) & (a < high)
    whole = np.where(inside, a, 0).astype(to.numpy)
    capped = np.where(a >= high, to.numpy.type(info.max), np.where(a <= low, to.numpy.type(info.min), whole))
    return capped.astype(to.numpy)


def _scale(a: Any, n: Any) -> Any:
    """a 2^n for whole n, rounded once; NaN a gives NaN for any n."""
    return np.ldexp(a, np.where(np.isnan(n), 0, n).astype(np.int32))


def _erf(a: Any) -> Any:
    """erf element by element in f64, since NumPy has none."""
    wide = [erf(x) for x in np.ravel(a).astype(np.float64).tolist()]
    return np.array(wide).reshape(np.shape(a)).astype(a.dtype)


def _bitcast(a: Any, to: DType) -> Any:
    return a.view(to.numpy)


_HALVES = frozenset({f16.numpy, bf16.numpy})

_ROWS = (
    Instruction("add", 2, "fiu", "same", np.add, {"f": "fadd contract", "i": "add", "u": "add"}),
    Instruction("subtract", 2, "fiu", "same", np.subtract, {"f": "fsub contract", "i": "sub", "u": "sub"}),
    Instruction("multiply", 2, "fiu", "same", np.multiply, {"f": "fmul contract", "i": "mul", "u": "mul"}),
    Instruction("divide", 2, "f", "same", np.divide, {"f": "fdiv"}),
    Instruction("floor_divide", 2, "iu", "same", np.floor_divide, {"i": "expand:floor_divide", "u": "udiv"}),
    Instruction("remainder", 2, "iu", "same", np.remainder, {"i": "expand:remainder", "u": "urem"}),
    Instruction("negate", 1, "fi", "same", np.negative, {"f": "fneg", "i": "expand:negate"}),
    Instruction("fma", 3, "f", "same", _fma, {"f": "llvm.fma"}),
    Instruction("minimum", 2, "fiu", "same", np.minimum, {"f": "llvm.minimum", "i": "llvm.smin", "u": "llvm.umin"}),
    Instruction("maximum", 2, "fiu", "same", np.maximum, {"f": "llvm.maximum", "i": "llvm.smax", "u": "llvm.umax"}),
    Instruction("abs", 1, "f", "same", np.abs, {"f": "llvm.fabs"}),
    Instruction("sqrt", 1, "f", "same", np.sqrt, {"f": "llvm.sqrt"}),
    Instruction("rsqrt", 1, "f", "same", lambda a: a.dtype.type(1) / np.sqrt(a), {"f": "expand:rsqrt"}),
    Instruction("floor", 1, "f", "same", np.floor, {"f": "llvm.floor"}),
    Instruction("ceil", 1, "f", "same", np.ceil, {"f": "llvm.ceil"}),
    Instruction("trunc", 1, "f", "same", np.trunc, {"f": "llvm.trunc"}),
    Instruction("round", 1, "f", "same", np.rint, {"f": "llvm.roundeven"}),
    Instruction("rounded", 1, "f", "same", np.positive, {"f": "llvm.arithmetic.fence"}),
    Instruction("exp", 1, "f", "same", np.exp, {"f": "expand"}),
    Instruction("log", 1, "f", "same", np.log, {"f": "expand"}),
    Instruction("tanh", 1, "f", "same", np.tanh, {"f": "expand"}),
    Instruction("erf", 1, "f", "same", _erf, {"f": "expand"}),
    # AVX-512 has it; emit/llvm/module.py expands it for other CPUs
    Instruction("scale", 2, "f", "same", _scale, {"f": "expand:scale"}),
    Instruction("sin", 1, "f", "same", np.sin, {"f": "expand"}),
    Instruction("cos", 1, "f", "same", np.cos, {"f": "expand"}),
    Instruction("isnan", 1, "f", "bool", np.isnan, {"f": "expand:isnan"}),
    Instruction("and", 2, "iub", "same", np.bitwise_and, _same("and", "iub")),
    Instruction("or", 2, "iub", "same", np.bitwise_or, _same("or", "iub")),
    Instruction("xor", 2, "iub", "same", np.bitwise_xor, _same("xor", "iub")),
    Instruction("shift_left", 2, "iu", "same", np.left_shift, _same("shl", "iu")),
    Instruction("shift_right", 2, "iu", "same", np.right_shift, {"i": "ashr", "u": "lshr"}),
    Instruction("less", 2, "fiu", "bool", np.less, {"f": "fcmp olt", "i": "icmp slt", "u": "icmp ult"}),
    Instruction("less_equal", 2, "fiu", "bool", np.less_equal, {"f": "fcmp ole", "i": "icmp sle", "u": "icmp ule"}),
    Instruction("equal", 2, "fiu", "bool", np.equal, {"f": "fcmp oeq", "i": "icmp eq", "u": "icmp eq"}),
    Instruction("not_equal", 2, "fiu", "bool", np.not_equal, {"f": "fcmp une", "i": "icmp ne", "u": "icmp ne"}),
    Instruction("select", 3, "fiub", "second", np.where, _same("expand:select", "fiub")),
    Instruction("cast", 1, "fiub", "attr", _cast, _same("expand:cast", "fiub")),
    Instruction("bitcast", 1, "fiu", "attr", _bitcast, _same("bitcast", "fiu")),
    Instruction("dot4", 3, "iu", "same", _dot4, _same("expand:dot4", "iu")),
    Instruction("dot2", 3, "fi", "same", _dot2, _same("expand:dot2", "fi")),
    Instruction("byte_pairs", 3, "u", "same", _byte_pairs, {"u": "expand:byte_pairs"}),
    Instruction("byte_signs", 2, "u", "same", _byte_signs, {"u": "expand:byte_signs"}),
    Instruction("byte_lookup", 5, "u", "same", _byte_lookup, {"u": "expand:byte_lookup"}),
)
# Cells of the PTX column that differ from LLVM's.
_PTX: dict[str, Column] = {
    "dot4": _same("expand:dp4a", "iu"),
    "scale": {"f": "expand"},
    "byte_lookup": {"u": "expand:prmt"},
    "rounded": {"f": "expand:rounded_ptx"},
}


def _joined(row: Instruction) -> Instruction:
    family = C_FAMILY[row.name]
    ptx = {**row.llvm, **_PTX.get(row.name, {})}
    return replace(row, ptx=ptx, c=family["c"], wgsl=family["wgsl"], msl=family["msl"])


INSTRUCTIONS: dict[str, Instruction] = {row.name: _joined(row) for row in _ROWS}

# accumulator kind -> (combining instruction, identity for floats); integers use the extremes of their dtype
COMBINERS: dict[str, str] = {"sum": "add", "max": "maximum", "min": "minimum"}


def identity(kind: str, dtype: np.dtype[Any]) -> float | int:
    """Return the identity of a combiner: 0 for sum, the lowest for max, the largest for min."""
    if kind == "sum":
        return 0
    if dtype.kind == "f":
        return float("-inf") if kind == "max" else float("inf")
    return int(np.iinfo(dtype).min if kind == "max" else np.iinfo(dtype).max)
