"""The variant of sorts that splits rows of the last axis on a CPU, a long row by all workers."""

from __future__ import annotations

from camshaft.dtypes import as_dtype, i32, i64
from camshaft.lang import Constant
from camshaft.ops import op as ops
from camshaft.ops.kernels.launch import plan_workers
from camshaft.ops.scan.definition import axis_of, layout_of
from camshaft.ops.sort.definition import Ordered
from camshaft.ops.sort.keys import as_bits
from camshaft.ops.sort.merges import width_of, words_of
from camshaft.ops.sort.partition import kernels
from camshaft.ops.spec import TensorSpec, bound

# Bytes of the words of a bucket and of a chunk: with the room beside them they fit an L2 cache.
BUCKET, CHUNK = 1 << 17, 1 << 18
LEAST = 64


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
        "inner": inner, "dim": dim,
    }  # fmt: skip
    grid, sizes = (ops.Cells(outer), ops.Cells(inner)), ("inner", "dim", "chunk", "levels", "buckets", "chunks")
    source, out = as_bits(ops.read(0, shape=(rows, dim)), x), ops.write(0, shape=(rows, dim))
    out = as_bits(out, x) if row.gives == ("values",) else out
    halves = TensorSpec((rows, 2 * dim), words.dtype)
    common = {**named, "width": width}
    if not levels:
        keys = ops.scratch(0, "update", (rows, 2 * dim))
        launch = ops.Launch(kernels.sort_row, (source, keys, out), grid, common, lanes=width, sizes=sizes)
        return ops.Build((launch,), (halves,))
    buckets = 1 << levels
    chunk = min(-(-dim // buckets), CHUNK // words.dtype.nbytes) // width * width + width
    chunks = -(-dim // chunk)
    pieces = (rows, chunks, buckets)
    scratch = (
        halves, halves, TensorSpec((rows, buckets), words.dtype), TensorSpec(pieces, i64), TensorSpec(pieces, i32),
        TensorSpec((rows, buckets + 1), i64),
    )  # fmt: skip

    def reads(*numbers: int) -> tuple[ops.Operand, ...]:
        return tuple(ops.scratch(i, "read", scratch[i].bounds) for i in numbers)

    def writes(*numbers: int) -> tuple[ops.Operand, ...]:
        return tuple(ops.scratch(i, "update" if i < 2 else "write", scratch[i].bounds) for i in numbers)

    launches = (
        ops.Launch(kernels.sample_row, (source, *writes(2)), grid, {**named, "buckets": buckets}, sizes=sizes),
        ops.Launch(
            kernels.split_chunks, (source, *reads(2), *writes(0, 3, 4)), (*grid, ops.Cells(dim, per=chunk)),
            {**common, "chunk": chunk, "levels": levels, "buckets": buckets}, lanes=width, sizes=sizes,
        ),
        ops.Launch(
            kernels.start_buckets, (*reads(4), *writes(5)), grid, {"inner": inner, "chunks": chunks, "buckets": buckets},
            sizes=sizes,
        ),
        ops.Launch(
            kernels.sort_buckets, (*reads(0, 3, 4, 5), *writes(1), out), (*grid, ops.Cells(buckets)),
            {**common, "chunks": chunks}, lanes=width, sizes=sizes,
        ),
    )  # fmt: skip
    return ops.Build(launches, scratch)


def cost(row: Ordered, node: ops.NodeSpec, target: ops.Target) -> float:
    """ns, measured with AVX-512."""
    x, width = node.inputs[0], width_of(words_of(row, node), target)
    outer, inner, dim, _ = layout_of(x, axis_of(row.name, x, node.attrs))
    rows, levels = bound(outer) * inner, levels_of(dim, words_of(row, node).dtype.nbytes)
    shared = min(plan_workers() or 1, rows << levels)
    splits = max(0, (dim - 1).bit_length() - 8)
    return 2000.0 + rows * dim * (0.5 + 0.05 * splits) * 16 / width / shared


def supports(row: Ordered, node: ops.NodeSpec, target: ops.Target) -> str | None:
    """The last axis; indexes beside elements of at most 32 bits."""
    x = node.inputs[0]
    *_, dim, columns = layout_of(x, axis_of(row.name, x, node.attrs))
    if "places" in row.gives and as_dtype(x.dtype).bits == 64:
        return "wanted elements of at most 32 bits, beside which an index fits"
    if target.lanes < 8:
        return "wanted vectors of 256 bits or more"
    return f"wanted rows of more than {LEAST} elements of the last axis" if columns > 1 or dim <= LEAST else None


def partition(row: Ordered) -> ops.KernelVariant:
    """Splits rows as quicksort does."""
    return ops.KernelVariant(
        "partition",
        frozenset({"simd"}),
        lambda node, target: build(row, node, target),
        lambda node, target: supports(row, node, target),
        lambda node, target: cost(row, node, target),
    )
