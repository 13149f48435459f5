"""p 2^n on CPUs that have it as an instruction (AVX-512)."""

from __future__ import annotations

from camshaft.emit.llvm.typed import Typed
from camshaft.emit.llvm.values import scalar_type, vector_type

_LEAST_BITS, _MOST_BITS = 128, 512


def scale(t: Typed, p: str, n: str) -> str:
    """p 2^n for whole n, rounded once: more than a register's bits in pieces, fewer in the first elements of one."""
    least = _LEAST_BITS // t.dtype.bits
    if t.n < least:
        return _narrowed(t, _piece(t, least, *(_padded(t, x, least) for x in (p, n))), least)
    count = min(t.n, _MOST_BITS // t.dtype.bits)
    pieces = [_piece(t, count, *(_slice(t, x, start, count) for x in (p, n))) for start in range(0, t.n, count)]
    while len(pieces) > 1:
        pieces = [_joined(t, count, a, b) for a, b in zip(pieces[::2], pieces[1::2], strict=True)]
        count *= 2
    return pieces[0]


def _padded(t: Typed, x: str, count: int) -> str:
    typ = vector_type(t.dtype, count)
    if t.n <= 1:
        return t.line(f"insertelement {typ} poison, {scalar_type(t.dtype)} {x}, i64 0")
    order = ", ".join(f"i32 {i % t.n}" for i in range(count))
    return t.line(f"shufflevector {t.type_of()} {x}, {t.type_of()} poison, <{count} x i32> <{order}>")


def _narrowed(t: Typed, x: str, count: int) -> str:
    typ = vector_type(t.dtype, count)
    if t.n <= 1:
        return t.line(f"extractelement {typ} {x}, i64 0")
    order = ", ".join(f"i32 {i}" for i in range(t.n))
    return t.line(f"shufflevector {typ} {x}, {typ} poison, <{t.n} x i32> <{order}>")


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
