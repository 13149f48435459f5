"""p 2^n by AVX-512's own instruction, where two factors and their bits take nine."""

from __future__ import annotations

from camshaft.emit.llvm.typed import Typed
from camshaft.emit.llvm.values import vector_type

_MOST_BITS = 512


def scaled(t: Typed, p: str, n: str) -> str:
    """p 2^n for whole n, rounded once; a vector of more than a register's bits in pieces. For targets that have it."""
    count = min(t.n, _MOST_BITS // t.dtype.bits)
    pieces = [_piece(t, count, *(_slice(t, x, start, count) for x in (p, n))) for start in range(0, t.n, count)]
    while len(pieces) > 1:
        pieces = [_joined(t, count, a, b) for a, b in zip(pieces[::2], pieces[1::2], strict=True)]
        count *= 2
    return pieces[0]


def _piece(t: Typed, count: int, p: str, n: str) -> str:
    bits, typ = count * t.dtype.bits, vector_type(t.dtype, count)
    name = f"llvm.x86.avx512.mask.scalef.{'ps' if t.dtype.bits == 32 else 'pd'}.{bits}"
    mask = f"i{max(count, 8)}"
    rounding = ", i32" if bits == _MOST_BITS else ""
    t.declare(name, f"declare {typ} @{name}({typ}, {typ}, {typ}, {mask}{rounding})")
    current = ", i32 4" if rounding else ""
    return t.line(f"call {typ} @{name}({typ} {p}, {typ} {n}, {typ} zeroinitializer, {mask} -1{current})")


def _slice(t: Typed, x: str, start: int, count: int) -> str:
    if count == t.n:
        return x
    order = ", ".join(f"i32 {i}" for i in range(start, start + count))
    return t.line(f"shufflevector {t.type_of()} {x}, {t.type_of()} poison, <{count} x i32> <{order}>")


def _joined(t: Typed, count: int, a: str, b: str) -> str:
    order = ", ".join(f"i32 {i}" for i in range(2 * count))
    typ = vector_type(t.dtype, count)
    return t.line(f"shufflevector {typ} {a}, {typ} {b}, <{2 * count} x i32> <{order}>")
