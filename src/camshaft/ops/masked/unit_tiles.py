"""The variant of attention with options for prompts on AMX: the products of attention/unit_tiles.py, the options of tiled.py.

A row sees the keys from its first to its last. Groups of keys that no row of a block sees are skipped. A score that is changed or
not visible is stored again, so that powers are of what is stored.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from camshaft.dtypes import i32, i64
from camshaft.lang import Array, Tracer, Value, first_elements, greater, kernel
from camshaft.ops import op as ops
from camshaft.ops.attention import unit_tiles
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.attention.paged import LOWEST, WIDTH, arguments_of, inside
from camshaft.ops.attention.tiled import runs_of, tiles_build
from camshaft.ops.attention.unit_tile_steps import Shape, UnitTile
from camshaft.ops.kernels.bits import coarse_power, pair
from camshaft.ops.masked import tiled
from camshaft.ops.masked.kernels import Call, options_of
from camshaft.ops.masked.options import Options
from camshaft.ops.masked.spans import pairs_of
from camshaft.ops.matmul.blocks.unit_panels import SIDE, without_tiles

PAIR = 2 * SIDE  # keys of two groups


class MaskedUnitTile(UnitTile):
    """The scratch of one program, and the steps that options change."""

    def __init__(self, k: Tracer, shape: Shape, options: Options) -> None:
        super().__init__(k, shape)
        self.options = options
        self.firsts = k.scratch(i32, shape.blocks * SIDE)
        self.changes = bool(options.cap) or options.has("slopes") or options.has("mask")

    def bound_rows(self, n_rows: Value, call: Call, positions: Array) -> tuple[Value, Value]:
        """Sets the first and last key of each row. Returns the smallest and the largest of them."""
        k = self.k
        least, greatest = k.var(k.const(2**31 - 1, i64), i64), k.var(k.const(-1, i64), i64)
        for row in k.range((n_rows + (SIDE - 1)) // SIDE * SIDE):
            low, end = self.of_row(row, n_rows, call, positions)[0].bounds()
            self.firsts[row], self.lasts[row] = low.to(i32), (end - 1).to(i32)
            least.set(k.minimum(least.value, low))
            greatest.set(k.maximum(greatest.value, end - 1))
        return least.value, greatest.value

    def of_row(self, row: Value, n_rows: Value, call: Call, positions: Array) -> tuple[Call, Value]:
        """Returns the call of a row's token, and its head in the group; `call` is that of the first token."""
        source, group = self.k.minimum(row, n_rows - 1), self.shape.group
        token = call.token + source // group
        return replace(call, position=positions[token].to(i64), token=token), source % group

    def begin(self, block: Value, base: Value) -> Value:
        """Returns the first group, an even one, of the keys from `base` on that any of a block's rows sees."""
        k = self.k
        least = k.var(self.firsts[block * SIDE], i32)
        for row in k.range(1, SIDE):
            least.set(k.minimum(least.value, self.firsts[block * SIDE + row]))
        return k.maximum(least.value.to(i64) - base, 0) // PAIR * 2

    def change(self, row: Value, base: Value, pairs: tuple[Value, Value], call: Call, head: Value) -> None:
        """Changes a row's scores, raises its peak, and makes the words of its weights. `pairs`: of groups that its block sees;
        `call` is that of its token."""
        k, r = self.k, row % SIDE
        low, end = self.firsts[row].to(i64) - base, self.lasts[row].to(i64) + 1 - base
        begin = k.minimum(k.maximum((k.maximum(low, 0) + (PAIR - 1)) // PAIR, pairs[0]), pairs[1])
        whole = k.maximum(k.minimum(k.maximum(end, 0) // PAIR, pairs[1]), begin)
        top = k.var(k.splat(LOWEST, WIDTH))

        def raised(n: Value, masked: bool) -> None:
            for i in range(PAIR // WIDTH):
                at, key = (2 * n + i * WIDTH // SIDE, r, i * WIDTH % SIDE), n * PAIR + i * WIDTH
                score = k.load_vector(self.scores, *at, width=WIDTH)
                if self.changes:
                    score = call.changed(score, head, base + key)
                if masked:
                    score = k.select(first_elements(k, end - key, WIDTH), score, LOWEST)
                    score = k.select(first_elements(k, low - key, WIDTH), LOWEST, score)
                if self.changes or masked:
                    k.store_vector(self.scores, score, *at)
                top.set(greater(k, score, top.value))

        for side in k.range(2):
            for n in k.range(k.select(side == 0, pairs[0], whole), k.select(side == 0, begin, pairs[1])):
                raised(n, masked=True)
        for n in k.range(begin, whole):
            raised(n, masked=False)
        self._raise_peak(row // SIDE, r, top.value)
        peak, weight = self.peaks[row], k.var(k.load_vector(self.weights, row, 0, width=WIDTH))
        for n in k.range(*pairs):
            scores = self._scores(r, n, None)
            powers = [k.select(score <= LOWEST, 0.0, coarse_power(k, score - peak)) for score in scores]
            for power in powers:
                weight.set(weight.value + power)
            for half in (0, 1):
                k.store_vector(self.powers, pair(k, *powers[2 * half : 2 * half + 2]), 2 * n + half, r, 0)
        k.store_vector(self.weights, weight.value, row, 0)

    def close(self, outs: tuple[Any, ...], call: Call, n_rows: Value, kv_head: Value) -> None:
        """out = total / (sum of weights and of the sink's), and the log-sum-exp."""
        k, shape = self.k, self.shape
        for row in k.range(n_rows):
            head, token = kv_head * shape.group + row % shape.group, call.token + row // shape.group
            weight = k.vector_sum(k.load_vector(self.weights, row, 0, width=WIDTH))
            inverse = tiled.close_row(k, call, outs, (token, head), self.peaks[row], weight)
            for d in shape.columns:
                total = k.load_vector(self.total, row // SIDE, d // SIDE, row % SIDE, d % SIDE, width=WIDTH)
                at = token, head * shape.head_dim + d
                k.store_vector(outs[0], total * inverse, *at, count=inside(shape.head_dim, d))


@kernel
def unit_tile_with_options(k: Tracer, *arguments: Any, scale: float, **constants: Any) -> None:
    # as tile_with_options in tiled.py
    options = options_of(constants)
    given, shape, n = arguments_of(arguments), Shape(**constants), len(options.extras)
    extras, rest = dict(zip(options.extras, given.rest[:n], strict=True)), given.rest[n:]
    tile, kv_head, positions = MaskedUnitTile(k, shape, options), k.program(0), given.positions
    for run in runs_of(k, given, shape.tile_tokens):
        n_rows = run.n_tokens * shape.group
        tile.start(given.q, positions, run.first, n_rows, kv_head, scale)
        call = Call(k, options, extras, given.table, run.slot, k.const(0, i64), run.first)
        low, high = tile.bound_rows(n_rows, call, positions)
        keys = run.keys(k, given, kv_head)
        for base in k.range(low // BLOCK_TOKENS * BLOCK_TOKENS, high + 1, shape.tile_keys):
            tile.unpack(replace(keys, base=base, count=k.minimum(high + 1 - base, shape.tile_keys)))
            k.barrier()
            for block in k.range((n_rows + (SIDE - 1)) // SIDE):
                reach, begin = tile.reach(block), tile.begin(block, base)
                with k.when((base <= reach) & (begin < shape.groups)):
                    tile.score(block, reach, base, begin)
                    pairs = begin // 2, (tile.n_groups(reach, base) + 1) // 2
                    for row in k.range(block * SIDE, block * SIDE + SIDE):
                        of_token, head = tile.of_row(row, n_rows, call, positions)
                        tile.change(row, base, pairs, of_token, kv_head * shape.group + head)
                    k.barrier()
                    tile.mix(block, reach, base, begin)
            k.barrier()
        tile.close(rest[: 1 + options.lse], call, n_rows, kv_head)


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not take a node, or None."""
    if (reason := without_tiles(target) or tiled.refusal(node) or unit_tiles.without_bf16(node)) is not None:
        return reason
    return unit_tiles.refusal(node, target, unit_tiles.defaults(node, target))


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    sizes, options = asdict(unit_tiles.shape_of(node, target, values)), Options.of("attention", node.attrs)
    return tiles_build(unit_tile_with_options, node, sizes, **options.constants())


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on Emerald Rapids: about 90 multiply-adds per ns."""
    return pairs_of(node) * 2.0 * node.inputs[0].bounds[1] / 90.0 + 1000.0


_TUNABLES = ops.Tunables(
    {"tile_rows": unit_tiles.TILE_ROWS, "tile_keys": unit_tiles.TILE_KEYS},
    unit_tiles.defaults,
    _build,
    unit_tiles.refusal,
)
VARIANT = ops.KernelVariant(
    "unit_tiles_with_options",
    frozenset({"simd"}),
    _TUNABLES.build_default,
    _supports,
    _cost,
    _TUNABLES,
    tolerance=unit_tiles.TOLERANCE,
)
