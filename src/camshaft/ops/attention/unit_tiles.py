"""The variant of attention for prompts on AMX: q K and p V in tiles of bf16, the softmax between them in f32.

A word of a tile has two bf16: of columns d and d + 16 of a head in q K, of keys j and j + 16 in p V, so that words come from
two vectors as they are loaded, and nothing is transposed. Scores keep 16 bits of q and of K: each is the sum of two bf16, and
three of the four products are added. Weights and values are rounded to bf16. Rows, runs and programs are those of tiled.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from camshaft.dtypes import bf16, f16, f32, i32, i64, u32
from camshaft.extent import Extent
from camshaft.lang import Array, Number, Tracer, Value, first_elements, greater, kernel, power_of_two
from camshaft.ops import op as ops
from camshaft.ops.attention import split
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.attention.paged import (
    LOG2_E,
    LOWEST,
    WIDTH,
    Heads,
    Keys,
    arguments_of,
    inside,
    multiply_adds,
    reads,
    without_options,
)
from camshaft.ops.attention.tiled import evened, run_from
from camshaft.ops.attention.tiled_steps import SLACK
from camshaft.ops.kernels.bf16_words import pair, rest
from camshaft.ops.matmul.blocks.unit_panels import SIDE, WORDS, without_tiles
from camshaft.ops.rule import Builder, Match, Use, Uses
from camshaft.ops.spec import bound

TOLERANCE = {"f32": 2e-5}
TILE_ROWS, TILE_KEYS = (64, 96, 128, 192, 256, 384), (64, 128, 256, 512)


# 2^r for |r| <= 1/2 by descending powers of r, with the least greatest relative error: 7.5e-5
_POWER = (0.05517166680946505, 0.24261113510078972, 0.6932609870127402, 0.9999280727910823)
_ROUNDER = 1.5 * 2.0**23  # added and taken away, it rounds to a whole number


def coarse_power(k: Tracer, x: Value) -> Value:
    """Returns 2^x for x up to 100 with a relative error of 7.5e-5, a twentieth of bf16's; at least 2^-126. NaN stays NaN."""
    x = greater(k, k.splat(-126.0, WIDTH), x)
    rounded = x + _ROUNDER
    r = x - (rounded - _ROUNDER)
    result = k.splat(_POWER[0], WIDTH)
    for coefficient in _POWER[1:]:
        result = k.fma(result, r, k.splat(coefficient, WIDTH))
    return k.bitcast(k.bitcast(result, u32) + (k.bitcast(rounded, u32) << 23), f32)


