"""The dot product of pairs of bf16 in LLVM: AVX-512's or NEON's instruction, or shifts and multiply-adds. For llvm_math.py."""

from __future__ import annotations

from camshaft.dtypes import f32, u32
from camshaft.emit.llvm_dot4 import in_pieces
from camshaft.emit.llvm_typed import Typed

# vdpbf16ps adds the high halves' product first, then the low ones', subnormals as 0; bfdot adds the products to each other first,
# and rounds both sums to odd. Features -> the most words that a call takes, and the intrinsic's name by its words.
_WAYS = {
    frozenset({"avx512bf16", "avx512vl"}): (16, {n: f"llvm.x86.avx512bf16.dpbf16ps.{32 * n}" for n in (4, 8, 16)}),
    frozenset({"neon", "bf16"}): (4, {4: "llvm.aarch64.neon.bfdot.v4f32.v8bf16"}),
}


def dot2(t: Typed, acc: str, a: str, b: str) -> str:
    """acc + high(a) high(b), then + low(a) low(b), of the bf16 in the halves of words; t is of the sums, in f32."""
    way = next((found for features, found in _WAYS.items() if features <= t.target.features), None)
    if t.n >= 4 and way is not None:
        # pieces are cut as words, whatever they hold
        words, (widest, names) = t.as_dtype(u32), way
        cut = in_pieces(words, widest, (t.bitcast(acc, u32), a, b), lambda part, *xs: _piece(part, names[part.n], *xs))
        return words.bitcast(cut, f32)
    for half in (_high, _low):
        x, y = (half(t, word) for word in (a, b))
        acc = t.call("llvm.fma", x, y, acc)
    return acc


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
