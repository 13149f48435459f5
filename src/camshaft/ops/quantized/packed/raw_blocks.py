"""Reads the codes, scales and minima of each GGUF block format inside a kernel, four codes at a time in the bytes of a u32.

The layouts of the formats are those of formats/.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from camshaft.dtypes import u32
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.lang import Array, Tracer, Value


@dataclass
class Record:
    """One block of a format per lane: the bytes of `raw` (u32 words, the last of which is `last`) from byte `start` on.

    Where records are not multiples of a word, a word of a record is in two of the file's, which are shifted together; each is
    read once. `grid`: the words of the format's grid, if it has one (iq_grids.py).
    """

    k: Tracer
    raw: Array
    start: Value
    last: Value
    block: str
    grid: Array | None = None
    seen: dict[int, Value] = field(default_factory=dict)

    def _file_word(self, offset: int) -> Value:
        """The file's word with byte `offset` of the record, clamped to the file: past the record's end it is not used."""
        if offset not in self.seen:
            index = (self.start + offset) >> 2
            past = offset >= BLOCK_FORMATS[self.block].block_nbytes
            self.seen[offset] = self.k.gather(self.raw, self.k.minimum(index, self.last) if past else index)
        return self.seen[offset]

    def _shift(self, offset: int) -> Value | None:
        """Returns the bits of the file's word before byte `offset` of the record; None if 0 in all records."""
        if BLOCK_FORMATS[self.block].block_nbytes % 4 == 0:
            return None
        return ((self.start + offset) & 3).to(u32) << 3

    def _bytes(self, offset: int, count: int) -> Value:
        """Up to 4 bytes from a byte of the record on, in the low bits of a u32; fewer than 4 are in one word of the file."""
        shift = self._shift(offset)
        if shift is None:
            word, before = self._file_word(offset // 4 * 4), offset % 4 * 8
            value = word >> before if before else word
        elif count == 4:
            above = (self._file_word(offset + 4) << (shift ^ 31)) << 1
            value = (self._file_word(offset) >> shift) | above
        else:
            value = self._file_word(offset) >> shift
        return value if count == 4 else value & ((1 << 8 * count) - 1)

    def _offset(self, name: str) -> int:
        layout = BLOCK_FORMATS[self.block].layout
        assert layout is not None
        assert layout.fields is not None
        return int(layout.fields[name][1])

    def word(self, name: str, i: int = 0) -> Value:
        """Returns bytes 4 i to 4 i + 3 of a field."""
        return self._bytes(self._offset(name) + 4 * i, 4)

    def half(self, name: str) -> Value:
        """Returns a 16-bit field."""
        return self._bytes(self._offset(name), 2)

    def byte(self, name: str, i: int = 0) -> Value:
        """Returns byte i of a field."""
        return self._bytes(self._offset(name) + i, 1)


Many = Callable[[Record, int], list[Value]]


@dataclass(frozen=True)
class RawFormat:
    """How to read a format: `codes` returns the 8 code words of block j (32 k), `scales` and `minima` its stored scales and
    minima, `steps` the steps of the record; None if the format has none."""

    codes: Many
    scales: Many
    minima: Many | None = None
    steps: Callable[[Record], list[Value]] | None = None


def bits_at(word: Value, shift: int, count: int, at: int = 0) -> Value:
    """Moves `count` bits of every byte from bit `shift` to bit `at`."""
    mask = 0x01010101 * ((1 << count) - 1)
    moved = (word >> shift if shift else word) & mask
    return moved << at if at else moved


# --- codes -------------------------------------------------------------------------------------------------------------
def nibble_pairs(words: list[Value]) -> list[Value]:
    """The low nibbles of all words, then the high ones."""
    return [bits_at(word, shift, 4) for shift in (0, 4) for word in words]


def _nibbles(r: Record, j: int) -> list[Value]:
    """16 bytes per block: low nibbles first, then high ones."""
    return nibble_pairs([r.word("qs", 4 * j + i) for i in range(4)])


def _nibbles_of_two(r: Record, j: int) -> list[Value]:
    """32 bytes per two blocks, the first in the low nibbles."""
    return [bits_at(r.word("qs", j // 2 * 8 + w), j % 2 * 4, 4) for w in range(8)]


def _spread(qh: Value, w: int) -> Value:
    """Bits 4 w to 4 w + 3 of a word, each moved to bit 4 of a byte: copies at distances of 7 bits, masked to one bit in 8."""
    return (((qh >> (4 * w)) & 15) * 0x00204081 & 0x01010101) << 4


def _five(r: Record, j: int) -> list[Value]:
    qh = r.word("qh")
    return [low | _spread(qh, w) for w, low in enumerate(_nibbles(r, j))]


def _q8_0(r: Record, j: int) -> list[Value]:
    return [r.word("qs", w) ^ 0x80808080 for w in range(8)]


def two_bits(r: Record, j: int) -> list[Value]:
    """32 bytes per four blocks, the first in the lowest two bits."""
    return [bits_at(r.word("qs", j // 4 * 8 + w), j % 4 * 2, 2) for w in range(8)]


def _q3_k(r: Record, j: int) -> list[Value]:
    return [low | bits_at(r.word("hmask", w), j, 1, 2) for w, low in enumerate(two_bits(r, j))]


def _q5_k(r: Record, j: int) -> list[Value]:
    return [low | bits_at(r.word("qh", w), j, 1, 4) for w, low in enumerate(_nibbles_of_two(r, j))]


def _q6_k(r: Record, j: int) -> list[Value]:
    half, quarter = j // 4, j % 4
    low = [bits_at(r.word("ql", 16 * half + quarter % 2 * 8 + w), quarter // 2 * 4, 4) for w in range(8)]
    return [code | bits_at(r.word("qh", 8 * half + w), 2 * quarter, 2, 4) for w, code in enumerate(low)]


# --- scales, minima, steps ---------------------------------------------------------------------------------------------
def _d(r: Record, j: int) -> list[Value]:
    return [r.half("d")]


def _m(r: Record, j: int) -> list[Value]:
    return [r.half("m")]


def _exponent(r: Record, j: int) -> list[Value]:
    return [r.byte("e")]


def _two_scales(r: Record, j: int) -> list[Value]:
    return [r.byte("scales", 2 * j + g) for g in range(2)]


def _byte_of(word: Value, i: int) -> Value:
    return (word >> (8 * i)) & 255


def _k_scales(r: Record, j: int) -> list[Value]:
    """A scale and a minimum of six bits (formats.k_blocks.k_scales)."""
    scales, minima, late = (r.word("scales", i) for i in range(3))
    if j < 4:
        return [_byte_of(word, j) & 63 for word in (scales, minima)]
    rest = _byte_of(late, j - 4)
    tops = [(_byte_of(word, j - 4) >> 6) << 4 for word in (scales, minima)]
    return [(rest & 15) | tops[0], (rest >> 4) | tops[1]]


def _q3_scales(r: Record, j: int) -> list[Value]:
    """Two of the 16 scales of six bits, less 32 (formats.k_blocks.q3_scales)."""
    low, high = r.word("scales", j // 2 % 2), r.word("scales", 2)
    found = []
    for g in (2 * j, 2 * j + 1):
        nibble = (_byte_of(low, g % 4) >> (g // 8 * 4)) & 15
        top = (_byte_of(high, g % 4) >> (g // 4 * 2)) & 3
        found.append((nibble | (top << 4)) - 32)
    return found


def _iq4_xs_scales(r: Record, j: int) -> list[Value]:
    low, high = (r.word("scales_l") >> (4 * j)) & 15, (r.half("scales_h") >> (2 * j)) & 3
    return [(low | (high << 4)) - 32]


def step(r: Record) -> list[Value]:
    """d."""
    return [r.half("d")]


def _steps(r: Record) -> list[Value]:
    """d, and dmin below zero."""
    return [r.half("d"), r.half("dmin") ^ 0x8000]


RAW_FORMATS: dict[str, RawFormat] = {
    "Q4_0": RawFormat(_nibbles, _d),
    "Q4_1": RawFormat(_nibbles, _d, _m),
    "Q5_0": RawFormat(_five, _d),
    "Q5_1": RawFormat(_five, _d, _m),
    "Q8_0": RawFormat(_q8_0, _d),
    "Q2_K": RawFormat(two_bits, _two_scales, steps=_steps),
    "Q3_K": RawFormat(_q3_k, _q3_scales, steps=step),
    "Q4_K": RawFormat(_nibbles_of_two, _k_scales, steps=_steps),
    "Q5_K": RawFormat(_q5_k, _k_scales, steps=_steps),
    "Q6_K": RawFormat(_q6_k, _two_scales, steps=step),
    "IQ4_NL": RawFormat(_nibbles, _d),
    "IQ4_XS": RawFormat(_nibbles, _iq4_xs_scales, steps=step),
    "MXFP4": RawFormat(_nibbles, _exponent),
}
