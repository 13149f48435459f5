"""The byte dot product in LLVM: by VNNI, NEON's or NVIDIA's dot products, by 16-bit products, or by shifts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from camshaft.emit.llvm.typed import Typed

# the x86 byte dot products: words a call takes -> intrinsic (AVX-VNNI has the two narrow ones)
_VNNI = {n: f"llvm.x86.avx512.vpdpbusd.{32 * n}" for n in (4, 8, 16)}
# words a call takes -> x86's products of bytes with sums of two in 16 bits (SSSE3 on), and of 16-bit numbers in 32
_PMADD = {
    4: ("llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd"),
    8: ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
    16: ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
}


@dataclass(frozen=True)
class _Way:
    """The lowering for CPUs with all of `features`: `piece(t, acc, a, b, small)` for at most `widest` words."""

    features: frozenset[str]
    widest: int
    piece: Callable[[Typed, str, str, str, bool], str]


def dot4(t: Typed, acc: str, a: str, b: str, small: bool = False) -> str:
    """acc + sum over 4 bytes of u8(a) * s8(b); `small` says that every byte of a is below 128, which saves work
    on CPUs without such an instruction."""
    way = next((w for w in _WAYS if w.features <= t.target.features), None)
    if way is not None and t.n >= 4:
        return in_pieces(t, way.widest, (acc, a, b), lambda part, x, y, z: way.piece(part, x, y, z, small))
    result = acc
    for byte in range(4):
        u = t.op("and", t.op("lshr", a, t.const(8 * byte)), t.const(255))
        s = t.op("ashr", t.op("shl", b, t.const(24 - 8 * byte)), t.const(24))
        result = t.op("add", result, t.op("mul", u, s))
    return result


def dp4a(t: Typed, acc: str, a: str, b: str) -> str:
    """The same with NVIDIA's dp4a instruction, one word each."""
    name = "llvm.nvvm.idp4a.u.s"
    t.declare(name, f"declare i32 @{name}(i32, i32, i32)")
    return t.line(f"call i32 @{name}(i32 {a}, i32 {b}, i32 {acc})")


