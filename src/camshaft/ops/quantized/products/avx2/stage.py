"""Codes of a block of weights and of many tokens in scratch memory, and their products, for CPUs with AVX2 alone.

- Codes with a zero point become signed, and activations unsigned: q + 128. Their sum in 16 bits starts at -128 times the sum of
  the codes, the same for all tokens. It may wrap on its way: the sum of code q alone fits 16 bits.
- Codes past 64 in magnitude, whose products with unsigned activations would not fit, become 16-bit integers, as activations do.
  They have one scale a block, and are multiplied by it if it is whole.
- Codes with stored minima stay unsigned, and activations signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from camshaft.dtypes import u32
from camshaft.lang import Array, Tracer, Value
from camshaft.ops.quantized.packed.formats import PackedFormat
from camshaft.ops.quantized.packed.packing import ROWS
from camshaft.ops.quantized.packed.weights import Index
from camshaft.ops.quantized.products.avx2.sums import GREATEST, PAIR, SIGNED, WORDS, Tile, chain_of

BYTES = 0x01010101  # times a byte: four of it
EVEN, ODD = 0x00010001, 0x01000100  # times bytes: the even ones of each word, or the odd ones
MIDDLE = 128  # what activations are raised by
AHEAD = 2  # blocks of codes to prefetch


@dataclass(frozen=True)
class Way:
    """How codes are multiplied: `chain` words are added in 16 bits, or none, if codes are 16-bit integers themselves;
    `is_signed`: signed codes by unsigned activations."""

    chain: int
    is_signed: bool

    @property
    def is_short(self) -> bool:
        return self.chain == 0

    @property
    def words(self) -> int:
        """Words of a block of 32 k."""
        return 2 * WORDS if self.is_short else WORDS


def way_of(form: PackedFormat) -> Way:
    """Returns how codes of a format are multiplied."""
    zero = form.zero_point
    if zero is None:
        return Way(chain_of(form), False)
    codes = range(1 << form.bits) if form.table is None else form.table[: 1 << form.bits]
    greatest = max(abs(code - zero) for code in codes)
    if 2 * greatest * (MIDDLE + GREATEST) > 32767:
        return Way(0, False)
    fit, group = 32767 // (2 * GREATEST * greatest), WORDS // form.groups
    return Way(next(n for n in (8, 4, 2, 1) if n <= fit and group % n == 0), True)


@dataclass(frozen=True)
class Stage:
    """A block in scratch: its activations `x` [token, word], `codes` [word, row] and where sums start, `starts` [chain, row]."""

    k: Tracer
    form: PackedFormat
    way: Way
    x: Array
    codes: Array
    starts: Array | None

    def fill_tokens(self, tile: Tile, b: Value) -> None:
        """Copies block b of the tile's tokens."""
        for j in tile.times():
            for t, place in enumerate(tile.tokens(j).along(tile.blocks * WORDS, b * WORDS)):
                codes = self.k.bitcast(self.k.load_vector(tile.x[0], place, width=WORDS), u32)
                for i, words in enumerate(self._acting(codes)):
                    self.k.store_vector(self.x, words, j * tile.step + t, i * WORDS)

    def _acting(self, codes: Value) -> list[Value]:
        if self.way.is_short:
            return self._shorts(codes, WORDS)
        return [codes ^ SIGNED if self.way.is_signed else codes]

    def _shorts(self, words: Value, width: int) -> list[Value]:
        """Returns the even and the odd bytes of signed words, widened to 16 bits."""
        k, none = self.k, self.k.splat(0, width, u32)
        return [k.byte_pairs(none, k.splat(ones, width, u32), words) for ones in (EVEN, ODD)]

    def fill_codes(self, tile: Tile, b: Value) -> None:
        """Unpacks block b of the tile's rows."""
        tile.weights.prefetch(tile.mine.tile, b, AHEAD * self.form.bits)
        words = tile.weights.code_words(tile.mine.load, b)
        if self.form.zero_point is not None:
            words = [(word + (MIDDLE - self.form.zero_point) * BYTES) ^ SIGNED for word in words]
        if self.way.is_short:
            words = self._factors(tile, b, words)
        for w, word in enumerate(words):
            self.k.store_vector(self.codes, word, w, 0)
        if self.starts is not None:
            self._fill_starts(self.starts, words)

    def _factors(self, tile: Tile, b: Value, words: Sequence[Value]) -> list[Value]:
        """Returns words of signed codes as 16-bit integers, times the whole scales of the block if it has any."""
        k, pairs = self.k, [self._shorts(word, ROWS) for word in words]
        if self.form.is_nested:
            scale, _ = tile.weights.whole_scale(tile.mine.load, b, 0)
            sign, size = (k.bitcast(scale, u32) & 255) * BYTES, k.bitcast(k.maximum(scale, 0 - scale), u32)
            signed, none = [k.byte_signs(word, sign) for word in words], k.splat(0, ROWS, u32)
            pairs = [[k.byte_pairs(none, size * ones, word) for ones in (EVEN, ODD)] for word in signed]
        return [half for halves in zip(*pairs, strict=True) for half in halves]

    def _fill_starts(self, starts: Array, words: Sequence[Value]) -> None:
        """Stores -128 times the sums of codes: 128 times those of ~code = -1 - code, plus 128 a code, two in each 16 bits of a
        word."""
        k, chain = self.k, self.way.chain
        for c in range(WORDS // chain):
            start = k.splat(2 * MIDDLE * chain * PAIR, ROWS, u32)
            for word in words[c * chain : (c + 1) * chain]:
                start = k.byte_pairs(start, k.splat(SIGNED, ROWS, u32), word ^ 0xFFFFFFFF)
            k.store_vector(starts, start, c, 0)

    def dots(self, g: int, first: Index, starts: Sequence[Value], factor: Value) -> list[Value]:
        """Returns starts[t] + factor times the products of group g with the tokens from slot `first` on, i32. `factor` is in
        pairs, and ignored for 16-bit codes."""
        k, way, dots = self.k, self.way, list(starts)
        per_group = way.words // self.form.groups
        for w in range(g * per_group, (g + 1) * per_group, way.chain or 1):
            if way.is_short:
                code = self._code(w)
                dots = [k.dot2(dot, code, self._acted(first + t, w)) for t, dot in enumerate(dots)]
            else:
                sums = self._chained(w, first, len(dots))
                dots = [k.dot2(dot, total, factor) for dot, total in zip(dots, sums, strict=True)]
        return dots

    def _chained(self, w: int, first: Index, count: int) -> list[Value]:
        """Returns the sums in 16 bits of a chain of words from w on with each token."""
        k, way = self.k, self.way
        start = k.splat(0, ROWS, u32)
        if self.starts is not None:
            start = k.load_vector(self.starts, w // way.chain, 0, width=ROWS)
        sums = [start] * count
        for i in range(w, w + way.chain):
            code = self._code(i)
            for t, total in enumerate(sums):
                acted = self._acted(first + t, i)
                sums[t] = k.byte_pairs(total, *((acted, code) if way.is_signed else (code, acted)))
        return sums

    def _code(self, w: int) -> Value:
        return self.k.load_vector(self.codes, w, 0, width=ROWS)

    def _acted(self, slot: Index, w: int) -> Value:
        return self.k.splat(self.x[slot, w], ROWS, u32)


def stage_of(k: Tracer, form: PackedFormat, columns: int) -> Stage:
    """Returns scratch for a block of `columns` tokens and of a tile."""
    way = way_of(form)
    starts = k.scratch(u32, WORDS // way.chain, ROWS) if way.is_signed else None
    return Stage(k, form, way, k.scratch(u32, columns, way.words), k.scratch(u32, way.words, ROWS), starts)
