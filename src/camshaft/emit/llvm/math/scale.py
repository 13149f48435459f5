"""p 2^n on CPUs that have it as an instruction (AVX-512)."""

from __future__ import annotations

from collections.abc import Iterable

from camshaft.emit.llvm.typed import Typed
from camshaft.emit.llvm.values import vector_type

_LEAST_BITS, _MOST_BITS = 128, 512


def scale(t: Typed, p: str, n: str) -> str:
    """p 2^n for whole n, rounded once: more than a register's bits in pieces, fewer in the first elements of one."""
    if t.n <= 1:
        typ = vector_type(t.dtype, 2)
        p, n = (t.line(f"insertelement {typ} poison, {t.type_of()} {x}, i64 0") for x in (p, n))
        return t.line(f"extractelement {typ} {_of_vector(t, 2, p, n)}, i64 0")
    return _of_vector(t, t.n, p, n)


def _of_vector(t: Typed, total: int, p: str, n: str) -> str:
    count = min(max(total, _LEAST_BITS // t.dtype.bits), _MOST_BITS // t.dtype.bits)
    starts = range(0, total, count)
    pieces = [_piece(t, count, *(_picked(t, total, x, x, range(at, at + count)) for x in (p, n))) for at in starts]
    while len(pieces) > 1:
        pairs = zip(pieces[::2], pieces[1::2], strict=True)
        pieces = [_picked(t, count, a, b, range(2 * count)) for a, b in pairs]
        count *= 2
    return _picked(t, count, pieces[0], pieces[0], range(total))


def _piece(t: Typed, count: int, p: str, n: str) -> str:
    bits, typ = count * t.dtype.bits, vector_type(t.dtype, count)
    name = f"llvm.x86.avx512.mask.scalef.{'ps' if t.dtype.bits == 32 else 'pd'}.{bits}"
    mask = f"i{max(count, 8)}"
    rounding = ", i32" if bits == _MOST_BITS else ""
    t.declare(name, f"declare {typ} @{name}({typ}, {typ}, {typ}, {mask}{rounding})")
    current = ", i32 4" if rounding else ""
    return t.line(f"call {typ} @{name}({typ} {p}, {typ} {n}, {typ} zeroinitializer, {mask} -1{current})")


def _picked(t: Typed, n: int, a: str, b: str, elements: Iterable[int]) -> str:
    """Elements of two vectors of n, one after the other, and again."""
    order = list(elements)
    if order == list(range(n)):
        return a
    typ, places = vector_type(t.dtype, n), ", ".join(f"i32 {i % (2 * n)}" for i in order)
    return t.line(f"shufflevector {typ} {a}, {typ} {b}, <{len(order)} x i32> <{places}>")