def in_pieces(t: Typed, widest: int, names: tuple[str, ...], piece: Callable[..., str]) -> str:
    """Splits vectors wider than an instruction takes, applies it to each part, and joins the results."""
    if t.n <= widest:
        return piece(t, *names)
    half = Typed(t.line, t.declare, t.dtype, t.n // 2, t.target)
    halves = []
    for start in (0, half.n):
        indices = ", ".join(f"i32 {start + i}" for i in range(half.n))
        parts = [
            t.line(f"shufflevector {t.type_of()} {n}, {t.type_of()} poison, <{half.n} x i32> <{indices}>")
            for n in names
        ]
        halves.append(in_pieces(half, widest, tuple(parts), piece))
    order = ", ".join(f"i32 {i}" for i in range(t.n))
    pair = f"{half.type_of()} {halves[0]}, {half.type_of()} {halves[1]}"
    return t.line(f"shufflevector {pair}, <{t.n} x i32> <{order}>")


def _byte_dot(t: Typed, intrinsic: str, acc: str, a: str, b: str) -> str:
    """A call of an instruction that takes words and two vectors of four times as many bytes."""
    words, octets = t.type_of(), f"<{4 * t.n} x i8>"
    t.declare(intrinsic, f"declare {words} @{intrinsic}({words}, {octets}, {octets})")
    a_bytes, b_bytes = (t.line(f"bitcast {words} {x} to {octets}") for x in (a, b))
    return t.line(f"call {words} @{intrinsic}({words} {acc}, {octets} {a_bytes}, {octets} {b_bytes})")


def _vnni_piece(t: Typed, acc: str, a: str, b: str, small: bool) -> str:
    return _byte_dot(t, _VNNI[t.n], acc, a, b)


def _pmadd_piece(t: Typed, acc: str, a: str, b: str, small: bool) -> str:
    """By 16-bit products: two instructions for bytes below 128, of which two products fit 16 bits (127 * 128 * 2 < 2^15)."""
    by_bytes, by_shorts = _PMADD[t.n]
    if small and t.target.features >= {"sse4.1"}:
        octets, shorts = f"<{4 * t.n} x i8>", f"<{2 * t.n} x i16>"
        t.declare(by_bytes, f"declare {shorts} @{by_bytes}({octets}, {octets})")
        u, s = (t.line(f"bitcast {t.type_of()} {x} to {octets}") for x in (a, b))
        pairs = t.line(f"call {shorts} @{by_bytes}({octets} {u}, {octets} {s})")
        return t.op("add", acc, _sums_of_products(t, by_shorts, pairs, "splat (i16 1)"))
    return _wide_pmadd(t, by_shorts, acc, a, b)


def _wide_pmadd(t: Typed, by_shorts: str, acc: str, a: str, b: str) -> str:
    """Any bytes, widened to 16 bits: the even ones, then the odd ones."""
    shorts = f"<{2 * t.n} x i16>"
    ua, sb = (t.line(f"bitcast {t.type_of()} {x} to {shorts}") for x in (a, b))
    even_u = t.line(f"and {shorts} {ua}, splat (i16 255)")
    odd_u = t.line(f"lshr {shorts} {ua}, splat (i16 8)")
    even_s = t.line(f"ashr {shorts} {t.line(f'shl {shorts} {sb}, splat (i16 8)')}, splat (i16 8)")
    odd_s = t.line(f"ashr {shorts} {sb}, splat (i16 8)")
    even, odd = (_sums_of_products(t, by_shorts, u, s) for u, s in ((even_u, even_s), (odd_u, odd_s)))
    return t.op("add", t.op("add", acc, even), odd)


def _sums_of_products(t: Typed, name: str, a: str, b: str) -> str:
    """Products of neighbouring 16-bit numbers, added by pairs in 32 bits."""
    words, shorts = t.type_of(), f"<{2 * t.n} x i16>"
    t.declare(name, f"declare {words} @{name}({shorts}, {shorts})")
    return t.line(f"call {words} @{name}({shorts} {a}, {shorts} {b})")


def _usdot_piece(t: Typed, acc: str, a: str, b: str, small: bool) -> str:
    return _byte_dot(t, "llvm.aarch64.neon.usdot.v4i32.v16i8", acc, a, b)


def _sdot_piece(t: Typed, acc: str, a: str, b: str, small: bool) -> str:
    """u s = (u - 128) s + 128 s, where u - 128 is u's byte with its top bit flipped."""
    name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
    if small:
        return _byte_dot(t, name, acc, a, b)
    rest = t.op("shl", _byte_dot(t, name, t.const(0), t.const(0x01010101), b), t.const(7))
    return _byte_dot(t, name, t.op("add", acc, rest), t.op("xor", a, t.const(-0x7F7F7F80)), b)


def _smull_piece(t: Typed, acc: str, a: str, b: str, small: bool) -> str:
    """16-bit products of half the bytes each, their sums by pairs in 32 bits, and those by pairs."""
    if small:
        return t.op("add", acc, _signed_products(t, a, b))
    ones = _pairs(t, _pairs_of_bytes(t, b))
    turned = t.op("xor", a, t.const(-0x7F7F7F80))
    return t.op("add", t.op("add", acc, t.op("shl", ones, t.const(7))), _signed_products(t, turned, b))


def _signed_products(t: Typed, a: str, b: str) -> str:
    """Sum over 4 bytes of s8(a) * s8(b)."""
    name, sums = "llvm.aarch64.neon.smull.v8i16", []
    t.declare(name, f"declare <8 x i16> @{name}(<8 x i8>, <8 x i8>)")
    octets = [t.line(f"bitcast {t.type_of()} {x} to <16 x i8>") for x in (a, b)]
    for start in (0, 8):
        order = ", ".join(f"i32 {start + i}" for i in range(8))
        left, right = (t.line(f"shufflevector <16 x i8> {x}, <16 x i8> poison, <8 x i32> <{order}>") for x in octets)
        sums.append(_pairs(t, t.line(f"call <8 x i16> @{name}(<8 x i8> {left}, <8 x i8> {right})")))
    pairs = "llvm.aarch64.neon.addp.v4i32"
    t.declare(pairs, f"declare <4 x i32> @{pairs}(<4 x i32>, <4 x i32>)")
    return t.line(f"call <4 x i32> @{pairs}(<4 x i32> {sums[0]}, <4 x i32> {sums[1]})")


def _pairs(t: Typed, shorts: str) -> str:
    """Sums of neighbouring 16-bit numbers in 32 bits."""
    name = "llvm.aarch64.neon.saddlp.v4i32.v8i16"
    t.declare(name, f"declare <4 x i32> @{name}(<8 x i16>)")
    return t.line(f"call <4 x i32> @{name}(<8 x i16> {shorts})")


def _pairs_of_bytes(t: Typed, words: str) -> str:
    """Sums of neighbouring signed bytes in 16 bits."""
    name = "llvm.aarch64.neon.saddlp.v8i16.v16i8"
    t.declare(name, f"declare <8 x i16> @{name}(<16 x i8>)")
    octets = t.line(f"bitcast {t.type_of()} {words} to <16 x i8>")
    return t.line(f"call <8 x i16> @{name}(<16 x i8> {octets})")


_WAYS = (
    _Way(frozenset({"avx512vnni", "avx512vl"}), 16, _vnni_piece),
    _Way(frozenset({"avxvnni"}), 8, _vnni_piece),
    _Way(frozenset({"avx512bw", "avx512vl"}), 16, _pmadd_piece),
    _Way(frozenset({"avx2"}), 8, _pmadd_piece),
    _Way(frozenset({"sse2"}), 4, _pmadd_piece),
    _Way(frozenset({"neon", "i8mm"}), 4, _usdot_piece),
    _Way(frozenset({"neon", "dotprod"}), 4, _sdot_piece),
    _Way(frozenset({"neon"}), 4, _smull_piece),
)
