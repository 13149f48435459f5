"""Emit dot products and byte look-ups in LLVM IR, by an instruction of the target or by shifts and masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from camshaft.dtypes import f32, i32, u32
from camshaft.emit.llvm.context import Typed

# Number of words in a call -> x86's intrinsics. AVX-VNNI has the two narrow VNNI ones.
_VNNI = {n: f"llvm.x86.avx512.vpdpbusd.{32 * n}" for n in (4, 8, 16)}
_VNNI_SHORTS = {n: f"llvm.x86.avx512.vpdpwssd.{32 * n}" for n in (4, 8, 16)}
_BF16_DOTS = {n: f"llvm.x86.avx512bf16.dpbf16ps.{32 * n}" for n in (4, 8, 16)}
# Products of bytes with sums of two in 16 bits (SSSE3 on), products of 16-bit integers with sums of two in 32 bits.
BYTE_PRODUCTS = {
    4: "llvm.x86.ssse3.pmadd.ub.sw.128",
    8: "llvm.x86.avx2.pmadd.ub.sw",
    16: "llvm.x86.avx512.pmaddubs.w.512",
}
_SHORT_PRODUCTS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}


@dataclass(frozen=True)
class _Way:
    """The lowering for CPUs with all of `features`: `piece(t, *names, **options)` for at most `widest` words."""

    features: frozenset[str]
    widest: int
    piece: Callable[..., str]


def _chosen(ways: Sequence[_Way], t: Typed) -> _Way | None:
    """The first way that the target has; None for scalars and narrow vectors."""
    return next((way for way in ways if t.n >= 4 and way.features <= t.target.features), None)


def in_pieces(t: Typed, widest: int, names: tuple[str, ...], piece: Callable[..., str]) -> str:
    """Split vectors that are wider than an instruction takes, apply it to each part, and join the results."""
    if t.n <= widest:
        return piece(t, *names)
    half, halves = t.as_width(t.n // 2), []
    for start in (0, half.n):
        parts = tuple([t.ctx.shuffled(t.typ, n, range(start, start + half.n)) for n in names])
        halves.append(in_pieces(half, widest, parts, piece))
    return t.ctx.shuffled(half.typ, halves[0], range(t.n), halves[1])


# --- bytes: u8 times s8 ----------------------------------------------------------------------------------------------


def dot4(t: Typed, acc: str, a: str, b: str, small: bool = False) -> str:
    """acc + sum over 4 bytes of u8(a) * s8(b). `small`: every byte of a is below 128, which saves work on CPUs without such an
    instruction."""
    way = _chosen(_BYTE_WAYS, t)
    if way is not None:
        return in_pieces(t, way.widest, (acc, a, b), lambda part, *names: way.piece(part, *names, small=small))
    for byte in range(4):
        u = t.op("and", t.op("lshr", a, t.const(8 * byte)), t.const(255))
        s = t.op("ashr", t.op("shl", b, t.const(24 - 8 * byte)), t.const(24))
        acc = t.op("add", acc, t.op("mul", u, s))
    return acc


def dp4a(t: Typed, acc: str, a: str, b: str) -> str:
    """dot4 of one word by NVIDIA's dp4a instruction."""
    return t.ctx.call("llvm.nvvm.idp4a.u.s", "i32", ("i32", a), ("i32", b), ("i32", acc))


def _byte_dot(t: Typed, intrinsic: str, acc: str, a: str, b: str) -> str:
    """Call an instruction that takes words and two vectors of four times as many bytes."""
    octets = f"<{4 * t.n} x i8>"
    left, right = t.bits_as(octets, a, b)
    return t.ctx.call(intrinsic, t.typ, (t.typ, acc), (octets, left), (octets, right))


def _by_instruction(names: dict[int, str]) -> Callable[..., str]:
    """A way by one intrinsic per number of words."""
    return lambda t, acc, a, b, small: _byte_dot(t, names[t.n], acc, a, b)


def _pmadd(t: Typed, acc: str, a: str, b: str, small: bool) -> str:
    """By 16-bit products: two instructions for bytes below 128, of which two products fit 16 bits (127 * 128 * 2 < 2^15)."""
    shorts = f"<{2 * t.n} x i16>"
    if small and t.target.features >= {"sse4.1"}:
        octets = f"<{4 * t.n} x i8>"
        u, s = t.bits_as(octets, a, b)
        pairs = t.ctx.call(BYTE_PRODUCTS[t.n], shorts, (octets, u), (octets, s))
        return t.op("add", acc, _short_products(t, pairs, "splat (i16 1)"))
    # any bytes, widened to 16 bits: the even ones, then the odd ones
    ua, sb = t.bits_as(shorts, a, b)
    even_u = t.line(f"and {shorts} {ua}, splat (i16 255)")
    odd_u = t.line(f"lshr {shorts} {ua}, splat (i16 8)")
    even_s = t.line(f"ashr {shorts} {t.line(f'shl {shorts} {sb}, splat (i16 8)')}, splat (i16 8)")
    odd_s = t.line(f"ashr {shorts} {sb}, splat (i16 8)")
    even, odd = (_short_products(t, u, s) for u, s in ((even_u, even_s), (odd_u, odd_s)))
    return t.op("add", t.op("add", acc, even), odd)


