"""The kernels of attention for prompts: a tile of tokens over the keys of its slot, tile after tile.

Lanes are keys for q K and columns of the head for p V; both products are the same register block of rows times vectors with the
row's element broadcast, so nothing is transposed. K and V are converted to f32 as they are loaded, in otherwise idle units: f32
copies of a tile in scratch did not fit the L1 cache and cost a quarter of the time (Zen 4). Consecutive tokens of a tile in one
slot are a run; each run iterates over its own keys.
"""

from __future__ import annotations

from dataclasses import replace

from camshaft.dtypes import i64
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops.attention.paged import Cache, Keys
from camshaft.ops.attention.tiled_steps import BLOCK_ROWS, Shape, Tile


@kernel
def one_tile_per_program(
    k: Tracer,
    q: Array,
    k_cache: Array,
    v_cache: Array,
    positions: Array,
    slots: Array,
    block_table: Array,
    out: Array,
    *active: Value,
    scale: float,
    **sizes: int,
) -> None:
    _one_tile(k, (q, out), Cache(k_cache, v_cache), (positions, slots, block_table), active, scale, Shape(**sizes))


@kernel
def one_quantized_tile_per_program(
    k: Tracer,
    q: Array,
    k_codes: Array,
    v_codes: Array,
    positions: Array,
    slots: Array,
    block_table: Array,
    k_scales: Array,
    v_scales: Array,
    out: Array,
    *active: Value,
    scale: float,
    **sizes: int,
) -> None:
    cache = Cache(k_codes, v_codes, k_scales, v_scales)
    _one_tile(k, (q, out), cache, (positions, slots, block_table), active, scale, Shape(**sizes))


def _one_tile(
    k: Tracer,
    rows: tuple[Array, Array],
    cache: Cache,
    places: tuple[Array, Array, Array],
    active: tuple[Value, ...],
    scale: float,
    shape: Shape,
) -> None:
    # for each tile of keys: S = scale q K; m' = max(m, S); P = e^(S - m'); l = e^(m - m') l + sum P; O = e^(m - m') O + P V
    (q, out), (positions, slots, table), tile_tokens = rows, places, shape.tile_tokens
    tile, kv_head = Tile(k, shape), k.program(0)
    n_tokens = active[0] if active else k.const(q.shape[0], i64)
    begin = _evened(k, k.program(1), (n_tokens + (tile_tokens - 1)) // tile_tokens) * tile_tokens
    end = k.minimum(begin + tile_tokens, n_tokens)
    for first in k.range(begin, end):
        with k.when((first == begin) | (slots[k.maximum(first - 1, begin)] != slots[first])):
            last, greatest = _run_from(k, first, end, slots, positions)
            n_rows = (last - first) * shape.group
            whole = (n_rows + (BLOCK_ROWS - 1)) // BLOCK_ROWS * BLOCK_ROWS
            tile.start(q, positions, first, n_rows, whole, kv_head, scale)
            slot, none = slots[first].to(i64), k.const(0, i64)
            keys = Keys(k, cache, table, slot, kv_head, none, none)
            for base in k.range(0, greatest + 1, shape.tile_keys):
                if shape.unpacked:
                    tile.unpack(replace(keys, base=base, count=k.minimum(greatest + 1 - base, shape.tile_keys)))
                for row in k.range(0, whole, BLOCK_ROWS):
                    _weigh(tile, row, replace(keys, base=base))
                for row in k.range(0, whole, BLOCK_ROWS):
                    _mix(tile, row, replace(keys, base=base))
            tile.finish(out, first, n_rows, kv_head)


def _weigh(tile: Tile, row: Value, keys: Keys) -> None:
    """Computes the weights of a tile's keys for a block's rows, if any row attends to one of them."""
    k, tile_keys = tile.k, tile.shape.tile_keys
    least, greatest = tile.reach(row)
    with k.when(keys.base <= greatest):
        seen = replace(keys, count=k.minimum(greatest + 1 - keys.base, tile_keys))
        tile.score(row, seen)
        with k.when(least < keys.base + (tile_keys - 1)):
            tile.mask(row, keys.base)
        tile.move_peaks(row, seen)
        tile.weigh(row)


def _mix(tile: Tile, row: Value, keys: Keys) -> None:
    """Adds the values of the keys that any of a block's rows attends to."""
    k = tile.k
    greatest = tile.reach(row)[1]
    with k.when(keys.base <= greatest):
        tile.mix(row, replace(keys, count=k.minimum(greatest + 1 - keys.base, tile.shape.tile_keys)))


def _evened(k: Tracer, program: Value, n_tiles: Value) -> Value:
    """Returns a program's tile. Later tiles have more keys, so programs alternate between both ends: 0, n - 1, 2, n - 3 up to
    the middle, then back to the ends. The work of equal ranges of programs differs by about a tile at most."""
    pairs, pair = n_tiles // 2, program // 2
    place = k.select(pair * 2 < pairs, pair * 2, (pairs - pair) * 2 - 1)
    tile = k.select(program % 2 == 0, place, n_tiles - 1 - place)
    return k.select(pair == pairs, pairs, tile)


def _run_from(k: Tracer, first: Value, end: Value, slots: Array, positions: Array) -> tuple[Value, Value]:
    """Returns the end of the run of one slot that starts at `first`, and the greatest position in it."""
    last, greatest = k.var(first + 1, i64), k.var(positions[first].to(i64), i64)
    for token in k.range(first + 1, end):
        with k.when((last.value == token) & (slots[token] == slots[first])):
            last.set(token + 1)
            greatest.set(k.maximum(greatest.value, positions[token].to(i64)))
    return last.value, greatest.value
