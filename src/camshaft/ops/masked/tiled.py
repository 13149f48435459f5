"""The variant of attention with options for prompts: tiles of tokens times tiles of keys, with the products of plain attention.

The steps that differ from attention/tiled_steps.py are here: a row sees the keys from its first to its last, a tile that no row
of a block sees is skipped, and scores are changed before the row's peak is raised to the largest of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from camshaft.dtypes import f32, i32, i64
from camshaft.lang import Array, Tracer, Value, first_elements, greater, kernel, power_of_two
from camshaft.ops import op as ops
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.attention.paged import (
    LOG2_E,
    LOWEST,
    WIDTH,
    arguments_of,
    inside,
    register_vectors,
    without_options,
)
from camshaft.ops.attention.tiled import TILES, fitting, runs_of, scratch_limit, tiles_build
from camshaft.ops.attention.tiled_steps import BLOCK_ROWS, Shape, Tile
from camshaft.ops.masked.kernels import Call, options_of
from camshaft.ops.masked.options import Options
from camshaft.ops.masked.spans import FEW_TOKENS, pairs_of

RATE = 30.0  # multiply-adds per ns of one core of a Zen 4 server, about
# Fewer are next tokens of sequences: span_per_program, which takes one, gives each the same bits beside any others. For groups of
# 8 heads that takes 4 times as long, for groups of 2 no longer.
MIN_TOKENS = FEW_TOKENS + 1


@dataclass(frozen=True)
class MaskedShape(Shape):
    """The sizes of one program, with a peak and a first key of each row."""

    @property
    def scratch_nbytes(self) -> int:
        """The bytes of scratch of a program."""
        return super().scratch_nbytes + 8 * self.rows


class MaskedTile(Tile):
    """The workgroup memory of one program, and the steps that options change. Peaks of the base class stay 0."""

    def __init__(self, k: Tracer, shape: Shape, options: Options) -> None:
        super().__init__(k, shape)
        self.options = options
        self.tops, self.firsts = k.scratch(f32, shape.rows), k.scratch(i32, shape.rows)

    def bound_rows(
        self, whole: Value, n_rows: Value, call: Call, positions: Array, first: Value
    ) -> tuple[Value, Value]:
        """Sets the first and last key of each row. Returns the smallest and the largest of them."""
        k, group = self.k, self.shape.group
        least, greatest = k.var(k.const(2**31 - 1, i64), i64), k.var(k.const(-1, i64), i64)
        for row in k.range(whole):
            token = first + k.minimum(row, n_rows - 1) // group
            low, end = replace(call, position=positions[token].to(i64), token=token).bounds()
            self.firsts[row], self.lasts[row] = low.to(i32), (end - 1).to(i32)
            self.tops[row] = LOWEST
            least.set(k.minimum(least.value, low))
            greatest.set(k.maximum(greatest.value, end - 1))
        return least.value, greatest.value

    def sees(self, row: Value, base: Value) -> tuple[Value, Value]:
        """Returns whether any of a block's rows sees keys of the tile at `base`, and the number of keys up to their last."""
        k = self.k
        greatest = self.reach(row)[1]
        least = self.firsts[row]
        for r in range(1, BLOCK_ROWS):
            least = k.minimum(least, self.firsts[row + r])
        seen = (base <= greatest) & (least.to(i64) < base + self.shape.tile_keys)
        return seen, k.minimum(greatest + 1 - base, self.shape.tile_keys)

    def change(self, row: Value, head: Value, call: Call, base: Value) -> None:
        """Changes a row's scores, raises its peak, and replaces the scores by powers of 2. `call` is that of its token."""
        k = self.k
        tops = k.var(k.splat(LOWEST, WIDTH))
        for start in range(0, self.shape.tile_keys, WIDTH):
            score = call.changed(k.load_vector(self.scores, row, start, width=WIDTH), head, base + start)
            score = k.select(first_elements(k, self.lasts[row].to(i64) + 1 - base - start, WIDTH), score, LOWEST)
            score = k.select(first_elements(k, self.firsts[row].to(i64) - base - start, WIDTH), LOWEST, score)
            k.store_vector(self.scores, score, row, start)
            tops.set(greater(k, score, tops.value))
        peak = greater(k, k.vector_max(tops.value), self.tops[row])
        self._shrink(row, power_of_two(k, k.splat(self.tops[row] - peak, WIDTH)))
        self.tops[row] = peak
        weight = k.load_vector(self.weights, row, 0, width=WIDTH)
        for start in range(0, self.shape.tile_keys, WIDTH):
            score = k.load_vector(self.scores, row, start, width=WIDTH)
            power = k.select(score <= LOWEST, 0.0, power_of_two(k, score - peak))
            k.store_vector(self.scores, power, row, start)
            weight = weight + power
        k.store_vector(self.weights, weight, row, 0)

    def close(self, outs: tuple[Any, ...], call: Call, first: Value, n_rows: Value, kv_head: Value) -> None:
        """out = total / (sum of weights and of the sink's), and the log-sum-exp."""
        k, group, head_dim = self.k, self.shape.group, self.shape.head_dim
        for row in k.range(n_rows):
            head, token = kv_head * group + row % group, first + row // group
            weight = k.vector_sum(k.load_vector(self.weights, row, 0, width=WIDTH))
            inverse = close_row(k, call, outs, (token, head), self.tops[row], weight)
            for d in self.shape.columns:
                x = k.load_vector(self.total, row, d, width=WIDTH) * inverse
                k.store_vector(outs[0], x, token, head * head_dim + d, count=inside(head_dim, d))


