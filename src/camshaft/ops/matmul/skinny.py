"""matmul of few rows, or of one column: reads the long operand once and in order, which bounds it.

b as [k, n] is read a few rows at a time over many columns, whose sums stay in the L1 cache: narrow panels in pieces one row apart
took twice as long. Rows of b as [n, k] are read in concurrent streams, because hardware prefetches only within a 4 KiB page
(docs/performance/quantized_products.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from camshaft.dtypes import f32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.matmul.shapes import SIZES, Matrices, Sizes, only_floats, sizes_of
from camshaft.ops.spec import bound

STREAMS, VECTORS = 4, 2  # VECTORS independent sums: one chain of multiply-adds would limit f16 to 29 GB/s
STREAM_ROWS = 8  # consecutive rows of b that a program takes from each stream
MOST_ROWS = 4
# Rows of b at a time; 4 read 4096 x 4096 a quarter slower, 16 too.
DEEP = 8
# Bytes of an f32 b from which the start of each row's next page is prefetched: 4096 x 4096 is 1.07 to 1.2 times as fast on one
# Zen 4 core, 1.00 to 1.15 on two, 16-bit ones 0.97 to 1.03. Prefetches of all lines are slower.
PAGED_NBYTES, PAGE_NBYTES = 4 << 20, 4096
# Columns of a program. More columns read b faster (1024 of 4096 are a fifth slower than all), but two programs are needed.
GROUPS, PROGRAMS = (64, 128, 256, 512, 1024, 2048, 4096), 2


@kernel
def row_by_streams(
    k: Tracer, a: Array, b: Array, out: Array, *extent: Value, streams: int, share: int, block: int, **sizes: Any
) -> None:
    # out[i, j] = sum_k a[i, k] b[j, k]: `block` rows j of b from each of `streams` parts, lanes along k
    m = Matrices(**sizes)
    index, first = k.program(0), k.program(2) * block
    a_row, b_row = m.a(index), m.b(index) * m.columns
    whole = isinstance(share, int) and streams * share == m.columns and share % block == 0
    for j in k.range(block):
        places = [first + j + stream * share for stream in range(streams)]
        rows = [b_row + (place if whole else k.minimum(place, m.columns - 1)) for place in places]
        sums = [k.accumulator("sum") for _ in rows]
        for c in k.lanes(m.depth):
            x = a[a_row, c]
            for row, total in zip(rows, sums, strict=True):
                total.set(k.fma(x, b[row, c], total.value))
        for place, total in zip(places, sums, strict=True):
            found = k.lanes_sum(total)
            if whole:
                out[index, place] = found
            else:
                with k.when((first + j < share) & (place < m.columns)):
                    out[index, place] = found


def streams_launch(s: Sizes, target: ops.Target, arrays: tuple[ops.Operand, ...], block: int) -> ops.Launch:
    """Returns the launch of one row by b as [n, k], with a program per `block` rows of b from each stream. `arrays`: a
    [matrices, k], b [matrices n, k] and the product."""
    streams = max(n for n in range(1, STREAMS + 1) if n == 1 or s.columns >= 2 * n * block)
    share = -(-s.columns // streams)
    is_wide = target.backend == "simd" and s.depth >= 4 * VECTORS * target.lanes
    return ops.Launch(
        row_by_streams,
        arrays,
        (ops.Cells(s.matrices), ops.Cells(s.rows), ops.Cells(share, block)),
        {"streams": streams, "share": share, "block": block, **s.constants()},
        s.extents,
        lanes=VECTORS * target.lanes if is_wide else None,
        sizes=("share", *SIZES),
    )


@kernel
def stream_rows(
    k: Tracer, a: Array, b: Array, out: Array, *, group: int, deep: int, by_pages: bool, **sizes: Any
) -> None:
    # out[i, j] = sum_k a[i, k] b[k, j]: all rows i, `group` columns, `deep` rows of b at a time; the sums are in out, or in
    # scratch if out has a shorter dtype. `by_pages`: whether the next pages of b are prefetched
    m = Matrices(**sizes)
    index, first = k.program(0), k.program(1) * group
    last = k.minimum(first + group, m.columns)
    a_row, b_row = m.a(index) * m.rows, m.b(index) * m.depth
    sums = None if out.dtype == f32 or m.depth <= deep else k.scratch(f32, m.rows, group)
    last_start = (m.depth - 1) // deep * deep
    between = last_start if sums is not None or last_start + deep > m.depth else m.depth

    def add(start: Value | int, n: int, fresh: bool, final: bool) -> None:
        factors = [[a[a_row + i, start + e] for e in range(n)] for i in range(m.rows)]
        page = PAGE_NBYTES // b.dtype.nbytes
        for begin in k.range(first, last, page) if by_pages else (first,):
            stop = last
            if by_pages:
                fetch_next_pages(k, b, b_row + start, n, first, begin, last, deep)
                stop = begin + page if m.columns % page == group % page == 0 else k.minimum(begin + page, last)
            add_columns(start, factors, begin, stop, fresh, final)

    def add_columns(
        start: Value | int, factors: list[list[Value]], begin: Value, stop: Value, fresh: bool, final: bool
    ) -> None:
        for c in k.lanes(begin, stop):
            weights = [b[b_row + start + e, c] for e in range(len(factors[0]))]
            for i, line in enumerate(factors):
                into, at = (out, (index * m.rows + i, c)) if sums is None else (sums, (i, c - first))
                total = k.const(0.0, f32) if fresh else into[at]
                for x, w in zip(line, weights, strict=True):
                    total = k.fma(x, w, total)
                if final:
                    out[index * m.rows + i, c] = total
                else:
                    into[at] = total

    add(0, min(deep, m.depth), True, m.depth <= deep)
    for d in k.range(deep, between, deep):
        add(d, deep, False, False)
    if deep <= between < m.depth:
        add(between, m.depth - between, False, True)


def fetch_next_pages(
    k: Tracer, b: Array, row: Value | int, n: int, first: Value, begin: Value, last: Value, deep: int
) -> None:
    """Prefetches the start of the next page of each of n rows, of which columns from `begin` on are read next; after the
    last page to `last`, of the rows that follow, from column `first` on."""
    page, columns = PAGE_NBYTES // b.dtype.nbytes, b.shape[1]
    is_last = begin + page >= last
    for e in range(n):
        here, below = (row + e) * columns + begin, (row + (e + deep)) * columns + first
        k.prefetch(b, 0, k.select(is_last, below, here // page * page + page))


def _swapped(s: Sizes) -> Sizes:
    """Returns the sizes with a as the long operand [n, k] and b, a column, as the only row."""
    return replace(
        s, rows=1, columns=bound(s.rows), transposed=True, a_steps=s.b_steps, b_steps=s.a_steps,
        a_matrices=s.b_matrices, b_matrices=s.a_matrices,
    )  # fmt: skip


def _few_only(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None for a few rows and b as [k, n], or for one column."""
    s = sizes_of(node)
    if s.extents:
        return "the rows are an Extent"
    if s.columns == 1:
        return only_floats(node)
    if s.transposed:
        return "b as [n, k] of several rows"
    if bound(s.rows) > MOST_ROWS:
        return f"at most {MOST_ROWS} rows, or one column; got {bound(s.rows)} rows and {s.columns} columns"
    return only_floats(node)


