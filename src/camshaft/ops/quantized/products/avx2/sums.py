"""The arithmetic of quantized_matmul on CPUs with 16 vector registers: each block is unpacked once for many tokens.

With AVX2 alone, products are added in 16 bits and widened together: `vpmaddubsw` gives sums of two products u8 x s8 in 16 bits,
`vpmaddwd` widens those to 32 bits and can multiply them by scales. Both run on the same two ports. For codes of 4 bits, eight of
these sums fit in 16 bits, so a block of 32 k is widened once. With AVX-VNNI (`vnni`), `vpdpbusd` adds in 32 bits.

A program has 16 rows of weights and `columns` tokens. It takes `step` tokens at a time, whose sums fill the 16 registers. With
more tokens than one step, it unpacks each block once into scratch memory, and the f32 totals stay in the L1 cache. Integer sums
are exact and floats are added in the order of kernels.py and k_quant.py, so results are bit-equal to theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from camshaft.dtypes import f32, i32, u32
from camshaft.lang import Array, Tracer, Value
from camshaft.ops.quantized.operands import Consecutive, Rows
from camshaft.ops.quantized.packed.formats import PackedFormat
from camshaft.ops.quantized.packed.packing import ROWS, SUPER
from camshaft.ops.quantized.packed.weights import Index, Packed
from camshaft.ops.quantized.products import k_quant

WORDS = 8  # of codes in a block of 32 k
GREATEST = 127  # of an activation's code, in magnitude
SIGNED = 0x80808080  # the zero point 128 of four codes
PAIR = 0x00010001  # 16-bit ones; times a number below 2^15: a pair of it


def chain_of(form: PackedFormat) -> int:
    """Returns how many words of a group are added in 16 bits; 0 for codes over 127, multiplied by magnitude and sign."""
    greatest = max(form.table) if form.table is not None else (1 << form.bits) - 1
    if greatest > GREATEST:
        return 0
    fit, group = 32767 // (2 * GREATEST * greatest), WORDS // form.groups
    return next(n for n in (8, 4, 2, 1) if n <= fit and group % n == 0)


class Sums:
    """A row of 16 numbers per token: variables, or in scratch if the tokens are many."""

    def __init__(self, k: Tracer, mine: Rows, count: int, in_registers: bool) -> None:
        self.k, self.mine, self.count = k, mine, count
        self.variables = [k.var(mine.spread(0.0)) for _ in range(count)] if in_registers else []
        self.rows = None if in_registers else k.scratch(f32, count, ROWS)
        if not in_registers:
            self.clear()

    def clear(self) -> None:
        """Sets all to 0."""
        for variable in self.variables:
            variable.set(self.mine.spread(0.0))
        if self.rows is not None:
            zeros = self.mine.spread(0.0)
            for slot in self.k.range(self.count):
                self.k.store_vector(self.rows, zeros, slot, 0)

    def get(self, slot: Index) -> Value:
        """Returns a token's numbers; `slot` is a Python number for variables."""
        if self.rows is None:
            assert isinstance(slot, int)
            return self.variables[slot].value
        return self.k.load_vector(self.rows, slot, 0, width=ROWS)

    def set(self, slot: Index, value: Value) -> None:
        if self.rows is None:
            assert isinstance(slot, int)
            self.variables[slot].set(value)
        else:
            self.k.store_vector(self.rows, value, slot, 0)

    def slots(self) -> Iterator[Index]:
        """Yields every slot, in a loop if they are in scratch."""
        yield from range(self.count) if self.rows is None else self.k.range(self.count)