def _short_products(t: Typed, a: str, b: str) -> str:
    """Products of 16-bit integers, summed by pairs in 32 bits."""
    shorts = f"<{2 * t.n} x i16>"
    return t.ctx.call(_SHORT_PRODUCTS[t.n], t.typ, (shorts, a), (shorts, b))


def _sdot(t: Typed, acc: str, a: str, b: str, small: bool) -> str:
    """u s = (u - 128) s + 128 s, where u - 128 is u's byte with its top bit flipped."""
    name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
    if small:
        return _byte_dot(t, name, acc, a, b)
    rest = t.op("shl", _byte_dot(t, name, t.const(0), t.const(0x01010101), b), t.const(7))
    return _byte_dot(t, name, t.op("add", acc, rest), t.op("xor", a, t.const(-0x7F7F7F80)), b)


def _smull(t: Typed, acc: str, a: str, b: str, small: bool) -> str:
    """16-bit products of half the bytes each, summed by pairs in 32 bits, and these by pairs."""
    if small:
        return t.op("add", acc, _signed_products(t, a, b))
    (octets,) = t.bits_as("<16 x i8>", b)
    pairs = t.ctx.call("llvm.aarch64.neon.saddlp.v8i16.v16i8", "<8 x i16>", ("<16 x i8>", octets))
    sums, flipped = _neon_pairs(t, pairs), t.op("xor", a, t.const(-0x7F7F7F80))
    return t.op("add", t.op("add", acc, t.op("shl", sums, t.const(7))), _signed_products(t, flipped, b))


def _signed_products(t: Typed, a: str, b: str) -> str:
    """Sum over 4 bytes of s8(a) * s8(b)."""
    octets, sums, half = t.bits_as("<16 x i8>", a, b), [], "<8 x i8>"
    for start in (0, 8):
        left, right = (t.ctx.shuffled("<16 x i8>", x, range(start, start + 8)) for x in octets)
        products = t.ctx.call("llvm.aarch64.neon.smull.v8i16", "<8 x i16>", (half, left), (half, right))
        sums.append(("<4 x i32>", _neon_pairs(t, products)))
    return t.ctx.call("llvm.aarch64.neon.addp.v4i32", "<4 x i32>", *sums)


def _neon_pairs(t: Typed, shorts: str) -> str:
    """Sums of pairs of 16-bit integers in 32 bits."""
    return t.ctx.call("llvm.aarch64.neon.saddlp.v4i32.v8i16", "<4 x i32>", ("<8 x i16>", shorts))


_BYTE_WAYS = (
    _Way(frozenset({"avx512vnni", "avx512vl"}), 16, _by_instruction(_VNNI)),
    _Way(frozenset({"avxvnni"}), 8, _by_instruction(_VNNI)),
    _Way(frozenset({"avx512bw", "avx512vl"}), 16, _pmadd),
    _Way(frozenset({"avx2"}), 8, _pmadd),
    _Way(frozenset({"sse2"}), 4, _pmadd),
    _Way(frozenset({"neon", "i8mm"}), 4, _by_instruction({4: "llvm.aarch64.neon.usdot.v4i32.v16i8"})),
    _Way(frozenset({"neon", "dotprod"}), 4, _sdot),
    _Way(frozenset({"neon"}), 4, _smull),
)


# --- pairs of bf16 and of 16-bit integers ----------------------------------------------------------------------------


def dot2(t: Typed, acc: str, a: str, b: str) -> str:
    """acc + high(a) high(b), then + low(a) low(b), of the halves of words. `t` is of the sums: f32 for bf16, i32 for 16-bit
    integers."""
    integers = t.dtype == i32
    way = _chosen(_SHORT_WAYS if integers else _BF16_WAYS, t)
    if integers and way is not None:
        return in_pieces(t, way.widest, (acc, a, b), way.piece)
    words = t.as_dtype(u32)
    if way is not None:  # the pieces are split as words, for both element types
        return words.bitcast(in_pieces(words, way.widest, (t.bitcast(acc, u32), a, b), way.piece), f32)
    for is_high in (True, False):
        if integers:
            x, y = (t.op("ashr", w if is_high else t.op("shl", w, t.const(16)), t.const(16)) for w in (a, b))
            acc = t.op("add", acc, t.op("mul", x, y))
        else:
            opcode, number = ("and", 0xFFFF0000) if is_high else ("shl", 16)
            x, y = (words.bitcast(words.op(opcode, w, words.const(number)), f32) for w in (a, b))
            acc = t.call("llvm.fma", x, y, acc)
    return acc


def _bf16_way(names: dict[int, str]) -> Callable[..., str]:
    """The pieces of bf16 dots by the intrinsics in `names`, by number of words."""

    def piece(words: Typed, acc: str, a: str, b: str) -> str:
        floats, pairs = words.as_dtype(f32), f"<{2 * words.n} x bfloat>"
        sums, total = floats.typ, words.bitcast(acc, f32)
        left, right = words.bits_as(pairs, a, b)
        return floats.bitcast(words.ctx.call(names[words.n], sums, (sums, total), (pairs, left), (pairs, right)), u32)

    return piece


