"""Quantized products of many tokens on CPUs with AVX2 alone: a program has some tokens and some tiles of 16 rows.

Block by block of 32 k, it copies the tokens' codes to scratch, where they are one piece, in the form that the products need. Then
it unpacks each tile's block there and multiplies it by all tokens (stage.py). Integer sums are exact and floats are added in
the order of kernels.py and k_quant.py, so results are bit-equal to theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from camshaft.dtypes import f32, i32, u32
from camshaft.lang import Array, Tracer, Value
from camshaft.ops.quantized.packed.formats import PackedFormat
from camshaft.ops.quantized.packed.packing import ROWS, SUPER
from camshaft.ops.quantized.packed.weights import Index
from camshaft.ops.quantized.products import k_quant
from camshaft.ops.quantized.products.avx2.stage import Stage, stage_of
from camshaft.ops.quantized.products.avx2.sums import PAIR, WORDS, Tile, chain_of

# Staging always pays from FEW tokens on where it makes longer sums in 16 bits than LONG words, or saves products by whole scales;
# for others, with more than MANY tokens and k past NEAR, whose codes do not stay in the first cache.
FEW, MANY, NEAR, LONG = 16, 64, 1024, 4

TileAt: TypeAlias = Callable[[int, Index], Tile]
"""Returns tile r of the program's rows of a matrix, by the matrix's number."""


def pays(form: PackedFormat, tokens: int, k: int) -> bool:
    """Returns whether products are faster by staged blocks. Measured on one Zen 4 core, times the speed of sums.py: Q6_K and
    Q8_0 1.1 to 1.3, with 8 tokens 0.9; Q4_0, Q4_K and Q5_0 1.05 to 1.15 at k = 2048 and 4864, 0.96 to 1.02 at 896."""
    gains = chain_of(form) < LONG or k_quant.by_whole_numbers(form)
    return tokens >= FEW if gains else tokens > MANY and k > NEAR


@dataclass(frozen=True)
class Sums:
    """Numbers in scratch, [matrix, token, row]; `tiles` of a matrix."""

    k: Tracer
    rows: Array
    tiles: int

    def clear(self) -> None:
        """Sets all to 0."""
        matrices, tokens, rows = self.rows.shape
        for matrix in range(matrices):
            for t in self.k.range(tokens):
                for row in range(0, rows, ROWS):
                    self.k.store_vector(self.rows, self.k.splat(0.0, ROWS), matrix, t, row)

    def get(self, matrix: int, slot: Index, r: Index) -> Value:
        """Returns a token's numbers of tile r."""
        return self.k.load_vector(self.rows, matrix, slot, r * ROWS, width=ROWS)

    def set(self, matrix: int, slot: Index, r: Index, value: Value) -> None:
        self.k.store_vector(self.rows, value, matrix, slot, r * ROWS)


