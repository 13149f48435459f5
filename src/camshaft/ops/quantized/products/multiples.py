"""The variant `multiples` of quantized_matmul: prompts by weights of IQ1 to IQ3, IQ4_XS and Q3_K on CPUs with AVX-512 VNNI. It
looks up products of scales, because whole scales of these formats have at most five significant bits.

On Zen 4 byte dot products and multiplications of integers and floats share two ports; permutations, conversions and additions
have others. A block of 32 k costs a token 8 dot products and one multiply-add. The product of both scales would be one more
multiplication, of 16 rows by each token. Here it is a permutation: scratch memory has 16 multiples of a token's scale, of which
each row's whole scale chooses one. The scales of IQ1 to IQ3 are 1, 3, .. 31, and these are the multiples. Those of IQ4_XS and
Q3_K are 0 or +-2^e (1 + i / 16). For these the multiples are those by 1 + i / 16, and one addition to their bits adds e to the
exponent and sets the sign.

A program has some tokens and some tiles of 16 rows, and takes a super-block of 256 k at a time. It copies the tokens' codes to
scratch, where they are one piece, with the multiples beside them. It unpacks each tile's blocks there once for all tokens, the
next tile's while it multiplies one, and prefetches those of the tile after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from camshaft.dtypes import f32, i32, i64, u32
from camshaft.lang import Array, Tracer, Value, Variable, kernel
from camshaft.ops import op as ops
from camshaft.ops.quantized.operands import Rows, dot_words
from camshaft.ops.quantized.packed.formats import PACKED_FORMATS, PackedFormat
from camshaft.ops.quantized.packed.packing import ROWS, SUPER
from camshaft.ops.quantized.packed.weights import Index, Packed
from camshaft.ops.quantized.products.kernels import FEW_ROWS, is_q8, operands, packed_only, product_build, tile_cost

ODD, SIGNED = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), ("IQ4_XS", "Q3_K")
WORDS = 8  # of codes in a block of 32 k
STEP = 4  # tokens at a time
ONES = 0x01010101
FRACTION = 19  # where f32 has the four bits after the first of its significand
# Tokens of a program, whose codes are half of the first cache; the most tiles of rows, whose totals are in the second; and the
# fewest programs, where there are as many tiles.
COLUMNS, MOST_TILES, PROGRAMS = 64, 32, 16
# Packed, IQ1_S has minima of (2 i + 1) (8 -+ 1) beside scales of 8 (2 i + 1). Here its codes are those of 8 level +- 1, with this
# zero point.
IQ1_S_ZERO = 9


def is_signed(form: PackedFormat) -> bool:
    """Returns whether scales have signs, and may be even or 0."""
    return form in [PACKED_FORMATS[name] for name in SIGNED]


def block_of(weights: Packed, mine: Rows, b: Value) -> tuple[list[Value], list[Value]]:
    """Returns the words of codes of block b, and the whole scale of each group, never 0."""
    k, words, groups = mine.k, weights.code_words(mine.load, b), weights.form.groups
    pairs = [weights.whole_scale(mine.load, b, g) for g in range(groups)]
    scales, (_, minimum) = [scale for scale, _ in pairs], pairs[0]
    if is_signed(weights.form):
        some = [scale != 0 for scale in scales]
        none = mine.spread((weights.form.zero_point or 0) * ONES, u32)
        words = [k.select(some[w * groups // WORDS], word, none) for w, word in enumerate(words)]
        scales = [k.select(is_some, scale, mine.spread(1, i32)) for is_some, scale in zip(some, scales, strict=True)]
    if minimum is None:
        return words, scales
    more = k.select(minimum < scales[0], mine.spread(2 * ONES, u32), mine.spread(0, u32))
    return [(word << 3) + more for word in words], [scales[0] >> 3]


@dataclass(frozen=True)
class Slab:
    """A super-block of a program's tokens in scratch: codes [token, word], their sums times the zero point [token, group], and
    bits of multiples of scales [token, block, 16]. Where scales of rows are `signed`, the bits of what was multiplied by are
    subtracted, and `starts` [token] is 0, or NaN if a scale is not finite, which additions to its bits would hide."""

    k: Tracer
    codes: Array
    sums: Array
    multiples: Array
    signed: bool
    starts: Array

    def fill(self, x: tuple[Array, ...], first: Value, count: Value, bound: int, s: Value, supers: int) -> None:
        """Copies `count` tokens from `first` on, those past the bound as the last."""
        k, (x_codes, x_scales, x_sums) = self.k, x
        by = (k.iota(ROWS, i32) + ROWS).to(f32) * (1 / ROWS) if self.signed else (k.iota(ROWS, i32) * 2 + 1).to(f32)
        less = k.bitcast(by, i32) if self.signed else k.splat(0, ROWS, i32)
        for t in k.range(count):
            at = k.minimum(first + t, bound - 1) * supers + s
            self._copy(x_codes, self.codes, t, at)
            if x_sums.dtype == i32:
                self._copy(x_sums, self.sums, t, at)
            else:
                self._sum_codes(t)
            for i in range(SUPER):
                k.store_vector(self.multiples, k.bitcast(by * x_scales[at * SUPER + i], i32) - less, t, i, 0)
            if self.signed:
                self.starts[t] = k.vector_sum(k.load_vector(x_scales, at * SUPER, width=SUPER) * 0.0)

    def _copy(self, source: Array, to: Array, t: Value, at: Value) -> None:
        """Copies row `at` of a flat array."""
        size = to.shape[1]
        for i in range(0, size, ROWS):
            self.k.store_vector(to, self.k.load_vector(source, at * size + i, width=min(size, ROWS)), t, i)

    def _sum_codes(self, t: Value) -> None:
        """Computes the sums of a token of IQ1_S, whose activations have those that minima need."""
        k = self.k
        none, ones = k.splat(0, WORDS, i32), k.splat(ONES, WORDS, u32)
        for i in range(SUPER):
            words = k.load_vector(self.codes, t, i * WORDS, width=WORDS)
            self.sums[t, i] = k.vector_sum(k.dot4(none, ones, words)) * -IQ1_S_ZERO


def slab_of(k: Tracer, columns: int, form: PackedFormat) -> Slab:
    """Returns scratch for `columns` tokens."""
    codes, sums = k.scratch(u32, columns, SUPER * WORDS), k.scratch(i32, columns, SUPER * form.groups)
    return Slab(k, codes, sums, k.scratch(i32, columns, SUPER, ROWS), is_signed(form), k.scratch(f32, columns))


@dataclass(frozen=True)
class Stage:
    """Unpacked super-blocks of two tiles in scratch: words, and by group what chooses each row's multiple: its number, or the
    bits of a signed scale as f32."""

    weights: Packed
    words: Array
    choices: Array

    def fill(self, half: Value, mine: Rows, s: Value, i: Index) -> None:
        """Unpacks block i of super-block s."""
        k, signed = mine.k, is_signed(self.weights.form)
        words, scales = block_of(self.weights, mine, s * SUPER + i)
        for w, word in enumerate(words):
            k.store_vector(self.words, word, half, i, w, 0)
        for g, scale in enumerate(scales):
            k.store_vector(self.choices, k.bitcast(scale.to(f32), i32) if signed else scale >> 1, half, i, g, 0)

    def prefetch(self, mine: Rows, s: Value, i: Value) -> None:
        """Prefetches what block i of super-block s is unpacked from, and its step."""
        weights, b = self.weights, s * SUPER + i
        weights.prefetch(mine.tile, b, 0)
        mine.k.prefetch(weights.scales, mine.tile, b, 0, 0)
        mine.k.prefetch(weights.extra, mine.tile, s, 0, 0)


def stage_of(k: Tracer, weights: Packed) -> Stage:
    """Returns scratch for two super-blocks."""
    words, choices = k.scratch(u32, 2, SUPER, WORDS, ROWS), k.scratch(i32, 2, SUPER, weights.form.groups, ROWS)
    return Stage(weights, words, choices)


@dataclass(frozen=True)
class Program:
    """A program's scratch: the slab, the stage and the totals of each tile and token; and how many steps of tokens it has."""

    slab: Slab
    stage: Stage
    totals: Array
    steps: Value

    def add_tile(self, mine: Rows, s: Value, r: Value, half: Value, later: Sequence[tuple[Rows, Value]]) -> None:
        """Adds super-block s to the totals of tile r, whose rows are `mine`. Unpacks the first of the `later` rows and
        super-blocks, and prefetches the second."""
        k, slab, (following, (rows, then)) = mine.k, self.slab, later
        step, _ = self.stage.weights.steps(mine.load, s)
        for j in k.range(self.steps):
            with k.when(j < SUPER):
                self.stage.fill(1 - half, *following, j)
                self.stage.prefetch(rows, then, j)
            places = [j * STEP + t for t in range(STEP)]
            parts = [k.var(mine.spread(slab.starts[t] if slab.signed else 0.0)) for t in places]
            for i in k.range(SUPER):
                self._add_block(mine, half, places[0], i, parts)
            for t, part in zip(places, parts, strict=True):
                total = k.fma(step, part.value, k.load_vector(self.totals, r, t, 0, width=ROWS))
                k.store_vector(self.totals, total, r, t, 0)
        for i in k.range(k.minimum(self.steps, SUPER), SUPER):
            self.stage.fill(1 - half, *following, i)

    def _add_block(self, mine: Rows, half: Value, first: Value, i: Value, parts: Sequence[Variable]) -> None:
        """Adds block i of a super-block to the sums over it of the tokens from `first` on."""
        k, slab, stage, groups = mine.k, self.slab, self.stage, self.stage.weights.form.groups
        size = WORDS // groups
        for g in range(groups):
            starts = [mine.spread(slab.sums[first + t, i * groups + g], i32) for t in range(STEP)]
            words = [k.load_vector(stage.words, half, i, w, 0, width=ROWS) for w in range(g * size, (g + 1) * size)]

            def acted(t: int, w: int, g: int = g) -> Value:
                return mine.spread(slab.codes[first + t, (i * groups + g) * size + w], u32)

            bits = k.load_vector(stage.choices, half, i, g, 0, width=ROWS)
            choice = bits >> FRACTION if slab.signed else bits
            for t, (dot, part) in enumerate(zip(dot_words(k, starts, words, acted), parts, strict=True)):
                multiple = k.permute(k.load_vector(slab.multiples, first + t, i, 0, width=ROWS), choice)
                scale = k.bitcast(multiple + bits if slab.signed else multiple, f32)
                part.set(k.fma(dot.to(f32), scale, part.value))


