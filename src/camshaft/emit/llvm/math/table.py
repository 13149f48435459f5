"""What the instruction table's "expand:NAME" means in LLVM, and casts.

Each expansion takes a Typed writer and operand names, all of one LLVM type, and gives the result's name.
"""

from __future__ import annotations

from collections.abc import Callable

from camshaft.dtypes import DType, bf16, f16, f32, f64
from camshaft.emit.llvm.dots.dot2 import dot2
from camshaft.emit.llvm.dots.dot4 import dot4, dp4a
from camshaft.emit.llvm.dots.lookup import byte_lookup, prmt
from camshaft.emit.llvm.math.halves import narrow_bf16, narrow_f16, widen_bf16, widen_f16
from camshaft.emit.llvm.math.scale import scale
from camshaft.emit.llvm.typed import Typed


def rsqrt(t: Typed, x: str) -> str:
    return t.op("fdiv", t.const(1.0), t.call("llvm.sqrt", x))


def isnan(t: Typed, x: str) -> str:
    return t.line(f"fcmp uno {t.type_of()} {x}, {x}")


def rounded_ptx(t: Typed, x: str) -> str:
    """x + -0.0 with its rounding named: ptxas may fuse a product with a sum only where neither's is, whatever LLVM says."""
    name = f"llvm.nvvm.add.rn.{'d' if t.dtype == f64 else 'f'}"
    t.declare(name, f"declare {t.type_of()} @{name}({t.type_of()}, {t.type_of()})")
    return t.line(f"call {t.type_of()} @{name}({t.type_of()} {x}, {t.type_of()} {t.const(-0.0)})")


def negate(t: Typed, x: str) -> str:
    return t.op("sub", t.const(0), x)


def floor_divide(t: Typed, a: str, b: str) -> str:
    """Rounds towards minus infinity, as Python does."""
    quotient = t.op("sdiv", a, b)
    return t.select(_inexact_and_opposite(t, a, b), t.op("sub", quotient, t.const(1)), quotient)


def remainder(t: Typed, a: str, b: str) -> str:
    """Takes the sign of b, as Python's does."""
    rest = t.op("srem", a, b)
    return t.select(_inexact_and_opposite(t, a, b), t.op("add", rest, b), rest)


def _inexact_and_opposite(t: Typed, a: str, b: str) -> str:
    rest, mask = t.op("srem", a, b), f"<{t.n} x i1>" if t.n > 1 else "i1"
    opposite = t.line(f"icmp slt {t.type_of()} {t.op('xor', a, b)}, {t.const(0)}")
    inexact = t.line(f"icmp ne {t.type_of()} {rest}, {t.const(0)}")
    return t.line(f"and {mask} {opposite}, {inexact}")


EXPANSIONS: dict[str, Callable[..., str]] = {
    "scale": scale,
    "isnan": isnan,
    "rsqrt": rsqrt,
    "rounded_ptx": rounded_ptx,
    "negate": negate,
    "floor_divide": floor_divide,
    "remainder": remainder,
    "dot2": dot2,
    "dot4": dot4,
    "dp4a": dp4a,
    "byte_lookup": byte_lookup,
    "prmt": prmt,
}


def cast(t: Typed, x: str, to: DType) -> str:
    """Conversion by value to another dtype; floats to integers truncate and saturate (NaN to 0). f16 and bf16 go through f32."""
    if t.dtype == to:
        return x
    if f32 not in (t.dtype, to) and (t.dtype in (f16, bf16) or to in (f16, bf16)):
        return cast(t.as_dtype(f32), cast(t, x, f32), to)
    source, result = t.type_of(), t.type_of(to)
    if to.kind == "b":
        return t.line(f"{'fcmp une' if t.dtype.is_float else 'icmp ne'} {source} {x}, {t.const(0)}")
    if t.dtype.is_float and to.is_float:
        if to == bf16 and not t.target.has_bf16:
            return narrow_bf16(t, x)
        if t.dtype == bf16:
            return widen_bf16(t, x)
        if f16 in (t.dtype, to) and not t.target.has_f16:
            return widen_f16(t, x) if to == f32 else narrow_f16(t, x)
        return t.line(f"{'fpext' if to.nbytes > t.dtype.nbytes else 'fptrunc'} {source} {x} to {result}")
    if t.dtype.is_float:
        return _saturate(t, x, to)
    if to.is_float:
        return t.line(f"{'sitofp' if t.dtype.kind == 'i' else 'uitofp'} {source} {x} to {result}")
    if t.dtype.kind == "b" or to.bits > t.dtype.bits:
        return t.line(f"{'sext' if t.dtype.kind == 'i' else 'zext'} {source} {x} to {result}")
    return x if to.bits == t.dtype.bits else t.line(f"trunc {source} {x} to {result}")


def _saturate(t: Typed, x: str, to: DType) -> str:
    name = "llvm.fptosi.sat" if to.kind == "i" else "llvm.fptoui.sat"
    prefix = f"v{t.n}" if t.n > 1 else ""
    full = f"{name}.{prefix}i{to.bits}.{prefix}{t.dtype.name}"
    t.declare(full, f"declare {t.type_of(to)} @{full}({t.type_of()})")
    return t.line(f"call {t.type_of(to)} @{full}({t.type_of()} {x})")
