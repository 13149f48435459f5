"""Attention for prompts: a tile of tokens times tiles of keys with online softmax. A variant of ops/attention.

A row is one q head of one token. Lanes are keys for q K and columns of the head for p V; both products are the same register tile
of rows times vectors with the row's element broadcast, so nothing is transposed, and a row's softmax costs one horizontal maximum
per 64 keys. K and V turn to f32 on their way into registers, in units idle otherwise: f32 copies of a tile in scratch fell out of
the L1 cache and cost a quarter of all time (Zen 4). Tokens of a tile that follow each other in one slot make a run; each run
passes over its own keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from camshaft.dtypes import f32, i64
from camshaft.extent import Extent
from camshaft.lang.ir import Value
from camshaft.lang.kernel import kernel
from camshaft.lang.tiles import add_products, first_elements, greater, power_of_two, tile_of
from camshaft.lang.tracer import Array, Number, Tracer
from camshaft.ops import op as ops
from camshaft.ops.attention.paged import Cache, Keys, is_quantized
from camshaft.ops.attention.registers import (
    LOG2_E,
    WIDTH,
    columns_of,
    even_steps,
    inside,
    padded,
    register_vectors,
)
from camshaft.ops.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.workgroup import has_threads, workgroup_nbytes

LOWEST = -3.0e38
BLOCK_ROWS = 6
# Rows and keys of tiles, the first that fits being taken: more scores first, then more rows, as each key is read once a tile.
TILES = sorted(((r, c) for r in (48, 36, 24, 12) for c in (64, 32, 16)), key=lambda n: (-n[0] * n[1], -n[0]))
MAX_SCRATCH_NBYTES = 128_000
# Of a GPU's workgroup memory, what 16 threads pass values in.
EXCHANGE_NBYTES = 256


@dataclass(frozen=True)
class Shape:
    """Sizes of one program: tokens and keys of a tile, padded rows, vectors of the register tile."""

    heads: int
    kv_heads: int
    head_dim: int
    tile_tokens: int
    tile_keys: int
    block_vectors: int

    @property
    def group(self) -> int:
        """q heads that share a kv head."""
        return self.heads // self.kv_heads

    @property
    def rows(self) -> int:
        """Rows of a tile, up to a whole number of register tiles."""
        return -(-self.tile_tokens * self.group // BLOCK_ROWS) * BLOCK_ROWS

    @property
    def key_vectors(self) -> int:
        return self.tile_keys // WIDTH

    @property
    def scratch_nbytes(self) -> int:
        whole = -(-self.rows // WIDTH) * WIDTH
        return 4 * (self.rows * (2 * padded(self.head_dim) + self.tile_keys + WIDTH) + 3 * whole)


def shape_of(node: ops.NodeSpec, target: ops.Target) -> Shape:
    """About 48 rows and 64 keys: measured within 2% of 24 to 48 rows and 64 to 128 keys, and 8% above 32 keys (Zen 4)."""
    return _shape(node, defaults(node, target))


def _shape(node: ops.NodeSpec, values: ops.Values) -> Shape:
    attrs = node.attrs
    tokens = max(1, values["tile_rows"] * attrs["kv_heads"] // attrs["heads"])
    sizes = attrs["heads"], attrs["kv_heads"], attrs["head_dim"]
    return Shape(*sizes, tokens, values["tile_keys"], values["block_vectors"])


def scratch_limit(target: ops.Target) -> int:
    """Bytes that a tile may take."""
    return workgroup_nbytes(target) - EXCHANGE_NBYTES if has_threads(target) else MAX_SCRATCH_NBYTES


class _Tile:
    """The workgroup memory of one program and the steps on it."""

    def __init__(self, k: Tracer, shape: Shape) -> None:
        self.k, self.shape = k, shape
        self.query, self.total = (k.scratch(f32, shape.rows, padded(shape.head_dim)) for _ in range(2))
        self.scores = k.scratch(f32, shape.rows, shape.tile_keys)
        self.weights = k.scratch(f32, shape.rows, WIDTH)
        whole = -(-shape.rows // WIDTH) * WIDTH
        self.peaks, self.tops, self.shrinks = (k.scratch(f32, whole) for _ in range(3))

    def start(self, q: Array, first: Value, n_rows: Value, whole: Value, kv_head: Value, scale: float) -> None:
        """Rows of q, scaled to powers of two; nothing seen yet. Rows past the last repeat it."""
        k, group, head_dim = self.k, self.shape.group, self.shape.head_dim
        for row in k.range(whole):
            source = k.minimum(row, n_rows - 1)
            column = (kv_head * group + source % group) * head_dim
            for d in columns_of(head_dim):
                at = first + source // group, column + d
                x = k.load_vector(q, *at, width=WIDTH, count=inside(head_dim, d))
                k.store_vector(self.query, x * (scale * LOG2_E), row, d)
                k.store_vector(self.total, k.splat(0.0, WIDTH), row, d)
            k.store_vector(self.weights, k.splat(0.0, WIDTH), row, 0)
            for start in range(0, self.shape.tile_keys, WIDTH):
                k.store_vector(self.scores, k.splat(0.0, WIDTH), row, start)
        for row in k.range(0, whole, WIDTH):
            k.store_vector(self.peaks, k.splat(LOWEST, WIDTH), row)
            k.store_vector(self.tops, k.splat(LOWEST, WIDTH), row)

    def score(self, whole: Value, keys: Keys) -> None:
        """scores = query K: whole tiles by the widest register tile, others a block of keys at a time."""
        k, full = self.k, self.shape.key_vectors
        step = min(self.shape.block_vectors, full)
        with k.when(keys.n_blocks == full):
            for v in range(0, full, step):
                blocks = [keys.block(v + i) for i in range(step)]
                for row in k.range(0, whole, BLOCK_ROWS):
                    self._score_block(row, keys, blocks, [(v + i) * WIDTH for i in range(step)])
        with k.when(keys.n_blocks < full):
            for index in k.range(keys.n_blocks):
                block = keys.block(index)
                for row in k.range(0, whole, BLOCK_ROWS):
                    self._score_block(row, keys, [block], [index * WIDTH])

    def _score_block(self, row: Value, keys: Keys, blocks: list[Value], starts: Sequence[Number]) -> None:
        k = self.k
        sums = tile_of(k, BLOCK_ROWS, len(blocks), WIDTH)
        for part in keys.parts():
            scales = keys.key_scales(blocks, 0, part)
            for _, d, vectors in keys.components(blocks, 0, part, 1):
                right = vectors if scales is None else [v * s for v, s in zip(vectors, scales, strict=True)]
                add_products(k, sums, [self.query[row + r, d] for r in range(BLOCK_ROWS)], right)
        for r, line in enumerate(sums):
            for start, total in zip(starts, line, strict=True):
                k.store_vector(self.scores, total.value, row + r, start)

    def find_peaks(self, row: Value, last_key: Value) -> None:
        """tops[row] = the greatest score so far; scores past `last_key` (in this tile) become the lowest."""
        k = self.k
        starts = range(0, self.shape.tile_keys, WIDTH)
        with k.when(last_key < self.shape.tile_keys - 1):
            for start in starts:
                score = k.load_vector(self.scores, row, start, width=WIDTH)
                seen = first_elements(k, last_key + 1 - start, WIDTH)
                k.store_vector(self.scores, k.select(seen, score, LOWEST), row, start)
        greatest = k.load_vector(self.scores, row, 0, width=WIDTH)
        for start in starts[1:]:
            greatest = greater(k, k.load_vector(self.scores, row, start, width=WIDTH), greatest)
        self.tops[row] = greater(k, k.vector_max(greatest), self.peaks[row])

    def weigh(self, whole: Value) -> None:
        """The online softmax: scores become 2^(score - peak), weights their sums, shrinks what older sums shrink by."""
        k = self.k
        for row in k.range(0, whole, WIDTH):
            top = k.load_vector(self.tops, row, width=WIDTH)
            shrink = power_of_two(k, k.load_vector(self.peaks, row, width=WIDTH) - top)
            k.store_vector(self.shrinks, shrink, row)
            k.store_vector(self.peaks, top, row)
        for row in k.range(whole):
            peak = self.peaks[row]
            weight = k.load_vector(self.weights, row, 0, width=WIDTH) * self.shrinks[row]
            for start in range(0, self.shape.tile_keys, WIDTH):
                power = power_of_two(k, k.load_vector(self.scores, row, start, width=WIDTH) - peak)
                k.store_vector(self.scores, power, row, start)
                weight = weight + power
            k.store_vector(self.weights, weight, row, 0)

    def mix(self, whole: Value, keys: Keys) -> None:
        """total = shrink total + scores V, by register tiles of rows times columns."""
        k, shape = self.k, self.shape
        for row in k.range(0, whole, BLOCK_ROWS):
            for columns in even_steps(shape.head_dim, shape.block_vectors):
                self._mix_block(row, keys, columns)

    def _mix_block(self, row: Value, keys: Keys, columns: list[int]) -> None:
        k = self.k
        sums = [
            [k.var(k.load_vector(self.total, row + r, d, width=WIDTH) * self.shrinks[row + r]) for d in columns]
            for r in range(BLOCK_ROWS)
        ]
        for index in k.range(keys.n_blocks):
            block, start = keys.block(index), index * BLOCK_TOKENS
            for j in k.range(keys.in_block(index)):
                right = [keys.values(block, 0, j, d) for d in columns]
                add_products(k, sums, [self.scores[row + r, start + j] for r in range(BLOCK_ROWS)], right)
        for r, line in enumerate(sums):
            for d, total in zip(columns, line, strict=True):
                k.store_vector(self.total, total.value, row + r, d)

    def finish(self, out: Array, first: Value, n_rows: Value, kv_head: Value) -> None:
        """out = total / sum of weights."""
        k, group, head_dim = self.k, self.shape.group, self.shape.head_dim
        for row in k.range(n_rows):
            inverse = 1.0 / k.vector_sum(k.load_vector(self.weights, row, 0, width=WIDTH))
            column = (kv_head * group + row % group) * head_dim
            for d in columns_of(head_dim):
                x = k.load_vector(self.total, row, d, width=WIDTH) * inverse
                k.store_vector(out, x, first + row // group, column + d, count=inside(head_dim, d))


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
    tile, kv_head = _Tile(k, shape), k.program(1)
    n_tokens = active[0] if active else k.const(q.shape[0], i64)
    begin = _evened(k, k.program(0), (n_tokens + (tile_tokens - 1)) // tile_tokens) * tile_tokens
    end = k.minimum(begin + tile_tokens, n_tokens)
    for first in k.range(begin, end):
        with k.when((first == begin) | (slots[k.maximum(first - 1, begin)] != slots[first])):
            last, greatest = _run_from(k, first, end, slots, positions)
            n_rows = (last - first) * shape.group
            whole = (n_rows + (BLOCK_ROWS - 1)) // BLOCK_ROWS * BLOCK_ROWS
            tile.start(q, first, n_rows, whole, kv_head, scale)
            for base in k.range(0, greatest + 1, shape.tile_keys):
                count = k.minimum(greatest + 1 - base, shape.tile_keys)
                keys = Keys(k, cache, table, slots[first].to(i64), kv_head, base, count)
                tile.score(whole, keys)
                for row in k.range(whole):
                    token = first + k.minimum(row, n_rows - 1) // shape.group
                    tile.find_peaks(row, positions[token].to(i64) - base)
                tile.weigh(whole)
                tile.mix(whole, keys)
            tile.finish(out, first, n_rows, kv_head)


def _evened(k: Tracer, program: Value, n_tiles: Value) -> Value:
    """Tiles from both ends in turn: later ones see more keys, and workers take neighbouring programs."""
    half = program // 2
    return k.select(program % 2 == 0, half, n_tiles - 1 - half)


def _run_from(k: Tracer, first: Value, end: Value, slots: Array, positions: Array) -> tuple[Value, Value]:
    """Where the run of one slot that starts at `first` ends, and the greatest position in it."""
    last, greatest = k.var(first + 1, i64), k.var(positions[first].to(i64), i64)
    for token in k.range(first + 1, end):
        with k.when((last.value == token) & (slots[token] == slots[first])):
            last.set(token + 1)
            greatest.set(k.maximum(greatest.value, positions[token].to(i64)))
    return last.value, greatest.value


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """A tile that fits the workgroup memory."""
    shape = shape_of(node, target)
    if shape.scratch_nbytes > scratch_limit(target):
        return f"{shape.group} heads of a group with head_dim {shape.head_dim} pass the workgroup memory"
    return None


def defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Rows and keys of a tile, vectors of the register tile. In a workgroup's memory the tile with the most scores that fits."""
    vectors, most = max(1, register_vectors(target) // BLOCK_ROWS), scratch_limit(target)
    found = [{"tile_rows": rows, "tile_keys": keys, "block_vectors": vectors} for rows, keys in TILES]
    return next((values for values in found if _shape(node, values).scratch_nbytes <= most), found[-1])


def refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """A tile that passes the workgroup memory, or is no whole number of register tiles."""
    shape = _shape(node, values)
    if shape.key_vectors % min(shape.block_vectors, shape.key_vectors):
        return f"{shape.tile_keys} keys are no multiple of {shape.block_vectors} vectors"
    if shape.scratch_nbytes > scratch_limit(target):
        return f"{shape.rows} rows and {shape.tile_keys} keys pass the workgroup memory"
    return None


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Programs (tile of tokens, kv head)."""
    return build_with(node, target, defaults(node, target))


def build_with(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """As `build`, with a value for each tunable."""
    shape, tokens = _shape(node, values), node.inputs[0].shape[0]
    launch = ops.Launch(
        one_quantized_tile_per_program if is_quantized(node) else one_tile_per_program,
        (*(ops.read(i) for i in range(len(node.inputs))), ops.write(0)),
        (ops.Cells(tokens, per=shape.tile_tokens), ops.Cells(shape.kv_heads)),
        {"scale": node.attrs["scale"], **asdict(shape)},
        extents=(tokens,) if isinstance(tokens, Extent) else (),
    )
    return ops.Build((launch,))


TUNABLES = ops.Tunables(
    {"tile_rows": (12, 24, 36, 48, 72, 96), "tile_keys": (16, 32, 64, 128, 256), "block_vectors": (1, 2, 3, 4)},
    defaults,
    build_with,
    refusal,
)
