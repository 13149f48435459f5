"""The dot product of pairs of bf16 in LLVM: AVX-512's instruction, or shifts and multiply-adds. Used by emit/llvm_math.py."""

from __future__ import annotations

from camshaft.dtypes import f32, u32
from camshaft.emit.llvm_dot4 import in_pieces
from camshaft.emit.llvm_typed import Typed

# Words that a call takes -> intrinsic: vdpbf16ps adds the high halves' product first, then the low ones', subnormals as 0.
_PAIRS = {n: f"llvm.x86.avx512bf16.dpbf16ps.{32 * n}" for n in (4, 8, 16)}
_FEATURES = frozenset({"avx512bf16", "avx512vl"})


def dot2(t: Typed, acc: str, a: str, b: str) -> str:
    """acc + high(a) high(b), then + low(a) low(b), of the bf16 in the halves of words; t is of the sums, in f32."""
    if t.n >= 4 and t.target.features >= _FEATURES:
        # pieces are cut as words, whatever they hold
        words = t.as_dtype(u32)
        cut = in_pieces(words, 16, (t.bitcast(acc, u32), a, b), _piece)
        return words.bitcast(cut, f32)
    for half in (_high, _low):
        x, y = (half(t, word) for word in (a, b))
        acc = t.call("llvm.fma", x, y, acc)
    return acc


def _piece(words: Typed, acc: str, a: str, b: str) -> str:
    floats, name = words.as_dtype(f32), _PAIRS[words.n]
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
