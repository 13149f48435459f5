"""The variants of sorts that split rows of the last axis on a CPU: a row by one program, or in buckets, by all workers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
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

# Elements of a row in buckets; bytes of the words of a bucket, of which there are FEWEST or more, and of a chunk: each fits an L2
# cache.
LEAST, FEWEST, BUCKET, CHUNK = 256, 8, 1 << 17, 1 << 18
SIZES = ("inner", "dim", "chunk", "chunks", "levels", "buckets")


def levels_of(dim: int, word_nbytes: int) -> int:
    """How often a row's chunks are split: into FEWEST buckets, or as many as are 0.75 to 1.5 times BUCKET."""
    levels = FEWEST.bit_length() - 1
    while dim * word_nbytes >> levels > BUCKET * 3 // 2 and 1 << levels < kernels.MOST_BUCKETS:
        levels += 1
    return levels


def build(row: Ordered, node: ops.NodeSpec, target: ops.Target, shared: bool) -> ops.Build:
    """A program for each row; `shared`: launches that draw a sample, split chunks, sum counts and sort buckets."""
    x, words = node.inputs[0], words_of(row, node)
    outer, inner, dim, _ = layout_of(x, axis_of(row.name, x, node.attrs))
    rows = bound(outer) * inner
    named: dict[str, Constant] = {
        "dtype": as_dtype(x.dtype).name, "descending": row.descending(node.attrs), "gives": " ".join(row.gives),
        "inner": inner,
    }  # fmt: skip
    source, out = as_bits(ops.read(0, shape=(rows, dim)), x), ops.write(0, shape=(rows, dim))
    keys = TensorSpec((rows, dim), words.dtype)
    if row.gives == ("values",) and words.dtype.bits == as_dtype(x.dtype).bits:  # words are sorted where the result is
        sorted_in: tuple[ops.Operand, ...] = (replace(out, access="update", dtype=words.dtype),)
    else:
        sorted_in = ops.scratch(0, "update", keys.bounds), as_bits(out, x) if row.gives == ("values",) else out
    scratch = (keys,)[: len(sorted_in) - 1]
    grid, width = (ops.Cells(outer), ops.Cells(inner)), width_of(words, target)
    if shared:
        return _in_buckets((source, *sorted_in), scratch, grid, named, (rows, dim, width), words.dtype)
    given = {**named, "dim": dim, "width": width, "in_keys": not scratch}
    launch = ops.Launch(kernels.sort_rows, (source, *sorted_in), grid, given, lanes=width, sizes=SIZES)
    return ops.Build((launch,), scratch)


def _in_buckets(
    arrays: tuple[ops.Operand, ...], first: tuple[TensorSpec, ...], grid: tuple[ops.Cells, ...],
    named: dict[str, Constant], sizes: tuple[int, int, int], word: DType,
) -> ops.Build:  # fmt: skip
    """The launches for a long row: a program for each chunk, then for each bucket."""
    rows, dim, width = sizes
    levels = levels_of(dim, word.nbytes)
    buckets = 1 << levels
    chunk = min(-(-dim // buckets), CHUNK // word.nbytes)
    chunks = -(-dim // chunk)
    pieces = (rows, chunks, buckets)
    more = (
        TensorSpec((rows, dim), word), TensorSpec((rows, buckets), word), TensorSpec(pieces, i64), TensorSpec(pieces, i32),
        TensorSpec((rows, buckets + 1), i64),
    )  # fmt: skip
    read, write = (
        [ops.scratch(len(first) + i, access, spec.bounds) for i, spec in enumerate(more)]
        for access in ("read", "write")
    )
    source, *sorted_in = arrays
    split: dict[str, Constant] = {
        **named,
        "width": width,
        "dim": dim,
        "chunk": chunk,
        "levels": levels,
        "buckets": buckets,
    }
    launches = (
        ops.Launch(
            kernels.sample_row, (source, write[1]), grid, {**named, "dim": dim, "buckets": buckets}, sizes=SIZES
        ),
        ops.Launch(
            kernels.split_chunks, (source, read[1], ops.scratch(len(first), "update", (rows, dim)), *write[2:4]),
            (*grid, ops.Cells(chunks)), split, lanes=width, sizes=SIZES,
        ),
        ops.Launch(
            kernels.start_buckets, (read[3], write[4]), grid,
            {"inner": named["inner"], "chunks": chunks, "buckets": buckets}, sizes=SIZES,
        ),
        ops.Launch(
            kernels.sort_buckets, (read[0], *read[2:5], *sorted_in), (*grid, ops.Cells(buckets)),
            {**named, "chunks": chunks, "width": width, "in_keys": not first}, lanes=width, sizes=SIZES,
        ),
    )  # fmt: skip
    return ops.Build(launches, (*first, *more))


def cost(row: Ordered, node: ops.NodeSpec, target: ops.Target, shared: bool) -> float:
    """ns, measured with AVX-512: leaves, splits of what they do not hold, and once more through memory if there are buckets."""
    x, words = node.inputs[0], words_of(row, node)
    outer, inner, dim, _ = layout_of(x, axis_of(row.name, x, node.attrs))
    rows, width = bound(outer) * inner, width_of(words, target)
    leaf = next((rows * width for rows in LEAVES[::-1] if dim <= rows * width), 0)
    each_row = 1.0 * leaf if leaf else dim * (1.45 + 0.15 * log2(dim / (LEAVES[0] * width)))
    each_row += (1.0 * dim + 8000.0) if shared else 0.0
    programs = rows << levels_of(dim, words.dtype.nbytes) if shared else rows
    return 500.0 + rows * each_row * 16 / width / min(plan_workers() or 1, programs)


def _supports(row: Ordered, node: ops.NodeSpec, target: ops.Target, shared: bool) -> str | None:
    dim = node.inputs[0].bounds[axis_of(row.name, node.inputs[0], node.attrs)]
    if shared and dim < LEAST:
        return f"wanted rows of {LEAST} elements or more"
    return supports(row, node, target, lanes=8)


def partitions(row: Ordered) -> tuple[ops.KernelVariant, ...]:
    """Splits rows as quicksort does."""
    return tuple(
        ops.KernelVariant(
            name,
            frozenset({"simd"}),
            partial(build, row, shared=shared),
            partial(_supports, row, shared=shared),
            partial(cost, row, shared=shared),
        )
        for name, shared in (("partition", False), ("buckets", True))
    )
