"""Emit 16-bit sums of byte products and signs of bytes in LLVM IR: x86's instructions, or shifts and masks."""

from __future__ import annotations

from camshaft.emit.llvm.context import Typed
from camshaft.emit.llvm.expanded.dots import BYTE_PRODUCTS, in_pieces

# Number of words in a call -> x86's intrinsic (SSSE3 on).
_SIGNS = {4: "llvm.x86.ssse3.psign.b.128", 8: "llvm.x86.avx2.psign.b"}


def _widest(t: Typed) -> int:
    """Words of the target's instructions; 0 if it has none, and for scalars and narrow vectors."""
    if t.n < 4 or not t.target.features & {"ssse3", "sse4.1"}:
        return 0
    return 8 if t.n >= 8 and "avx2" in t.target.features else 4


def byte_pairs(t: Typed, acc: str, a: str, b: str) -> str:
    """In each half of a word: acc + the two products u8(a) * s8(b) of its bytes, whose sum fits 16 bits."""
    widest = _widest(t)
    if widest:
        return in_pieces(t, widest, (acc, a, b), _madd)
    low, high = (_pair(t, a, b, first) for first in (0, 2))
    bottom = t.op("and", t.op("add", acc, low), t.const(0xFFFF))
    top = t.op("and", t.op("add", acc, t.op("shl", high, t.const(16))), t.const(0xFFFF0000))
    return t.op("or", bottom, top)


def _madd(t: Typed, acc: str, a: str, b: str) -> str:
    octets, shorts = f"<{4 * t.n} x i8>", f"<{2 * t.n} x i16>"
    u, s = t.bits_as(octets, a, b)
    pairs = t.ctx.call(BYTE_PRODUCTS[t.n], shorts, (octets, u), (octets, s))
    (total,) = t.bits_as(shorts, acc)
    return t.line(f"bitcast {shorts} {t.line(f'add {shorts} {total}, {pairs}')} to {t.typ}")


def _pair(t: Typed, a: str, b: str, first: int) -> str:
    """The sum of the products of bytes `first` and first + 1, in 32 bits."""
    return t.op("add", *(t.op("mul", _unsigned(t, a, i), _signed(t, b, i)) for i in (first, first + 1)))


def _unsigned(t: Typed, word: str, byte: int) -> str:
    return t.op("and", t.op("lshr", word, t.const(8 * byte)), t.const(255))


def _signed(t: Typed, word: str, byte: int) -> str:
    return t.op("ashr", t.op("shl", word, t.const(24 - 8 * byte)), t.const(24))


def byte_signs(t: Typed, a: str, by: str) -> str:
    """Each byte of a times the sign of the same byte of `by`: a, 0 or -a (-128 stays)."""
    widest = _widest(t)
    if widest:
        return in_pieces(t, widest, (a, by), _sign)
    result = t.const(0)
    for byte in range(4):
        x, y = _signed(t, a, byte), _signed(t, by, byte)
        sign = t.op("sub", *(t.op("ashr", number, t.const(31)) for number in (y, t.op("sub", t.const(0), y))))
        part = t.op("and", t.op("mul", x, sign), t.const(255))
        result = t.op("or", result, t.op("shl", part, t.const(8 * byte)))
    return result


def _sign(t: Typed, a: str, by: str) -> str:
    octets = f"<{4 * t.n} x i8>"
    left, right = t.bits_as(octets, a, by)
    found = t.ctx.call(_SIGNS[t.n], octets, (octets, left), (octets, right))
    return t.line(f"bitcast {octets} {found} to {t.typ}")
