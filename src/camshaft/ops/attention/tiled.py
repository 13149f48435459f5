"""The variant of attention for prompts: a tile of tokens times tiles of keys with online softmax.

Lanes are keys for q K and columns of the head for p V. Both products are the same register block of rows times vectors with the
row's element broadcast, so nothing is transposed. Consecutive tokens of a tile in one slot are a run; each run iterates over its
own keys. The steps on a tile are in tiled_steps.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from camshaft.dtypes import i64
from camshaft.extent import Extent
from camshaft.lang import Constant, Kernel, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.attention import split
from camshaft.ops.attention.paged import (
    Arguments,
    Keys,
    arguments_of,
    is_quantized,
    multiply_adds,
    reads,
    register_vectors,
    without_options,
)
from camshaft.ops.attention.tiled_steps import BLOCK_ROWS, Shape, Tile, divisors
from camshaft.ops.kernels.launch import has_threads, workgroup_nbytes
from camshaft.ops.spec import bound

# Rows and keys of tiles; the first that fits is used. More scores first, then more rows, because a tile reads each key once.
TILES = sorted(((r, c) for r in (48, 36, 24, 12) for c in (64, 32, 16)), key=lambda n: (-n[0] * n[1], -n[0]))
MAX_SCRATCH_NBYTES = 128_000
# Bytes of a GPU's workgroup memory through which 16 threads exchange values.
EXCHANGE_NBYTES = 256
RATE = 47.0  # multiply-adds per ns, measured on one core of a Zen 4 server (its peak is 59)


@kernel
def one_tile_per_program(k: Tracer, *arguments: Any, scale: float, **sizes: int) -> None:
    # for each tile of keys: S = scale q K; m' = max(m, S); P = e^(S - m'); l = e^(m - m') l + sum P; O = e^(m - m') O + P V
    given, shape = arguments_of(arguments), Shape(**sizes)
    tile, kv_head = Tile(k, shape), k.program(0)
    for run in runs_of(k, given, shape.tile_tokens):
        n_rows = run.n_tokens * shape.group
        whole = (n_rows + (BLOCK_ROWS - 1)) // BLOCK_ROWS * BLOCK_ROWS
        tile.start(given.q, given.positions, run.first, n_rows, whole, kv_head, scale)
        keys = run.keys(k, given, kv_head // shape.parts)
        for base in k.range(0, run.greatest + 1, shape.tile_keys):
            if shape.unpacked:
                tile.unpack(replace(keys, base=base, count=k.minimum(run.greatest + 1 - base, shape.tile_keys)))
            for row in k.range(0, whole, BLOCK_ROWS):
                _weigh(tile, row, replace(keys, base=base))
            for row in k.range(0, whole, BLOCK_ROWS):
                _mix(tile, row, replace(keys, base=base))
        tile.finish(given.rest[0], run.first, n_rows, kv_head)


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


@dataclass(frozen=True)
class Run:
    """Consecutive tokens of one slot: the first, how many, the slot, and the largest of their positions."""

    first: Value
    n_tokens: Value
    slot: Value
    greatest: Value

    def keys(self, k: Tracer, given: Arguments, kv_head: Value) -> Keys:
        """Returns the slot's keys, without a base and a count yet."""
        none = k.const(0, i64)
        return Keys(k, given.cache, given.table, self.slot, kv_head, none, none)