@dataclass(frozen=True)
class Tile:
    """16 rows of weights, `mine`, times tokens from `first` on, `step` at a time, `count` times; the last step starts earlier, so
    that it ends at `bound` tokens (None: all steps end before). One step keeps all in registers. `ahead`: words to prefetch.
    `vnni`: products are added in 32 bits, by AVX-VNNI."""

    x: tuple[Array, ...]
    weights: Packed
    mine: Rows
    blocks: int
    first: Value
    bound: int | None
    step: int
    count: Value | int
    ahead: int = 0
    vnni: bool = False

    @property
    def is_signed(self) -> bool:
        """Whether codes are multiplied by magnitude and sign, so that no zero point is left."""
        return not self.vnni and chain_of(self.form) == 0

    @property
    def k(self) -> Tracer:
        return self.mine.k

    @property
    def form(self) -> PackedFormat:
        return self.weights.form

    @property
    def is_single(self) -> bool:
        """Whether the tokens are taken at once."""
        return isinstance(self.count, int)

    def times(self) -> Iterator[Index]:
        """Yields the number of each step."""
        yield from range(1) if self.is_single else self.k.range(self.count)

    def tokens(self, j: Index) -> Consecutive:
        """Returns the tokens of step j."""
        first = self.first + j * self.step
        return Consecutive(first if self.bound is None else self.k.minimum(first, self.bound - self.step), self.step)

    def sums(self, columns: int) -> Sums:
        return Sums(self.k, self.mine, columns, self.is_single)


def totals_of(tile: Tile, columns: int) -> Sums:
    """Computes the products of `columns` tokens at most. Returns the totals of all rows, token t of step j in slot step j + t."""
    (totals,) = stream_totals([tile], columns, 1)
    return totals