@dataclass(frozen=True)
class Part:
    """Block b of tile r of a matrix, staged, and the sums that its products are added to."""

    stage: Stage
    tile: Tile
    b: Value
    matrix: int
    r: Index
    sums: Sums

    def add(self) -> None:
        """Adds the products of all tokens."""
        if k_quant.by_whole_numbers(self.tile.form):
            self._add_whole()
        else:
            self._add_floats()

    def _fetch(self, j: Index) -> None:
        """Prefetches the next block's codes of one token, of all tokens in as many steps."""
        tile = self.tile
        token = tile.first + (self.matrix * self.sums.tiles + self.r) * tile.count + j
        tile.k.prefetch(tile.x[0], token * (tile.blocks * WORDS) + (self.b + 1) * WORDS)

    def _add_floats(self) -> None:
        """Adds to totals, as kernels.add_block does."""
        tile, k, groups = self.tile, self.tile.k, self.tile.form.groups
        _, x_scales, x_sums = tile.x
        pairs = [tile.weights.scale(tile.mine.load, self.b, g) for g in range(groups)]
        starts, ones = [k.splat(0, ROWS, i32)] * tile.step, k.splat(PAIR, ROWS, u32)
        for j in tile.times():
            self._fetch(j)
            tokens, slot = tile.tokens(j), j * tile.step
            scale_at, sum_at = tokens.along(tile.blocks, self.b), tokens.along(tile.blocks * groups, self.b * groups)
            for g, (scale, minimum) in enumerate(pairs):
                for t, dot in enumerate(self.stage.dots(g, slot, starts, ones)):
                    total = self.sums.get(self.matrix, slot + t, self.r)
                    total = k.fma(dot.to(f32), scale * x_scales[scale_at[t]], total)
                    if minimum is not None:
                        total = k.fma(minimum, k.splat(x_sums[sum_at[t] + g], ROWS), total)
                    self.sums.set(self.matrix, slot + t, self.r, total)

    def _add_whole(self) -> None:
        """Adds to sums over the super-block, as k_quant.add_block does."""
        tile, k, groups = self.tile, self.tile.k, self.tile.form.groups
        _, x_scales, x_sums = tile.x
        steps = k_quant.steps_of(tile.weights, tile.mine, self.b // SUPER)
        scales = k_quant.scales_of(tile.weights, tile.mine, self.b, steps)
        minima = k_quant.minima_of(scales, steps)
        for j in tile.times():
            self._fetch(j)
            tokens, slot = tile.tokens(j), j * tile.step
            scale_at, sum_at = tokens.along(tile.blocks, self.b), tokens.along(tile.blocks * groups, self.b * groups)
            for t, whole in enumerate(self._wholes(slot, [scale for scale, _ in scales])):
                part = self.sums.get(self.matrix, slot + t, self.r)
                for g, minimum in enumerate(minima):
                    part = k.fma(minimum, k.splat(x_sums[sum_at[t] + g], ROWS), part)
                part = k.fma(whole.to(f32), k.splat(x_scales[scale_at[t]], ROWS), part)
                self.sums.set(self.matrix, slot + t, self.r, part)

    def _wholes(self, slot: Index, scales: Sequence[Value]) -> list[Value]:
        """Returns the block's products times its whole scales."""
        k = self.tile.k
        wholes = [k.splat(0, ROWS, i32)] * self.tile.step
        for g, scale in enumerate(scales):
            low = k.bitcast(scale, u32) & 0xFFFF
            wholes = self.stage.dots(g, slot, wholes, low | (low << 16))
        return wholes


@dataclass(frozen=True)
class Program:
    """The tiles of rows of a program's matrices, `tiles` of at most `most` each, and its tokens, at most `columns`."""

    k: Tracer
    tile_at: TileAt
    matrices: int
    tiles: Value | int
    most: int
    columns: int

    def totals(self) -> Array:
        """Computes the products. Returns them [matrix, token, row]: token t of step j is j * step + t."""
        k, tile = self.k, self.tile_at(0, 0)
        stage, totals = stage_of(k, tile.form, self.columns), self._sums()
        if not k_quant.by_whole_numbers(tile.form):
            for b in k.range(tile.blocks):
                self._add_block(stage, b, totals)
            return totals.rows
        parts = self._sums()
        for s in k.range(tile.blocks // SUPER):
            for i in k.range(SUPER):
                self._add_block(stage, s * SUPER + i, parts)
            self._add_parts(s, parts, totals)
        return totals.rows

    def _sums(self) -> Sums:
        sums = Sums(self.k, self.k.scratch(f32, self.matrices, self.columns, self.most * ROWS), self.most)
        sums.clear()
        return sums

    def _each(self, use: Callable[[int, Index], None]) -> None:
        for matrix in range(self.matrices):
            for r in range(1) if self.most == 1 else self.k.range(self.tiles):
                use(matrix, r)

    def _add_block(self, stage: Stage, b: Value, sums: Sums) -> None:
        stage.fill_tokens(self.tile_at(0, 0), b)

        def add(matrix: int, r: Index) -> None:
            tile = self.tile_at(matrix, r)
            stage.fill_codes(tile, b)
            Part(stage, tile, b, matrix, r, sums).add()

        self._each(add)

    def _add_parts(self, s: Value, parts: Sums, totals: Sums) -> None:
        """Adds the sums over super-block s, and clears them."""
        k = self.k

        def add(matrix: int, r: Index) -> None:
            tile = self.tile_at(matrix, r)
            scale = k_quant.steps_of(tile.weights, tile.mine, s).scale
            for slot in k.range(self.columns):
                total = k.fma(scale, parts.get(matrix, slot, r), totals.get(matrix, slot, r))
                totals.set(matrix, slot, r, total)
                parts.set(matrix, slot, r, k.splat(0.0, ROWS))

        self._each(add)
