"""Dot products of pairs of bf16, and of 16-bit integers, in LLVM: by AVX-512's, x86's or NEON's instructions, or by shifts and
multiply-adds."""

from __future__ import annotations

from camshaft.dtypes import f32, i32, u32
from camshaft.emit.llvm.dots.dot4 import in_pieces
from camshaft.emit.llvm.typed import Typed

# vdpbf16ps adds the high halves' product first, then the low ones', subnormals as 0; bfdot adds the products to each other first,
# and rounds both sums to odd. Features -> the most words that a call takes, and the intrinsic's name by its words.
_WAYS = {
    frozenset({"avx512bf16", "avx512vl"}): (16, {n: f"llvm.x86.avx512bf16.dpbf16ps.{32 * n}" for n in (4, 8, 16)}),
    frozenset({"neon", "bf16"}): (4, {4: "llvm.aarch64.neon.bfdot.v4f32.v8bf16"}),
}
# AVX-512's sums of two products of 16-bit integers (AVX-VNNI has the two narrow ones); else x86's products, added by pairs.
_WORDS = {n: f"llvm.x86.avx512.vpdpwssd.{32 * n}" for n in (4, 8, 16)}
_PRODUCTS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}
# Features -> the most words that a call takes, and whether it adds to a sum.
_SHORTS = (
    (frozenset({"avx512vnni", "avx512vl"}), 16, True),
    (frozenset({"avxvnni"}), 8, True),
    (frozenset({"avx512bw", "avx512vl"}), 16, False),
    (frozenset({"avx2"}), 8, False),
    (frozenset({"sse2"}), 4, False),
)


def dot2(t: Typed, acc: str, a: str, b: str) -> str:
    """acc + high(a) high(b), then + low(a) low(b), of the halves of words; t is of the sums: in f32 of bf16, in i32 of 16-bit
    integers."""
    if t.dtype == i32:
        return _of_shorts(t, acc, a, b)
    way = next((found for features, found in _WAYS.items() if features <= t.target.features), None)
    if t.n >= 4 and way is not None:
        # pieces are split as words, for both element types
        words, (widest, names) = t.as_dtype(u32), way
        cut = in_pieces(words, widest, (t.bitcast(acc, u32), a, b), lambda part, *xs: _piece(part, names[part.n], *xs))
        return words.bitcast(cut, f32)
    for half in (_high, _low):
        x, y = (half(t, word) for word in (a, b))
        acc = t.call("llvm.fma", x, y, acc)
    return acc


def _of_shorts(t: Typed, acc: str, a: str, b: str) -> str:
    way = next((found for found in _SHORTS if found[0] <= t.target.features), None)
    if t.n >= 4 and way is not None:
        _, widest, adds = way
        return in_pieces(t, widest, (acc, a, b), lambda part, *xs: _shorts_piece(part, adds, *xs))
    for half in ("high", "low"):
        x, y = (_short(t, word, half) for word in (a, b))
        acc = t.op("add", acc, t.op("mul", x, y))
    return acc


def _short(t: Typed, word: str, half: str) -> str:
    """One of a word's 16-bit integers."""
    return t.op("ashr", word if half == "high" else t.op("shl", word, t.const(16)), t.const(16))


def _shorts_piece(t: Typed, adds: bool, acc: str, a: str, b: str) -> str:
    sums, pairs = t.type_of(), f"<{2 * t.n} x i16>"
    left, right = (t.line(f"bitcast {sums} {x} to {pairs}") for x in (a, b))
    name = (_WORDS if adds else _PRODUCTS)[t.n]
    if adds:
        t.declare(name, f"declare {sums} @{name}({sums}, {pairs}, {pairs})")
        return t.line(f"call {sums} @{name}({sums} {acc}, {pairs} {left}, {pairs} {right})")
    t.declare(name, f"declare {sums} @{name}({pairs}, {pairs})")
    return t.op("add", acc, t.line(f"call {sums} @{name}({pairs} {left}, {pairs} {right})"))


def _piece(words: Typed, name: str, acc: str, a: str, b: str) -> str:
    floats = words.as_dtype(f32)
    sums, pairs = floats.type_of(), f"<{2 * words.n} x bfloat>"
    words.declare(name, f"declare {sums} @{name}({sums}, {pairs}, {pairs})")
    total = words.bitcast(acc, f32)
    left, right = (words.line(f"bitcast {words.type_of()} {x} to {pairs}") for x in (a, b))
    made = words.line(f"call {sums} @{name}({sums} {total}, {pairs} {left}, {pairs} {right})")
    return floats.bitcast(made, u32)


def _high(t: Typed, word: str) -> str:
    words = t.as_dtype(u32)
    return words.bitcast(words.op("and", word, words.const(0xFFFF0000)), f32)


def _low(t: Typed, word: str) -> str:
    words = t.as_dtype(u32)
    return words.bitcast(words.op("shl", word, words.const(16)), f32)
