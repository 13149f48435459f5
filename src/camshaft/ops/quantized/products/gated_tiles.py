"""Kernels of gated_product: a program computes the same 32 columns of both products for some tokens and quantizes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from math import e, log2
from typing import Any, TypeAlias

from camshaft.dtypes import f32, i64
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops.kernels.bits import coarse_power
from camshaft.ops.matmul.blocks.unit_panels import SIDE, Panel, panel_words, tiles_of, times_filled
from camshaft.ops.matmul.shapes import WIDTH
from camshaft.ops.quantize.fused_kernels import ACTIVATIONS
from camshaft.ops.quantize.q8_blocks import BLOCK, Out, Q8Out, Sums, outs_of, store_block
from camshaft.ops.quantized.operands import Rows, Tokens, in_tiles
from camshaft.ops.quantized.packed.packing import ROWS
from camshaft.ops.quantized.packed.weights import Index, Packed, packed
from camshaft.ops.quantized.products.avx2 import sums as avx2_sums
from camshaft.ops.quantized.products.avx2.staged import Program, TileAt
from camshaft.ops.quantized.products.kernels import totals_of
from camshaft.ops.quantized.products.unpacked_tiles import unpack

LOG2_E = log2(e)


@kernel
def gated_tile(
    k: Tracer,
    *arrays: Any,
    n: int,
    blocks: int,
    rows: int,
    columns: int,
    bound: int,
    block: str,
    ahead: int,
    sums: Sums,
    act: str,
) -> None:
    # y[t, 32 b .. 32 b + 31] = act(gate) up for `columns` tokens, by tiles of `rows` weights' rows, then quantized
    x, gate, up = arrays[:3], arrays[3:6], arrays[6:9]
    outs, active = outs_of(arrays[9:], sums)
    b, made = k.program(0), k.scratch(f32, 2, columns, BLOCK)

    def compute(tokens: Tokens) -> None:
        for number, (codes, scales, extra) in enumerate((gate, up)):
            weights = packed(k, codes, scales, extra, block)
            for i in k.range(BLOCK // rows):
                mine = Rows(k, rows, n, b * (BLOCK // rows) + i)
                for t, total in enumerate(totals_of(x, weights, mine, tokens, blocks, ahead)):
                    k.store_vector(made, total.value, number, t, i * rows)
        for token in k.range(len(tokens.places)):
            place = tokens.first + token
            condition = tokens.is_stored(place)
            with nullcontext() if condition is None else k.when(condition):
                _store(k, made, token, place, b, outs, act)

    in_tiles(k, columns, bound, active[:1], compute)


@kernel
def gated_avx2_tile(
    k: Tracer, *arrays: Any, n: int, blocks: int, columns: int, step: int, bound: int, vnni: bool, staged: bool, block: str,
    sums: Sums, act: str,
) -> None:  # fmt: skip
    # as gated_tile, by avx2/staged.py or avx2/sums.py
    x, gate, up = arrays[:3], arrays[3:6], arrays[6:9]
    outs, active = outs_of(arrays[9:], sums)
    b, first, limit = k.program(0), k.program(1) * columns, active[0] if active else k.const(bound, i64)
    count = (k.minimum(limit - first, columns) + (step - 1)) // step
    weights = [packed(k, codes, scales, extra, block) for codes, scales, extra in (gate, up)]

    def tile_at(number: int, i: Index) -> avx2_sums.Tile:
        mine = Rows(k, ROWS, n, b * (BLOCK // ROWS) + i)
        return avx2_sums.Tile(x, weights[number], mine, blocks, first, bound, step, count, vnni=vnni)

    tiles = BLOCK // ROWS
    made = Program(k, tile_at, 2, tiles, tiles, columns).totals() if staged else _one_by_one(k, tile_at, columns)
    for j in k.range(count):
        wanted = first + j * step
        for t in k.range(step):
            place = k.minimum(wanted, bound - step) + t
            with k.when((place >= wanted) & (place < limit)):
                _store(k, made, j * step + t, place, b, outs, act)


def _one_by_one(k: Tracer, tile_at: TileAt, columns: int) -> Array:
    """Computes both products, one tile after the other."""
    made = k.scratch(f32, 2, columns, BLOCK)
    for number in range(2):
        for i in k.range(BLOCK // ROWS):
            totals = avx2_sums.totals_of(tile_at(number, i), columns)
            for slot in totals.slots():
                k.store_vector(made, totals.get(slot), number, slot, i * ROWS)
    return made


@kernel
def gated_unpacked_tiles(
    k: Tracer, x: Array, *arrays: Any, n: int, blocks: int, tokens: int, bound: int, block: str, sums: Sums, act: str
) -> None:
    # as gated_tile, by unpacked_tiles.py
    gate, up = arrays[:3], arrays[3:6]
    outs, active = outs_of(arrays[6:], sums)
    b, first, limit = k.program(0), k.program(1) * tokens, active[0] if active else k.const(bound, i64)
    words, made = panel_words(k, 2, blocks), k.scratch(f32, 2, 2 * SIDE, SIDE)
    panels = [Panel(k, words, (k.const(i, i64),), k.const(0, i64), k.const(blocks, i64)) for i in (0, 1)]
    weights = [packed(k, codes, scales, extra, block) for codes, scales, extra in (gate, up)]
    count, whole = tiles_of(k.minimum(limit - first, tokens))
    with k.when(whole == 0):
        for number, mine in enumerate(weights):
            fill, rows_at = partial(_fill, k, mine, b), partial(_of_tile, first // SIDE)
            times_filled(k, words, blocks, fill, x, rows_at).store(made, (number, 0, 0))
    with k.when(whole > 0):
        for mine, panel in zip(weights, panels, strict=True):
            unpack(k, mine, panel, b)
    k.barrier()

    def multiply(i: Value, rows: int) -> None:
        _fetch(k, outs, first + i * SIDE, b)
        for number, panel in enumerate(panels):
            total = panel.times(x, partial(_of_tile, first // SIDE + i), rows=rows)
            total.store(made, (number, i % 2 * SIDE, 0))

    for i in k.range(count + 1):
        with k.when(i < whole):
            multiply(i, SIDE)
        with k.when((i >= whole) & (i < count) & (whole > 0)):
            multiply(i, WIDTH)
        k.barrier()
        before = i - 1
        place = first + before * SIDE
        for t in k.range(k.select(i > 0, k.minimum(limit - place, SIDE), 0)):
            gates, ups = (_halves(k, made, number, before % 2 * SIDE + t) for number in (0, 1))
            store_block(k, COARSE.get(act, _exact(act))(k, gates, ups), place + t, b, outs)
        k.barrier()


def _fill(k: Tracer, weights: Packed, b: Value, panel: Panel) -> None:
    unpack(k, weights, panel, b)


def _of_tile(tile: Value, step: Value) -> tuple[Value | int, ...]:
    """Returns where the words of a step of 32 tokens are."""
    return tile, step, 0, 0


def _fetch(k: Tracer, outs: Sequence[Out], first: Value, b: Value) -> None:
    """Prefetches the lines of block b of 32 rows while their products are computed."""
    for t in k.range(SIDE):
        for out in outs:
            if isinstance(out, Q8Out):
                row = k.minimum(first + t, out.codes.shape[0] - 1)
                k.prefetch(out.codes, row, b * BLOCK)
                k.prefetch(out.scales, row, b)
                k.prefetch(out.sums, row, b * out.groups)
            else:
                k.prefetch(out.tiles, *out.place(first + t, b, 0))


def _store(k: Tracer, made: Array, token: Value, place: Value, b: Value, outs: Sequence[Out], act: str) -> None:
    gates, ups = (_halves(k, made, number, token) for number in (0, 1))
    store_block(k, _exact(act)(k, gates, ups), place, b, outs)


def _halves(k: Tracer, made: Array, number: int, token: Value) -> list[Value]:
    return [k.load_vector(made, number, token, 16 * h, width=16) for h in (0, 1)]


Gate: TypeAlias = Callable[[Tracer, list[Value], list[Value]], list[Value]]
"""act(gate) up of two vectors."""


def _exact(act: str) -> Gate:
    of_one = ACTIVATIONS[act]
    return lambda k, gates, ups: [of_one(k, gate, up) for gate, up in zip(gates, ups, strict=True)]


def _coarse_silu(k: Tracer, gates: list[Value], ups: list[Value]) -> list[Value]:
    """gate up / (1 + e^-gate) with a relative error of 1e-4, or of 1e-18 gate up below gates of -41: both vectors by one
    division, which takes 16 cycles."""
    powers = [gate * -LOG2_E for gate in gates]
    first, second = (1.0 + coarse_power(k, k.select(power > 60.0, 60.0, power)) for power in powers)
    inverse = 1.0 / (first * second)
    return [gates[0] * ups[0] * (second * inverse), gates[1] * ups[1] * (first * inverse)]


# What bf16 leaves room for.
COARSE: dict[str, Gate] = {"silu": _coarse_silu}