def _vnni_shorts(t: Typed, acc: str, a: str, b: str) -> str:
    pairs = f"<{2 * t.n} x i16>"
    left, right = t.bits_as(pairs, a, b)
    return t.ctx.call(_VNNI_SHORTS[t.n], t.typ, (t.typ, acc), (pairs, left), (pairs, right))


def _pmadd_shorts(t: Typed, acc: str, a: str, b: str) -> str:
    return t.op("add", acc, _short_products(t, *t.bits_as(f"<{2 * t.n} x i16>", a, b)))


# vdpbf16ps adds the high halves' product first, then the low ones', with subnormals as 0. bfdot adds the two products first, and
# rounds both sums to odd.
_BF16_WAYS = (
    _Way(frozenset({"avx512bf16", "avx512vl"}), 16, _bf16_way(_BF16_DOTS)),
    _Way(frozenset({"neon", "bf16"}), 4, _bf16_way({4: "llvm.aarch64.neon.bfdot.v4f32.v8bf16"})),
)
_SHORT_WAYS = (
    _Way(frozenset({"avx512vnni", "avx512vl"}), 16, _vnni_shorts),
    _Way(frozenset({"avxvnni"}), 8, _vnni_shorts),
    _Way(frozenset({"avx512bw", "avx512vl"}), 16, _pmadd_shorts),
    _Way(frozenset({"avx2"}), 8, _pmadd_shorts),
    _Way(frozenset({"sse2"}), 4, _pmadd_shorts),
)


# --- bytes by 4-bit indexes ------------------------------------------------------------------------------------------

# Words in a shuffle -> (feature, intrinsic). Each looks up in the 16 bytes around its index.
_SHUFFLES = {
    16: (("avx512bw", "llvm.x86.avx512.pshuf.b.512"),),
    8: (("avx2", "llvm.x86.avx2.pshuf.b"),),
    4: (
        ("ssse3", "llvm.x86.ssse3.pshuf.b.128"),
        ("avx2", "llvm.x86.ssse3.pshuf.b.128"),
        ("neon", "llvm.aarch64.neon.tbl1.v16i8"),
    ),
}


def table_lookup(t: Typed, indexes: str, table: Sequence[int]) -> str | None:
    """Look up in a constant table by the target's shuffle. None if it has no shuffle, or for fewer than 4 words."""
    known = {n: name for n, ways in _SHUFFLES.items() for feature, name in ways if feature in t.target.features}
    fitting = [n for n in known if n <= t.n]
    if not fitting:
        return None
    octets = [str(byte) for word in table for byte in word.to_bytes(4, "little")]

    def piece(part: Typed, words: str) -> str:
        typ = f"<{4 * part.n} x i8>"
        (low,) = part.bits_as(typ, part.op("and", words, part.const(0x0F0F0F0F)))
        entries = f"<{', '.join(f'i8 {byte}' for byte in octets * (part.n // 4))}>"
        found = part.ctx.call(known[part.n], typ, (typ, entries), (typ, low))
        return part.line(f"bitcast {typ} {found} to {part.typ}")

    return in_pieces(t, max(fitting), (indexes,), piece)


def byte_lookup(t: Typed, indexes: str, *table: str) -> str:
    """Look up in any table by arithmetic: bits 2 and 3 of an index choose a word, bits 0 and 1 its byte."""
    result = t.const(0)
    for shift in (0, 8, 16, 24):
        index = t.op("lshr", indexes, t.const(shift))
        second, upper = (t.line(f"icmp ne {t.typ} {t.op('and', index, t.const(b))}, {t.const(0)}") for b in (4, 8))
        low, high = (t.select(second, table[i + 1], table[i]) for i in (0, 2))
        offset = t.op("shl", t.op("and", index, t.const(3)), t.const(3))
        octet = t.op("and", t.op("lshr", t.select(upper, high, low), offset), t.const(255))
        result = t.op("or", result, t.op("shl", octet, t.const(shift)))
    return result


def prmt(t: Typed, indexes: str, *table: str) -> str:
    """Look up by NVIDIA's permutation of the 8 bytes of two words: a nibble of its last operand chooses each byte."""

    def permuted(a: str, b: str, chosen: str) -> str:
        return t.ctx.call("llvm.nvvm.prmt", "i32", ("i32", a), ("i32", b), ("i32", chosen))

    low = t.op("and", indexes, t.const(0x0F0F0F0F))
    pairs = t.op("or", low, t.op("lshr", low, t.const(4)))  # bytes 0 and 2 have two nibbles each
    nibbles = permuted(pairs, t.const(0), t.const(0x4420))
    chosen = t.op("and", nibbles, t.const(0x7777))
    low_half, high_half = (permuted(table[i], table[i + 1], chosen) for i in (0, 2))
    upper = t.op("lshr", t.op("and", nibbles, t.const(0x8888)), t.const(1))
    return permuted(low_half, high_half, t.op("or", upper, t.const(0x3210)))