def _few_defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the cost model's choice. `group`: columns of a program, or rows of the long operand; `deep`: rows of b per step."""
    s = sizes_of(node)
    group = max((n for n in GROUPS if n * PROGRAMS <= s.columns), default=GROUPS[0])
    return {"group": group, "deep": DEEP}


def _build_few(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    s = sizes_of(node)
    if s.columns == 1:
        return _one_column(_swapped(s), target)
    grid = (ops.Cells(s.matrices), ops.Cells(s.columns, values["group"]))
    b = node.inputs[1]
    by_pages = target.backend == "simd" and b.dtype == f32 and b.nbytes >= PAGED_NBYTES
    constants = {**values, "by_pages": by_pages, **s.constants()}
    return ops.Build((ops.Launch(stream_rows, s.operands, grid, constants),))


def _one_column(s: Sizes, target: ops.Target) -> ops.Build:
    arrays = (
        ops.read(1, shape=(s.a_matrices, s.depth)),
        ops.read(0, shape=(s.b_matrices * s.columns, s.depth)),
        ops.write(0, shape=(s.matrices, s.columns)),
    )
    return ops.Build((streams_launch(s, target, arrays, STREAM_ROWS),))


def _few_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on Zen 4: the long operand at 30 bytes per nanosecond, 2 multiply-adds per lane and nanosecond in caches."""
    s = sizes_of(node)
    return max(sum(spec.nbytes for spec in node.inputs) / 30, s.multiply_adds / (2 * target.lanes)) + 50.0


_TUNABLES = ops.Tunables({"group": GROUPS, "deep": (1, 2, 4, 8, 16)}, _few_defaults, _build_few)
SKINNY = ops.KernelVariant("skinny", frozenset({"simd", "c"}), _TUNABLES.build_default, _few_only, _few_cost, _TUNABLES)