@dataclass(frozen=True)
class Shape(Heads):
    """The sizes of one program: tokens of a tile, and keys that are unpacked together."""

    tile_tokens: int
    tile_keys: int

    @property
    def blocks(self) -> int:
        """Blocks of 32 rows."""
        return -(-self.tile_tokens * self.group // SIDE)

    @property
    def steps(self) -> int:
        """Steps of 32 columns of a head."""
        return -(-self.head_dim // SIDE)

    @property
    def groups(self) -> int:
        """Groups of 32 keys."""
        return self.tile_keys // SIDE


@kernel
def one_unit_tile_per_program(k: Tracer, *arguments: Any, scale: float, **sizes: int) -> None:
    # as one_tile_per_program in tiled.py
    given = arguments_of(arguments)
    q, positions, slots, (out, *active) = given.q, given.positions, given.slots, given.rest
    shape = Shape(**sizes)
    tile, kv_head, tile_tokens = UnitTile(k, shape), k.program(0), shape.tile_tokens
    n_tokens = active[0] if active else k.const(q.shape[0], i64)
    begin = evened(k, k.program(1), (n_tokens + (tile_tokens - 1)) // tile_tokens) * tile_tokens
    end = k.minimum(begin + tile_tokens, n_tokens)
    for first in k.range(begin, end):
        with k.when((first == begin) | (slots[k.maximum(first - 1, begin)] != slots[first])):
            last, greatest = run_from(k, first, end, slots, positions)
            n_rows = (last - first) * shape.group
            tile.start(q, positions, first, n_rows, kv_head, scale)
            slot, none = slots[first].to(i64), k.const(0, i64)
            keys = Keys(k, given.cache, given.table, slot, kv_head, none, none)
            for base in k.range(0, greatest + 1, shape.tile_keys):
                seen = replace(keys, base=base, count=k.minimum(greatest + 1 - base, shape.tile_keys))
                tile.unpack(seen)
                k.barrier()
                for block in k.range((n_rows + (SIDE - 1)) // SIDE):
                    reach = tile.reach(block)
                    with k.when(base <= reach):
                        tile.score(block, reach, base)
                        tile.weigh(block, base)
                        tile.mix(block, reach, base)
                k.barrier()
            tile.finish(out, first, n_rows, kv_head)


class UnitTile:
    """The scratch of one program and the steps on it. A row is one q head of one token."""

    def __init__(self, k: Tracer, shape: Shape) -> None:
        self.k, self.shape = k, shape
        rows, steps = shape.blocks * SIDE, shape.steps
        self.query = [k.scratch(u32, shape.blocks, steps, SIDE, WORDS) for _ in range(2)]
        self.keys = [k.scratch(u32, shape.groups, steps, WORDS, SIDE) for _ in range(2)]
        self.values = k.scratch(u32, shape.groups, steps, WORDS, SIDE)
        self.scores = k.scratch(f32, shape.groups, SIDE + 1, SIDE)  # a group's rows do not share the sets of a cache
        self.powers = k.scratch(u32, shape.groups, SIDE, WORDS)
        self.total = k.scratch(f32, shape.blocks, steps, SIDE, SIDE)
        self.weights, self.peaks = k.scratch(f32, rows, WIDTH), k.scratch(f32, rows)
        self.lasts = k.scratch(i32, rows)

    def start(self, q: Array, positions: Array, first: Value, n_rows: Value, kv_head: Value, scale: float) -> None:
        """Loads the rows of q, scaled for powers of two, and clears the sums. Rows past the last repeat it."""
        k, shape = self.k, self.shape
        for row in k.range((n_rows + (SIDE - 1)) // SIDE * SIDE):
            source = k.minimum(row, n_rows - 1)
            token, column = (
                first + source // shape.group,
                (kv_head * shape.group + source % shape.group) * shape.head_dim,
            )
            for step in range(shape.steps):
                halves = [self._query(q, token, column, d, scale) for d in (step * SIDE, step * SIDE + WIDTH)]
                self._store_both(self.query, halves, row // SIDE, step, row % SIDE, 0)
                for start in (0, WIDTH):
                    k.store_vector(self.total, k.splat(0.0, WIDTH), row // SIDE, step, row % SIDE, start)
            k.store_vector(self.weights, k.splat(0.0, WIDTH), row, 0)
            self.peaks[row] = LOWEST
            self.lasts[row] = positions[token]

    def _query(self, q: Array, token: Value, column: Value, d: int, scale: float) -> Value:
        if d >= self.shape.head_dim:
            return self.k.splat(0.0, WIDTH)
        count = inside(self.shape.head_dim, d)
        return self.k.load_vector(q, token, column + d, width=WIDTH, count=count) * (scale * LOG2_E)

    def _store_both(self, to: list[Array], halves: list[Value], *at: Number) -> None:
        """Stores the words of two vectors, and those of what bf16 leaves of them."""
        self.k.store_vector(to[0], pair(self.k, *halves), *at)
        self.k.store_vector(to[1], pair(self.k, *(rest(self.k, half) for half in halves)), *at)

    def reach(self, block: Value) -> Value:
        """Returns the greatest position of a block's rows."""
        greatest = self.k.var(self.lasts[block * SIDE], i32)
        for row in self.k.range(1, SIDE):
            greatest.set(self.k.maximum(greatest.value, self.lasts[block * SIDE + row]))
        return greatest.value.to(i64)

    def unpack(self, keys: Keys) -> None:
        """Writes the words of keys and values. Keys past the last are those of the last block, values there are 0."""
        k, shape = self.k, self.shape
        for group in k.range((keys.count + (SIDE - 1)) // SIDE):
            blocks = [k.minimum(group * 2 + half, keys.n_blocks - 1) for half in (0, 1)]
            for half, index in enumerate(blocks):
                block = keys.block(index)
                for step, d in self._columns():
                    pairs = [self._component(keys, block, step * SIDE + d + more) for more in (0, WIDTH)]
                    self._store_both(self.keys, pairs, group, step, d, half * WIDTH)
            for j in k.range(BLOCK_TOKENS):
                for step in range(shape.steps):
                    for column in (0, WIDTH):
                        d = step * SIDE + column
                        halves = [self._value(keys, group * 2 + half, blocks[half], j, d) for half in (0, 1)]
                        k.store_vector(self.values, pair(k, *halves), group, step, j, column)

    def _columns(self) -> Iterator[tuple[Number, Number]]:
        """Yields the words of a head as a step and a word in it."""
        for step in range(self.shape.steps):
            for d in self.k.range(WORDS):
                yield step, d

    def _component(self, keys: Keys, block: Value, d: Number) -> Value:
        """Returns component d of a block's keys, 0 past the head's columns."""
        k, head_dim = self.k, self.shape.head_dim
        if head_dim % SIDE == 0:
            return k.load_vector(keys.cache.keys, block, keys.kv_head, d, 0, width=WIDTH)
        found = k.load_vector(keys.cache.keys, block, keys.kv_head, k.minimum(d, head_dim - 1), 0, width=WIDTH)
        return k.select(k.minimum(d, head_dim) < head_dim, found, k.splat(0.0, WIDTH))

    def _value(self, keys: Keys, index: Value, block: Value, j: Value, d: int) -> Value:
        """Returns 16 columns of key j of the block at `index`, 0 past the keys: there lies whatever was there before."""
        if d >= self.shape.head_dim:
            return self.k.splat(0.0, WIDTH)
        found = keys.values(keys.block(block), 0, j, d)
        return self.k.select(index * BLOCK_TOKENS + j < keys.count, found, self.k.splat(0.0, WIDTH))

    def score(self, block: Value, reach: Value, base: Value) -> None:
        """scores = query K of a block's rows, for the groups of keys that it attends to."""
        k = self.k
        for group in k.range(self.n_groups(reach, base)):
            sums = k.word_tile(SIDE, SIDE, f32)
            for step in k.range(self.shape.steps):
                for mine, theirs in ((0, 0), (1, 0), (0, 1)):
                    left, right = self.query[mine], self.keys[theirs]
                    sums.mma(left, (block, step, 0, 0), right, (group, step, 0, 0), k=WORDS)
            sums.store(self.scores, (group, 0, 0))
        k.barrier()

    def weigh(self, block: Value, base: Value) -> None:
        """Makes the words of each row's weights, and adds the weights to their sum."""
        k = self.k
        pairs = (self.n_groups(self.reach(block), base) + 1) // 2
        for r in k.range(SIDE):
            row = block * SIDE + r
            seen = k.maximum(self.lasts[row].to(i64) + 1 - base, 0)
            whole = k.minimum(seen // (2 * SIDE), pairs)
            top = k.var(k.splat(LOWEST, WIDTH))
            for first, last, masked in ((k.const(0, i64), whole, False), (whole, pairs, True)):
                for n in k.range(first, last):
                    for score in self._scores(r, n, seen if masked else None):
                        top.set(greater(k, score, top.value))
            self._raise_peak(block, r, top.value)
            peak, weight = self.peaks[row], k.var(k.load_vector(self.weights, row, 0, width=WIDTH))
            for first, last, masked in ((k.const(0, i64), whole, False), (whole, pairs, True)):
                for n in k.range(first, last):
                    powers = [coarse_power(k, score - peak) for score in self._scores(r, n, seen if masked else None)]
                    for power in powers:
                        weight.set(weight.value + power)
                    for half in (0, 1):
                        word = pair(k, *powers[2 * half : 2 * half + 2])
                        k.store_vector(self.powers, word, 2 * n + half, r, 0)
            k.store_vector(self.weights, weight.value, row, 0)
        k.barrier()

    def _scores(self, r: Value, n: Value, seen: Value | None) -> list[Value]:
        """Returns the scores of two groups of keys, the lowest number for those past the first `seen`."""
        k, found = self.k, []
        for start in range(0, 2 * SIDE, WIDTH):
            score = k.load_vector(self.scores, 2 * n + start // SIDE, r, start % SIDE, width=WIDTH)
            if seen is not None:
                score = k.select(first_elements(k, seen - (n * (2 * SIDE) + start), WIDTH), score, LOWEST)
            found.append(score)
        return found

    def n_groups(self, reach: Value, base: Value) -> Value:
        """Returns the number of groups of keys from `base` on that a block's rows attend to."""
        return self.k.minimum((reach - base) // SIDE + 1, self.shape.groups)

    def _raise_peak(self, block: Value, r: Value, top: Value) -> None:
        """Sets a row's peak to its greatest score if that is more than SLACK above it, and its sums relative to that."""
        k, row = self.k, block * SIDE + r
        peak = self.peaks[row]
        # on integers: a maximum of floats takes five times the instructions, for NaN and the sign of 0
        above = k.select(top > k.splat(peak + SLACK, WIDTH), k.splat(1, WIDTH, i32), k.splat(0, WIDTH, i32))
        with k.when(k.vector_max(above) > 0):
            top = k.vector_max(top)
            factor = power_of_two(k, k.splat(peak - top, WIDTH))
            self.peaks[row] = top
            k.store_vector(self.weights, k.load_vector(self.weights, row, 0, width=WIDTH) * factor, row, 0)
            for step in range(self.shape.steps):
                for start in (0, WIDTH):
                    total = k.load_vector(self.total, block, step, r, start, width=WIDTH)
                    k.store_vector(self.total, total * factor, block, step, r, start)

    def mix(self, block: Value, reach: Value, base: Value) -> None:
        """total += weights V for a block's rows."""
        k = self.k
        for step in k.range(self.shape.steps):
            at = (block, step, 0, 0)
            total = k.word_tile(SIDE, SIDE, f32, (self.total, at))
            for group in k.range(self.n_groups(reach, base)):
                total.mma(self.powers, (group, 0, 0), self.values, (group, step, 0, 0), k=WORDS)
            total.store(self.total, at)
        k.barrier()

    def finish(self, out: Array, first: Value, n_rows: Value, kv_head: Value) -> None:
        """out = total / sum of weights."""
        k, shape = self.k, self.shape
        for row in k.range(n_rows):
            inverse = 1.0 / k.vector_sum(k.load_vector(self.weights, row, 0, width=WIDTH))
            column = (kv_head * shape.group + row % shape.group) * shape.head_dim
            for d in shape.columns:
                total = k.load_vector(self.total, row // SIDE, d // SIDE, row % SIDE, d % SIDE, width=WIDTH)
                at = first + row // shape.group, column + d
                k.store_vector(out, total * inverse, *at, count=inside(shape.head_dim, d))


def _shape(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> Shape:
    heads, kv_heads, head_dim = (node.attrs[name] for name in ("heads", "kv_heads", "head_dim"))
    return Shape(heads, kv_heads, head_dim, max(1, values["tile_rows"] * kv_heads // heads), values["tile_keys"])


def _defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    return {"tile_rows": 192, "tile_keys": 512}


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None; next tokens of sequences are left to split_keys."""
    if (reason := without_tiles(target) or without_options(node)) is not None:
        return reason
    if node.attrs.get("precision") != "bf16":
        return "takes precision 'bf16'"
    if node.inputs[1].dtype not in (f16, bf16):
        return f"takes a cache of f16 or bf16; got {node.inputs[1].dtype}"
    if split.VARIANT.supports(node, target) is None:
        return f"takes more than {split.MAX_TOKENS} tokens; got {bound(node.inputs[0].shape[0])}"
    return None


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Builds a launch with programs (kv head, tile of tokens)."""
    shape, tokens = _shape(node, target, values), node.inputs[0].shape[0]
    launch = ops.Launch(
        one_unit_tile_per_program,
        (*reads(node), ops.write(0)),
        (ops.Cells(shape.kv_heads), ops.Cells(tokens, per=shape.tile_tokens)),
        {"scale": node.attrs["scale"], **asdict(shape)},
        extents=(tokens,) if isinstance(tokens, Extent) else (),
    )
    return ops.Build((launch,))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """An estimate."""
    return multiply_adds(node) / 150.0 + 1000.0


def coarse(use: Use, uses: Uses) -> Match | None:
    """Lets attention of many tokens round weights and values to bf16."""
    tokens = use.inputs[0].spec.bounds[0]
    if "precision" in use.attrs or tokens <= split.MAX_TOKENS:
        return None

    def build(new: Builder) -> Mapping[Any, Any]:
        made = new.apply(use.op, use.inputs, {**use.attrs, "precision": "bf16"}, use.name)
        return dict(zip(use.outputs, made, strict=True))

    return Match(build)


_TUNABLES = ops.Tunables({"tile_rows": TILE_ROWS, "tile_keys": TILE_KEYS}, _defaults, _build)
VARIANT = ops.KernelVariant(
    "unit_tiles", frozenset({"simd"}), _TUNABLES.build_default, _supports, _cost, _TUNABLES, tolerance=TOLERANCE
)
