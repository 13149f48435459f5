"""The variant of sorts that splits rows of the last axis on a CPU, a long row by all workers."""

from __future__ import annotations

from math import log2

from camshaft.dtypes import DType, as_dtype, i32, i64
from camshaft.lang import Constant
from camshaft.ops import op as ops
from camshaft.ops.kernels.launch import plan_workers
from camshaft.ops.scan.definition import axis_of, layout_of
from camshaft.ops.sort.definition import Ordered
from camshaft.ops.sort.keys import as_bits
from camshaft.ops.sort.merges import supports, width_of, words_of
from camshaft.ops.sort.partition import kernels
from camshaft.ops.sort.partition.segments import LEAVES
from camshaft.ops.spec import TensorSpec, bound

# Bytes of the words of a bucket and of a chunk: with the room beside them they fit an L2 cache.
BUCKET, CHUNK = 1 << 17, 1 << 18
# Words by which a slot is longer, so that its halves do not begin at the same place of a page.
OFFSET = 272
SIZES = ("inner", "dim", "chunk", "chunks", "levels", "buckets", "programs", "slot", "room")


def levels_of(dim: int, word_nbytes: int) -> int:
    """How often a row's chunks are split: into as many buckets as are 0.75 to 1.5 times BUCKET; 0: the row is one."""
    levels = 0
    while dim * word_nbytes >> levels > BUCKET * 3 // 2 and 1 << levels < kernels.MOST_BUCKETS:
        levels += 1
    return levels


def build(row: Ordered, node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """A program for each row, or launches that draw a sample, split chunks, sum counts and sort buckets."""
    x, words = node.inputs[0], words_of(row, node)
    outer, inner, dim, _ = layout_of(x, axis_of(row.name, x, node.attrs))
    rows, width, levels = bound(outer) * inner, width_of(words, target), levels_of(dim, words.dtype.nbytes)
    named: dict[str, Constant] = {
        "dtype": as_dtype(x.dtype).name, "descending": row.descending(node.attrs), "gives": " ".join(row.gives),
        "inner": inner,
    }  # fmt: skip
    arrays = as_bits(ops.read(0, shape=(rows, dim)), x), ops.write(0, shape=(rows, dim))
    arrays = arrays[0], as_bits(arrays[1], x) if row.gives == ("values",) else arrays[1]
    pad = LEAVES[0] * width
    room = dim + (pad << levels)
    grid = ops.Cells(outer), ops.Cells(inner)
    if levels:
        return _in_buckets(arrays, grid, named, words.dtype, (rows, dim, width, levels, room))
    keys = TensorSpec((rows, 2 * room), words.dtype)
    operands, given = (
        (arrays[0], ops.scratch(0, "update", keys.bounds), arrays[1]),
        {"dim": dim, "room": room, "width": width},
    )
    return ops.Build((ops.Launch(kernels.sort_row, operands, grid, named | given, lanes=width, sizes=SIZES),), (keys,))


def _in_buckets(
    arrays: tuple[ops.Operand, ops.Operand], grid: tuple[ops.Cells, ...], named: dict[str, Constant], word: DType,
    sizes: tuple[int, int, int, int, int],
) -> ops.Build:  # fmt: skip
    """The launches for a long row. A program has a slot of words for its chunks and buckets, which stays in its core's cache;
    what no slot holds is sorted behind them."""
    rows, dim, width, levels, room = sizes
    buckets, most, workers = 1 << levels, CHUNK // word.nbytes, plan_workers() or 1
    chunk = min(-(-dim // buckets), most)
    chunks, slot, programs = (
        -(-dim // chunk),
        most + LEAVES[0] * width + OFFSET,
        workers if workers < 2 else 4 * workers,
    )
    pieces = (rows, chunks, buckets)
    scratch = (
        TensorSpec((rows, 2 * (programs * slot + room)), word), TensorSpec((rows, dim), word), TensorSpec((rows, buckets), word),
        TensorSpec(pieces, i64), TensorSpec(pieces, i32), TensorSpec((rows, buckets + 1), i64),
    )  # fmt: skip
    keys = ops.scratch(0, "update", scratch[0].bounds)
    read, write = (
        [ops.scratch(i, access, spec.bounds) for i, spec in enumerate(scratch)] for access in ("read", "write")
    )
    shared: dict[str, Constant] = {
        "chunks": chunks,
        "buckets": buckets,
        "programs": programs,
        "slot": slot,
        "width": width,
    }
    source, out = arrays
    by_program = *grid, ops.Cells(programs)
    launches = (
        ops.Launch(kernels.sample_row, (source, write[2]), grid, {**named, "dim": dim, "buckets": buckets}, sizes=SIZES),
        ops.Launch(
            kernels.split_chunks, (source, read[2], keys, write[1], *write[3:5]), by_program,
            {**named, **shared, "dim": dim, "chunk": chunk, "levels": levels}, lanes=width, sizes=SIZES,
        ),
        ops.Launch(
            kernels.start_buckets, (read[4], write[5]), grid,
            {"inner": named["inner"], "chunks": chunks, "buckets": buckets}, sizes=SIZES,
        ),
        ops.Launch(
            kernels.sort_buckets, (read[1], *read[3:6], keys, out), by_program,
            {**named, **shared, "room": room}, lanes=width, sizes=SIZES,
        ),
    )  # fmt: skip
    return ops.Build(launches, scratch)


def cost(row: Ordered, node: ops.NodeSpec, target: ops.Target) -> float:
    """ns, measured with AVX-512: leaves, splits of what they do not hold, and twice through memory if there are buckets."""
    x, words = node.inputs[0], words_of(row, node)
    outer, inner, dim, _ = layout_of(x, axis_of(row.name, x, node.attrs))
    rows, width, levels = bound(outer) * inner, width_of(words, target), levels_of(dim, words.dtype.nbytes)
    leaf = next((rows * width for rows in LEAVES[::-1] if dim <= rows * width), 0)
    each_row = 1.0 * leaf if leaf else dim * (1.45 + 0.15 * log2(dim / (LEAVES[0] * width)))
    each_row += (1.0 * dim + 4000.0) if levels else 0.0
    shared = min(plan_workers() or 1, rows << levels)
    return 500.0 + rows * each_row * 16 / width / shared


def partition(row: Ordered) -> ops.KernelVariant:
    """Splits rows as quicksort does."""
    return ops.KernelVariant(
        "partition",
        frozenset({"simd"}),
        lambda node, target: build(row, node, target),
        lambda node, target: supports(row, node, target, lanes=8),
        lambda node, target: cost(row, node, target),
    )