def stream_totals(tiles: Sequence[Tile], columns: int, blocks: int) -> list[Sums]:
    """Computes `totals_of` of tiles with different rows and the same tokens, `blocks` blocks of each at a time."""
    k, form, size = tiles[0].k, tiles[0].form, tiles[0].blocks
    unpacked = None if tiles[0].is_single else k.scratch(u32, WORDS, ROWS)
    totals = [tile.sums(columns) for tile in tiles]
    if not k_quant.by_whole_numbers(form):
        for first in k.range(0, size, blocks):
            for tile, own in zip(tiles, totals, strict=True):
                for i in range(blocks):
                    _add_block(tile, _block(tile, first + i, unpacked), own)
        return totals
    parts = [tile.sums(columns) for tile in tiles]
    for s in k.range(size // SUPER):
        steps = [k_quant.steps_of(tile.weights, tile.mine, s) for tile in tiles]
        for part in parts:
            part.clear()
        for first in k.range(0, SUPER, blocks):
            for tile, step, part in zip(tiles, steps, parts, strict=True):
                for i in range(blocks):
                    _add_nested(tile, _block(tile, s * SUPER + first + i, unpacked), step, part)
        for step, part, own in zip(steps, parts, totals, strict=True):
            for slot in own.slots():
                own.set(slot, k.fma(step.scale, part.get(slot), own.get(slot)))
    return totals


@dataclass(frozen=True)
class _Block:
    """Block b of the weights: `word(w)` reads 4 codes of each row, signed ones if the tile's are."""

    b: Value
    word: Callable[[int], Value]


def _block(tile: Tile, b: Value, unpacked: Array | None) -> _Block:
    """Unpacks a block, into scratch unless it is used once."""
    if tile.ahead:
        tile.weights.prefetch(tile.mine.tile, b, tile.ahead, tile.step)
    words = tile.weights.code_words(tile.mine.load, b)
    if tile.is_signed:
        words = [word ^ SIGNED for word in words]
    if unpacked is None:
        return _Block(b, words.__getitem__)
    for w, word in enumerate(words):
        tile.k.store_vector(unpacked, word, w, 0)
    return _Block(b, lambda w: tile.k.load_vector(unpacked, w, 0, width=ROWS))


def _add_block(tile: Tile, block: _Block, totals: Sums) -> None:
    """Adds a block with scales of its own to all totals."""
    pairs = [tile.weights.scale(tile.mine.load, block.b, g) for g in range(tile.form.groups)]
    for j in tile.times():
        _add_floats(tile, block, pairs, tile.tokens(j), j, totals)


def _add_nested(tile: Tile, block: _Block, steps: k_quant.Steps, parts: Sums) -> None:
    """Adds a block with whole scales to all sums over the super-block."""
    scales = k_quant.scales_of(tile.weights, tile.mine, block.b, steps)
    minima = k_quant.minima_of(scales, steps)
    for j in tile.times():
        _add_whole(tile, block, scales, minima, tile.tokens(j), j, parts)


def _dots(
    tile: Tile, block: _Block, g: int, factor: Value, places: Sequence[Value], starts: Sequence[Value]
) -> list[Value]:
    """Returns starts[t] + factor times the products of group g with the codes from places[t] on, i32. `factor` is in pairs; a
    VNNI tile ignores it."""
    k, (x_codes, *_), chain = tile.k, tile.x, chain_of(tile.form)
    per_group, dots = WORDS // tile.form.groups, list(starts)
    if tile.vnni:
        for w in range(g * per_group, (g + 1) * per_group):
            code = block.word(w)
            for t, place in enumerate(places):
                dots[t] = k.dot4(dots[t], code, tile.mine.spread(x_codes[place + w], u32))
        return dots
    for first in range(g * per_group, (g + 1) * per_group, chain or 1):
        sums = [tile.mine.spread(0, u32)] * len(places)
        for w in range(first, first + (chain or 1)):
            code = block.word(w)
            size = code if chain else k.byte_signs(code, code)
            for t, place in enumerate(places):
                acted = tile.mine.spread(x_codes[place + w], u32)
                sums[t] = k.byte_pairs(sums[t], size, acted if chain else k.byte_signs(acted, code))
        dots = [k.dot2(dot, total, factor) for dot, total in zip(dots, sums, strict=True)]
    return dots


def _add_floats(tile: Tile, block: _Block, pairs: k_quant.Scales, tokens: Consecutive, j: Index, totals: Sums) -> None:
    """Adds a block to the totals of step j, as kernels.add_block does. `pairs`: scale and minimum by group."""
    k, mine, groups = tile.k, tile.mine, tile.form.groups
    _, x_scales, x_sums = tile.x
    code_at, scale_at = tokens.along(tile.blocks * WORDS, block.b * WORDS), tokens.along(tile.blocks, block.b)
    sum_at = tokens.along(tile.blocks * groups, block.b * groups)
    ones = mine.spread(PAIR, u32)
    for g, (scale, minimum) in enumerate(pairs):
        sums = [x_sums[at + g] for at in sum_at]
        has_start = minimum is None and not tile.is_signed
        starts = [mine.spread(q_sum if has_start else 0, i32) for q_sum in sums]
        for t, dot in enumerate(_dots(tile, block, g, ones, code_at, starts)):
            total = k.fma(dot.to(f32), scale * x_scales[scale_at[t]], totals.get(j * tile.step + t))
            if minimum is not None:
                total = k.fma(minimum, mine.spread(sums[t]), total)
            totals.set(j * tile.step + t, total)


def _add_whole(
    tile: Tile,
    block: _Block,
    scales: k_quant.Scales,
    minima: Sequence[Value],
    tokens: Consecutive,
    j: Index,
    parts: Sums,
) -> None:
    """Adds a block to the sums of step j over the super-block, as k_quant.add_block does."""
    k, mine, groups = tile.k, tile.mine, tile.form.groups
    _, x_scales, x_sums = tile.x
    code_at, scale_at = tokens.along(tile.blocks * WORDS, block.b * WORDS), tokens.along(tile.blocks, block.b)
    sum_at = tokens.along(tile.blocks * groups, block.b * groups)
    sums = [[x_sums[at + g] for g in range(groups)] for at in sum_at]
    wholes = [mine.spread(0, i32)] * len(sums)
    for g, (scale, _) in enumerate(scales):
        if tile.vnni:
            starts = [mine.spread(0 if minima else own[g], i32) for own in sums]
            dots = _dots(tile, block, g, scale, code_at, starts)
            wholes = [whole + scale * dot for whole, dot in zip(wholes, dots, strict=True)]
            continue
        if not minima and not tile.is_signed:
            wholes = [whole + scale * mine.spread(own[g], i32) for whole, own in zip(wholes, sums, strict=True)]
        low = k.bitcast(scale, u32) & 0xFFFF
        wholes = _dots(tile, block, g, low | (low << 16), code_at, wholes)
    for t, whole in enumerate(wholes):
        part = parts.get(j * tile.step + t)
        for minimum, q_sum in zip(minima, sums[t] if minima else (), strict=True):
            part = k.fma(minimum, mine.spread(q_sum), part)
        part = k.fma(whole.to(f32), mine.spread(x_scales[scale_at[t]]), part)
        parts.set(j * tile.step + t, part)