def program_of(k: Tracer, weights: Packed, columns: int, tiles: int, steps: Value) -> Program:
    """Returns scratch for `columns` tokens and `tiles` tiles of rows."""
    totals = k.scratch(f32, tiles, columns, ROWS)
    for r in k.range(tiles):
        for t in k.range(steps * STEP):
            k.store_vector(totals, k.splat(0.0, ROWS), r, t, 0)
    return Program(slab_of(k, columns, weights.form), stage_of(k, weights), totals, steps)


@kernel
def multiples_tile(
    k: Tracer, *arguments: Any, n: int, blocks: int, columns: int, tiles: int, bound: int, block: str
) -> None:
    # `tiles` tiles of 16 rows of weights x `columns` tokens per program
    given, supers = operands(k, arguments, block), blocks // SUPER
    first, tile = k.program(0) * columns, k.program(1) * tiles
    active = k.minimum((given.active[0] if given.active else k.const(bound, i64)) - first, columns)
    count, steps = k.minimum(-(-n // ROWS) - tile, tiles), (active + (STEP - 1)) // STEP
    made, zero = program_of(k, given.weights, columns, tiles, steps), k.const(0, i64)

    def rows(r: Value) -> Rows:
        return Rows(k, ROWS, n, tile + r)

    def at(i: Value) -> tuple[Rows, Value]:
        return rows(i % count), k.minimum(i // count, supers - 1)

    for i in k.range(SUPER):
        made.stage.fill(zero, rows(zero), zero, i)
    for s in k.range(supers):
        made.slab.fill(given.x, first, steps * STEP, bound, s, supers)
        for r in k.range(count):
            i = s * count + r
            made.add_tile(rows(r), s, r, i % 2, [at(i + 1), at(i + 2)])
    for r in k.range(count):
        for t in k.range(active):
            rows(r).store(given.out, k.var(k.load_vector(made.totals, r, t, 0, width=ROWS)), first + t)


def _values(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the default tokens and tiles of rows of a program."""
    bound, tiles = node.inputs[0].bounds[0], -(-node.inputs[1].bounds[0] // ROWS)
    most = max(1, min(tiles * -(-bound // COLUMNS) // PROGRAMS, MOST_TILES))
    return {"columns": COLUMNS, "tiles": -(-tiles // -(-tiles // most))}


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    x, w = node.inputs
    grid = ops.Cells(x.shape[0], values["columns"]), ops.Cells(w.bounds[0], ROWS * values["tiles"])
    return product_build(multiples_tile, node, grid, {"n": w.bounds[0], "bound": x.bounds[0], **values})


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    x, w = node.inputs
    if target.backend != "simd" or target.lanes != ROWS or "avx512vnni" not in target.features:
        return "takes CPUs with AVX-512 VNNI"
    if not is_q8(x):
        return "takes quantized activations"
    if w.dtype.name not in ODD + SIGNED:
        return f"takes weights of {', '.join(ODD + SIGNED)}"
    if x.bounds[0] <= FEW_ROWS:  # next tokens of sequences have the bits of one alone
        return f"takes more than {FEW_ROWS} tokens; got {x.bounds[0]}"
    return packed_only(node, target)


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on one Zen 4 core: 1.06 to 1.17 times the speed of a tile for 512 tokens."""
    return 0.9 * tile_cost(node, target)


TUNABLES = ops.Tunables({"columns": (32, 48, 64, 96, 128), "tiles": (1, 2, 4, 8, 16, 32, 64)}, _values, _build)
VARIANT = ops.KernelVariant("multiples", frozenset({"simd"}), TUNABLES.build_default, _supports, _cost, TUNABLES)