def runs_of(k: Tracer, given: Arguments, tile_tokens: int) -> Iterator[Run]:
    """Yields the runs in a program's tile of tokens, within a loop over them. Programs are (kv head, tile of tokens); the last
    argument is the number of tokens if that is known at run time only."""
    active = given.rest[-1]
    n_tokens = active if isinstance(active, Value) else k.const(given.q.shape[0], i64)
    begin = _evened(k, k.program(1), (n_tokens + (tile_tokens - 1)) // tile_tokens) * tile_tokens
    end = k.minimum(begin + tile_tokens, n_tokens)
    for first in k.range(begin, end):
        with k.when((first == begin) | (given.slots[k.maximum(first - 1, begin)] != given.slots[first])):
            last, greatest = _run_from(k, first, end, given)
            yield Run(first, last - first, given.slots[first].to(i64), greatest)


def _evened(k: Tracer, program: Value, n_tiles: Value) -> Value:
    """Returns a program's tile. Later tiles have more keys, so programs alternate between both ends: 0, n - 1, 2, n - 3 up to
    the middle, then back to the ends. The work of equal ranges of programs differs by about a tile at most."""
    pairs, pair = n_tiles // 2, program // 2
    place = k.select(pair * 2 < pairs, pair * 2, (pairs - pair) * 2 - 1)
    tile = k.select(program % 2 == 0, place, n_tiles - 1 - place)
    return k.select(pair == pairs, pairs, tile)


def _run_from(k: Tracer, first: Value, end: Value, given: Arguments) -> tuple[Value, Value]:
    """Returns the end of the run of one slot that starts at `first`, and the largest position in it."""
    slots, positions = given.slots, given.positions
    last, greatest = k.var(first + 1, i64), k.var(positions[first].to(i64), i64)
    for token in k.range(first + 1, end):
        with k.when((last.value == token) & (slots[token] == slots[first])):
            last.set(token + 1)
            greatest.set(k.maximum(greatest.value, positions[token].to(i64)))
    return last.value, greatest.value


S = TypeVar("S", bound=Shape)


def shape_of(node: ops.NodeSpec, target: ops.Target) -> Shape:
    """Returns the tile's default sizes, about 48 rows on a CPU."""
    return _shape(node, target, _defaults(node, target))


def _shape(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> Shape:
    return fitting(Shape, node, target, values)


def fitting(make: type[S], node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> S:
    """Returns the sizes for a tile's rows and keys, with as many heads of a group together as fit, or one if none do."""
    heads, kv_heads, head_dim = (node.attrs[name] for name in ("heads", "kv_heads", "head_dim"))
    unpacked = is_quantized(node) and not has_threads(target)  # a GPU's workgroup memory has no room for it

    def of(parts: int) -> S:
        tokens = max(1, values["tile_rows"] * kv_heads * parts // heads)
        sizes = heads, kv_heads * parts, head_dim, tokens
        return make(*sizes, values["tile_keys"], values["block_vectors"], int(unpacked), parts)

    found = [of(parts) for parts in divisors(heads // kv_heads)]
    return next((shape for shape in found if shape.scratch_nbytes <= scratch_limit(target)), found[-1])


def scratch_limit(target: ops.Target) -> int:
    """Returns the bytes of scratch available to a tile."""
    return workgroup_nbytes(target) - EXCHANGE_NBYTES if has_threads(target) else MAX_SCRATCH_NBYTES


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None: no tile fits the workgroup memory, or split_keys takes the
    node. That takes one token too, so next tokens of sequences have the same bits beside any others."""
    if (reason := without_options(node)) is not None:
        return reason
    if split.VARIANT.supports(node, target) is None:
        return f"takes more than {split.MAX_TOKENS} tokens; got {bound(node.inputs[0].shape[0])}"
    shape = shape_of(node, target)
    if shape.scratch_nbytes > scratch_limit(target):
        return f"{shape.group} heads of a group with head_dim {shape.head_dim} exceed the workgroup memory"
    return None


def _defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the default rows and keys of a tile and vectors of the register tile. On a GPU this is the tile with the most
    scores that fits the workgroup memory."""
    vectors, most = max(1, register_vectors(target) // BLOCK_ROWS), scratch_limit(target)
    found = [{"tile_rows": rows, "tile_keys": keys, "block_vectors": vectors} for rows, keys in TILES]
    return next((values for values in found if _shape(node, target, values).scratch_nbytes <= most), found[-1])


def _refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Returns why the tile does not fit the workgroup memory, or None."""
    shape = _shape(node, target, values)
    if shape.scratch_nbytes > scratch_limit(target):
        return f"{shape.rows} rows and {shape.tile_keys} keys exceed the workgroup memory"
    return None


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    return tiles_build(one_tile_per_program, node, asdict(_shape(node, target, values)))


def tiles_build(kernel: Kernel, node: ops.NodeSpec, sizes: Mapping[str, int], **options: Constant) -> ops.Build:
    """Builds a launch with programs (kv head, tile of tokens), so that a worker reuses a head's keys and values in its cache.
    `sizes` are the fields of a Shape, and the kernel's constants with the `options`."""
    tokens = node.inputs[0].shape[0]
    launch = ops.Launch(
        kernel,
        (*reads(node), *(ops.write(i) for i in range(len(node.outputs)))),
        (ops.Cells(sizes["kv_heads"]), ops.Cells(tokens, per=sizes["tile_tokens"])),
        {"scale": node.attrs["scale"], **options, **sizes},
        extents=(tokens,) if isinstance(tokens, Extent) else (),
    )
    return ops.Build((launch,))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Estimates the cost of full register tiles."""
    shape, tokens = shape_of(node, target), node.inputs[0].bounds[0]
    rows = min(tokens, shape.tile_tokens) * shape.group
    padding = shape.padded_rows(rows) / rows
    return multiply_adds(node) / RATE * padding


_TUNABLES = ops.Tunables(
    {
        "tile_rows": (12, 24, 36, 48, 72, 96),
        "tile_keys": (16, 32, 64, 128, 256),
        "block_vectors": (1, 2, 3, 4),
    },
    _defaults,
    _build,
    _refusal,
)
VARIANT = ops.KernelVariant("tiled", ops.VECTORS, _TUNABLES.build_default, _supports, _cost, _TUNABLES)
