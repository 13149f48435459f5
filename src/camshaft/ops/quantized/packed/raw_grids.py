"""Reads IQ1, IQ2, IQ3, ternary and NVFP4 blocks inside a kernel, as raw_blocks.py does the others.

IQ codes are made of a grid row's indexes, a byte each (iq_grids.Grid.words), with a sign above them; tables of packing.py have
the numbers of these codes.
"""

from __future__ import annotations

from collections.abc import Callable

from camshaft.dtypes import i64, u32
from camshaft.formats.quants.iq_grids import GRIDS
from camshaft.lang import Value
from camshaft.ops.quantized.packed.raw_blocks import RawFormat, Record, bits_at, nibble_pairs, step, two_bits

Octet = Callable[[Record, int, int], Value]


def _short(r: Record, name: str, i: int) -> Value:
    """Word i of 16 bits of a field."""
    return (r.word(name, i // 2) >> (i % 2 * 16)) & 0xFFFF


def _row(r: Record, number: Value) -> list[Value]:
    """The words of a grid row."""
    assert r.grid is not None
    words = GRIDS[r.block].width // 4
    first = number.to(i64) * words
    return [r.k.gather(r.grid, first + w) for w in range(words)]


def _bit_per_byte(octet: Value, half: int, at: int) -> Value:
    """Bits 4 half to 4 half + 3, each moved to bit `at` of a byte: copies at distances of 7 bits, masked to one bit in 8."""
    return (((octet >> (4 * half)) & 15) * 0x00204081 & 0x01010101) << at


def _even(seven: Value) -> Value:
    """Eight sign bits from seven: the eighth makes their number even."""
    odd = seven ^ (seven >> 4)
    odd = odd ^ (odd >> 2)
    return seven | (((odd ^ (odd >> 1)) & 1) << 7)


def _signed(number: Octet, signs: Octet) -> Callable[[Record, int], list[Value]]:
    """Codes from `number(r, j, i)`, that of row i of block j, and `signs(r, j, i)`, those of elements 8 i to 8 i + 7."""

    def codes(r: Record, j: int) -> list[Value]:
        grid = GRIDS[r.block]
        at = (len(grid.levels) - 1).bit_length()
        words = [word for i in range(32 // grid.width) for word in _row(r, number(r, j, i))]
        octets = [signs(r, j, i) for i in range(4)]
        return [word | _bit_per_byte(octets[w // 2], w % 2, at) for w, word in enumerate(words)]

    return codes


def _sevenths(name: str, words: int) -> Octet:
    """The signs in the low 28 bits of the last of `words` words per block of a field."""
    return lambda r, j, i: _even((r.word(name, words * j + words - 1) >> (7 * i)) & 127)


def _with_high(r: Record, i: int, high: Value, shift: int, mask: int) -> Value:
    """Row number i of a record: 8 low bits and some high ones."""
    return r.byte("qs", i) | (((high >> shift) & mask) << 8)


_IQ2_XXS = _signed(lambda r, j, i: (r.word("qs", 2 * j) >> (8 * i)) & 255, _sevenths("qs", 2))
_IQ2_XS = _signed(
    lambda r, j, i: _short(r, "qs", 4 * j + i) & 511,
    lambda r, j, i: _even(_short(r, "qs", 4 * j + i) >> 9),
)
_IQ2_S = _signed(
    lambda r, j, i: _with_high(r, 4 * j + i, r.byte("qh", j), 2 * i, 3), lambda r, j, i: r.byte("signs", 4 * j + i)
)
_IQ3_XXS = _signed(lambda r, j, i: r.byte("qs", 8 * j + i), _sevenths("scales", 1))
_IQ3_S = _signed(
    lambda r, j, i: _with_high(r, 8 * j + i, r.byte("qh", j), i, 1), lambda r, j, i: r.byte("signs", 4 * j + i)
)


def _iq1_s(r: Record, j: int) -> list[Value]:
    """0, 1 or 2: the level is 1 less; minima contain the 1 / 8."""
    high = _short(r, "qh", j)
    return [word for i in range(4) for word in _row(r, _with_high(r, 4 * j + i, high, 3 * i, 7))]


def _iq1_m(r: Record, j: int) -> list[Value]:
    """As IQ1_S, plus 4 where 1 / 8 is subtracted."""
    words = []
    for i in range(4):
        four = r.byte("qh", 2 * j + i // 2) >> (i % 2 * 4)
        less = ((four >> 3) & 1) * 0x04040404
        words += [word | less for word in _row(r, _with_high(r, 4 * j + i, four, 0, 7))]
    return words


def _odd(scale: Value) -> Value:
    return scale * 2 + 1


def _top_scale(name: str, words: int) -> Callable[[Record, int], list[Value]]:
    """The scale in the top 4 bits of the last of `words` words per block."""
    return lambda r, j: [_odd(r.word(name, words * j + words - 1) >> 28)]


def _two_nibbles(r: Record, j: int) -> list[Value]:
    both = r.byte("scales", j)
    return [_odd(both & 15), _odd(both >> 4)]


def _one_nibble(r: Record, j: int) -> list[Value]:
    return [_odd((r.byte("scales", j // 2) >> (j % 2 * 4)) & 15)]


def _iq1_s_scales(r: Record, j: int) -> list[Value]:
    """8 (2 s + 1), and the minimum (2 s + 1) (8 -+ 1), in units of d / 8."""
    word = _short(r, "qh", j)
    odd = _odd((word >> 12) & 7)
    return [odd * 8, odd * (7 + ((word >> 15) << 1))]


def _iq1_s_steps(r: Record) -> list[Value]:
    """d, and d below zero for minima."""
    return [r.half("d"), r.half("d") ^ 0x8000]


def _iq1_m_scales(r: Record, j: int) -> list[Value]:
    word = _short(r, "scales", j // 2)
    return [_odd((word >> (6 * (j % 2) + 3 * g)) & 7) for g in range(2)]


def _iq1_m_step(r: Record) -> list[Value]:
    """d, whose nibbles are the top ones of four words of 16 bits."""
    tops = [_short(r, "scales", i) >> 12 for i in range(4)]
    return [tops[0] | (tops[1] << 4) | (tops[2] << 8) | (tops[3] << 12)]


# --- ternary, NVFP4 ----------------------------------------------------------------------------------------------------
def _digit(word: Value, i: int) -> Value:
    """Base-3 digit i of every byte (formats/quants/ternary.py): even and odd bytes apart, in 16 bits each."""

    def of(bytes_: Value) -> Value:
        moved = (bytes_ * int(3**i)) & 0x00FF00FF
        return ((moved * 3) >> 8) & 0x00FF00FF

    return of(word & 0x00FF00FF) | (of((word >> 8) & 0x00FF00FF) << 8)


def _tq1_0(r: Record, j: int) -> list[Value]:
    """Five digits of 32 bytes, five of 16 and four of 4."""
    if j < 5:
        return [_digit(r.word("qs", w), j) for w in range(8)]
    words = [_digit(r.word("qs", 8 + w), i) for i in range(5) for w in range(4)]
    words += [_digit(r.word("qh"), i) for i in range(4)]
    return words[8 * (j - 5) : 8 * (j - 4)]


def _one(r: Record, j: int) -> list[Value]:
    return [r.k.const(1, u32)]


def _nvfp4(r: Record, j: int) -> list[Value]:
    """Per 16 elements 8 bytes, low nibbles first."""
    pairs = [[r.word("qs", 4 * j + 2 * g + w) for w in range(2)] for g in range(2)]
    return [word for pair in pairs for word in nibble_pairs(pair)]


def _e4m3(r: Record, j: int) -> list[Value]:
    """E4M3 bytes without their sign; 0 for 0x7F."""
    found = [r.byte("d", 2 * j + g) for g in range(2)]
    return [r.k.select(byte == 0x7F, 0, bits_at(byte, 0, 7)) for byte in found]


GRID_FORMATS: dict[str, RawFormat] = {
    "IQ1_S": RawFormat(_iq1_s, _iq1_s_scales, steps=_iq1_s_steps),
    "IQ1_M": RawFormat(_iq1_m, _iq1_m_scales, steps=_iq1_m_step),
    "IQ2_XXS": RawFormat(_IQ2_XXS, _top_scale("qs", 2), steps=step),
    "IQ2_XS": RawFormat(_IQ2_XS, _two_nibbles, steps=step),
    "IQ2_S": RawFormat(_IQ2_S, _two_nibbles, steps=step),
    "IQ3_XXS": RawFormat(_IQ3_XXS, _top_scale("scales", 1), steps=step),
    "IQ3_S": RawFormat(_IQ3_S, _one_nibble, steps=step),
    "TQ1_0": RawFormat(_tq1_0, _one, steps=step),
    "TQ2_0": RawFormat(two_bits, _one, steps=step),
    "NVFP4": RawFormat(_nvfp4, _e4m3),
}