def close_row(
    k: Tracer, call: Call, outs: tuple[Any, ...], at: tuple[Value, Value], peak: Value, weight: Value
) -> Value:
    """Returns what a row's values are multiplied by, 1 / (sum of weights and of the sink's), and stores the log-sum-exp of the
    token and head `at`. `weight`: the sum of 2^(score - peak)."""
    share = k.const(1.0, f32)
    if call.options.has("sinks"):
        sink = call.given["sinks"][at[1]] * LOG2_E
        top = greater(k, sink, peak)
        share = power_of_two(k, peak - top)
        weight = weight * share + power_of_two(k, sink - top)
        peak = top
    none = weight == 0.0
    if call.options.lse:
        sums = peak * (1.0 / LOG2_E) + k.log(k.select(none, 1.0, weight))
        outs[1][at] = k.select(none, float("-inf"), sums)
    return share / k.select(none, 1.0, weight)


@kernel
def tile_with_options(k: Tracer, *arguments: Any, scale: float, **constants: Any) -> None:
    # for each tile of keys: S = changed scores; m' = max(m, S); P = e^(S - m'); l = e^(m - m') l + sum P; O = e^(m - m') O + P V
    options = options_of(constants)
    given, shape, n = arguments_of(arguments), MaskedShape(**constants), len(options.extras)
    extras, rest = dict(zip(options.extras, given.rest[:n], strict=True)), given.rest[n:]
    tile, kv_head, group = MaskedTile(k, shape, options), k.program(0), shape.group
    for run in runs_of(k, given, shape.tile_tokens):
        first, n_rows = run.first, run.n_tokens * group
        whole = (n_rows + (BLOCK_ROWS - 1)) // BLOCK_ROWS * BLOCK_ROWS
        tile.start(given.q, given.positions, first, n_rows, whole, kv_head, scale)
        call = Call(k, options, extras, given.table, run.slot, k.const(0, i64), first)
        low, high = tile.bound_rows(whole, n_rows, call, given.positions, first)
        keys = run.keys(k, given, kv_head // shape.parts)
        for base in k.range(low // BLOCK_TOKENS * BLOCK_TOKENS, high + 1, shape.tile_keys):
            if shape.unpacked:
                tile.unpack(replace(keys, base=base, count=k.minimum(high + 1 - base, shape.tile_keys)))
            for row in k.range(0, whole, BLOCK_ROWS):
                seen, count = tile.sees(row, base)
                with k.when(seen):
                    tile.score(row, replace(keys, base=base, count=count))
                    for r in k.range(row, row + BLOCK_ROWS):
                        source = k.minimum(r, n_rows - 1)
                        token, head = first + source // group, kv_head * group + source % group
                        of_token = replace(call, position=given.positions[token].to(i64), token=token)
                        tile.change(r, head, of_token, base)
            for row in k.range(0, whole, BLOCK_ROWS):
                seen, count = tile.sees(row, base)
                with k.when(seen):
                    tile.mix(row, replace(keys, base=base, count=count))
        tile.close(rest[: 1 + options.lse], call, first, n_rows, kv_head)


def _shape(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> MaskedShape:
    return fitting(MaskedShape, node, target, values)


def _fitting(node: ops.NodeSpec, target: ops.Target) -> MaskedShape:
    """Returns the tile with the most scores that fits, or the smallest."""
    vectors = max(1, register_vectors(target) // BLOCK_ROWS)
    found = [_shape(node, target, {"tile_rows": r, "tile_keys": c, "block_vectors": vectors}) for r, c in TILES]
    return next((shape for shape in found if shape.scratch_nbytes <= scratch_limit(target)), found[-1])


def refusal(node: ops.NodeSpec) -> str | None:
    """Returns why tiles with options do not take a node, or None."""
    if without_options(node) is None:
        return "takes attention with options; others are faster without"
    options, tokens = Options.of("attention", node.attrs), node.inputs[0].bounds[0]
    if tokens < MIN_TOKENS:
        return f"takes at least {MIN_TOKENS} tokens; got {tokens}"
    if node.inputs[2].bounds[3] != node.inputs[1].bounds[2]:
        return "takes heads of keys and values of one size"
    if options.ring or (options.has("prefix") and (options.window or options.chunk)):
        return "takes no ring, and no prefix with a window or chunk"
    return None


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not take a node, or None."""
    if (reason := refusal(node)) is not None:
        return reason
    shape = _fitting(node, target)
    if shape.scratch_nbytes > scratch_limit(target):
        return f"{shape.group} heads of a group with head_dim {shape.head_dim} exceed the workgroup memory"
    return None


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    options = Options.of("attention", node.attrs)
    return tiles_build(tile_with_options, node, asdict(_fitting(node, target)), **options.constants())


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    shape, tokens = _fitting(node, target), node.inputs[0].bounds[0]
    rows = min(tokens, shape.tile_tokens) * shape.group
    return pairs_of(node) * 2.0 * node.inputs[0].bounds[1] / RATE * shape.padded_rows(rows) / rows


VARIANT = ops.KernelVariant("tiled_with_options", ops.VECTORS, _build, _supports, _cost)
