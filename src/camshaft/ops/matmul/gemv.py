"""matmul of one row by b as [n, k], a GEMV: bound by reading b.

b is read in STREAMS concurrent streams, each in memory order. Hardware prefetches only within a 4 KiB page; the other streams
hide the misses at a stream's page ends. f16 rows of 576 from huge pages on one and two Zen 4 cores: 24 and 33 GB/s with one
stream, 30 and 38 with four. Eight streams or software prefetches are no faster.
"""

from __future__ import annotations

from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.matmul.lanes import Axes, matrix_of
from camshaft.ops.matmul.shapes import Sizes

STREAMS, VECTORS = 4, 2  # VECTORS independent sums: one chain of multiply-adds would limit f16 to 29 GB/s
ROWS = 8  # consecutive rows of b that a program takes from each stream


@kernel
def row_by_streams(
    k: Tracer, a: Array, b: Array, out: Array, *extent: Value, columns: int, depth: int, streams: int, share: int,
    block: int, batch: Axes, a_steps: Axes, b_steps: Axes,
) -> None:  # fmt: skip
    # out[i, j] = sum_k a[i, k] b[j, k]: `block` rows j of b from each of `streams` parts, lanes along k
    index, first = k.program(0), k.program(2) * block
    a_row, b_row = matrix_of(index, batch, a_steps), matrix_of(index, batch, b_steps) * columns
    is_ragged = streams * share != columns or share % block != 0
    for j in k.range(block):
        places = [first + j + stream * share for stream in range(streams)]
        rows = [b_row + (k.minimum(place, columns - 1) if is_ragged else place) for place in places]
        sums = [k.accumulator("sum") for _ in rows]
        for c in k.lanes(depth):
            x = a[a_row, c]
            for row, total in zip(rows, sums, strict=True):
                total.set(k.fma(x, b[row, c], total.value))
        for place, total in zip(places, sums, strict=True):
            found = k.lanes_sum(total)
            if is_ragged:
                with k.when((first + j < share) & (place < columns)):
                    out[index, place] = found
            else:
                out[index, place] = found


def launch(s: Sizes, target: ops.Target, arrays: tuple[ops.Operand, ...], block: int) -> ops.Launch:
    """Returns the launch: a program per `block` rows of b from each stream. `arrays`: a [matrices, k], b [matrices n, k] and
    the product."""
    streams = max(n for n in range(1, STREAMS + 1) if n == 1 or s.columns >= 2 * n * block)
    share = -(-s.columns // streams)
    sizes = {"columns": s.columns, "depth": s.depth, "streams": streams, "share": share, "block": block}
    is_wide = target.backend == "simd" and s.depth >= 4 * VECTORS * target.lanes
    return ops.Launch(
        row_by_streams,
        arrays,
        (ops.Cells(s.matrices), ops.Cells(s.rows), ops.Cells(share, block)),
        {**sizes, **s.constants()},
        s.extents,
        lanes=VECTORS * target.lanes if is_wide else None,
    )
