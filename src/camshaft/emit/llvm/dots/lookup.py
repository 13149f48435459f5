"""Bytes by 4-bit indexes in LLVM: by the byte shuffles of x86 and NEON, NVIDIA's byte permutation, or by masks and shifts."""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.emit.llvm.dots.dot4 import in_pieces
from camshaft.emit.llvm.typed import Typed

# Words that a shuffle takes, widest first -> (feature, intrinsic). Each looks up in 16 bytes beside its index.
_SHUFFLES = {
    16: (("avx512bw", "llvm.x86.avx512.pshuf.b.512"),),
    8: (("avx2", "llvm.x86.avx2.pshuf.b"),),
    4: (
        ("ssse3", "llvm.x86.ssse3.pshuf.b.128"),
        ("avx2", "llvm.x86.ssse3.pshuf.b.128"),
        ("neon", "llvm.aarch64.neon.tbl1.v16i8"),
    ),
}


def shuffled(t: Typed, indexes: str, table: Sequence[int]) -> str | None:
    """The bytes of a table that is known, by the target's shuffle; None where it has none, or for less than 4 words."""
    known = {n: name for n, ways in _SHUFFLES.items() for feature, name in ways if feature in t.target.features}
    fitting = [n for n in known if n <= t.n]
    if not fitting:
        return None
    octets = [str(byte) for word in table for byte in word.to_bytes(4, "little")]

    def piece(part: Typed, words: str) -> str:
        name, typ = known[part.n], f"<{4 * part.n} x i8>"
        t.declare(name, f"declare {typ} @{name}({typ}, {typ})")
        low = part.line(f"bitcast {part.type_of()} {part.op('and', words, part.const(0x0F0F0F0F))} to {typ}")
        entries = f"<{', '.join(f'i8 {byte}' for byte in octets * (part.n // 4))}>"
        found = part.line(f"call {typ} @{name}({typ} {entries}, {typ} {low})")
        return part.line(f"bitcast {typ} {found} to {part.type_of()}")

    return in_pieces(t, max(fitting), (indexes,), piece)


def byte_lookup(t: Typed, indexes: str, *table: str) -> str:
    """The same by arithmetic, the table's words being any: a word by bits 2 and 3 of an index, its byte by bits 0 and 1."""
    result = t.const(0)
    for shift in (0, 8, 16, 24):
        index = t.op("lshr", indexes, t.const(shift))
        second, upper = (
            t.line(f"icmp ne {t.type_of()} {t.op('and', index, t.const(b))}, {t.const(0)}") for b in (4, 8)
        )
        low, high = (t.select(second, table[i + 1], table[i]) for i in (0, 2))
        place = t.op("shl", t.op("and", index, t.const(3)), t.const(3))
        octet = t.op("and", t.op("lshr", t.select(upper, high, low), place), t.const(255))
        result = t.op("or", result, t.op("shl", octet, t.const(shift)))
    return result


def prmt(t: Typed, indexes: str, *table: str) -> str:
    """The same by NVIDIA's permutation of the 8 bytes of two words: a nibble of its last operand chooses each byte."""
    name = "llvm.nvvm.prmt"
    t.declare(name, f"declare i32 @{name}(i32, i32, i32)")

    def permuted(a: str, b: str, chosen: str) -> str:
        return t.line(f"call i32 @{name}(i32 {a}, i32 {b}, i32 {chosen})")

    low = t.op("and", indexes, t.const(0x0F0F0F0F))
    pairs = t.op("or", low, t.op("lshr", low, t.const(4)))  # bytes 0 and 2 hold two nibbles each
    nibbles = permuted(pairs, t.const(0), t.const(0x4420))
    chosen = t.op("and", nibbles, t.const(0x7777))
    low_half, high_half = (permuted(table[i], table[i + 1], chosen) for i in (0, 2))
    upper = t.op("lshr", t.op("and", nibbles, t.const(0x8888)), t.const(1))
    return permuted(low_half, high_half, t.op("or", upper, t.const(0x3210)))
