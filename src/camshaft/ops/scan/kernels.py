"""The kernels of scans: along rows, into columns, and in order for products.

Rows longer than a part are scanned by several programs, each from the totals of the parts before, which an earlier launch made.
"""

from __future__ import annotations

from camshaft.dtypes import DTYPES, i64
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.lang.tracing.tracer import Variable
from camshaft.ops.reduce.frame import combine, start_of
from camshaft.ops.scan.pair_extremes import PairExtreme
from camshaft.ops.scan.pair_sums import PairSum
from camshaft.ops.scan.pairs import PairScan
from camshaft.ops.scan.quads import QuadScan
from camshaft.ops.scan.row_scan import RowScan, stored, wide

STEPS, QUADS, PAIRS = "steps", "quads", "pairs"


def _row(k: Tracer, inner: int) -> ir.Value:
    return k.program(0) * inner + k.program(1)


def _scan(
    k: Tracer, form: str, arrays: tuple[Array, Array], row: ir.Value, carry: Variable, kind: str, reverse: bool,
    lanes: int, share: int, streams: bool = False,
) -> RowScan | QuadScan:  # fmt: skip
    """The scan of a row. `form`: QUADS or PAIRS of floats of 32 bits or less on CPUs, or else STEPS."""
    if form == QUADS:
        return QuadScan(k, *arrays, row, carry, reverse, lanes, streams)
    if form == PAIRS:
        return pair_scan(k, arrays, row, carry, kind, reverse, lanes, streams)
    return RowScan(k, *arrays, row, carry, kind, reverse, lanes, share, streams)


def pair_scan(
    k: Tracer, arrays: tuple[Array, Array], row: ir.Value, carry: Variable, kind: str, reverse: bool, lanes: int, streams: bool
) -> PairScan:  # fmt: skip
    """The scan of a row by pairs."""
    if kind == "sum":
        return PairSum(k, *arrays, row, carry, reverse, lanes, streams)
    return PairExtreme(k, *arrays, row, carry, reverse, lanes, streams, kind)


@kernel
def along_rows(
    k: Tracer,
    x: Array,
    out: Array,
    *,
    kind: str,
    dtype: str,
    reverse: bool,
    inner: int,
    dim: int,
    lanes: int,
    share: int,
    form: str,
    streams: bool,
) -> None:
    # out[r, c] = fold of x[r, i] over i <= c, or i >= c if reverse
    carry = k.var(start_of(kind, DTYPES[dtype]), DTYPES[dtype])
    _scan(k, form, (x, out), _row(k, inner), carry, kind, reverse, lanes, share, streams).part(0, k.number(dim, i64))


@kernel
def rows_at_once(
    k: Tracer, x: Array, out: Array, *, kind: str, dtype: str, reverse: bool, rows: int, dim: int, per: int, lanes: int,
    streams: bool,
) -> None:  # fmt: skip
    # as along_rows, of `per` rows by pairs, which follow each other in one row of x
    first, carry = k.program(0) * per, k.var(start_of(kind, DTYPES[dtype]), DTYPES[dtype])
    scan = pair_scan(k, (x, out), k.const(0, i64), carry, kind, reverse, lanes, streams)
    scan.rows(first, k.minimum(first + per, rows), dim)


@kernel
def part_by_part(
    k: Tracer, x: Array, out: Array, *, kind: str, dtype: str, reverse: bool, inner: int, dim: int, per: int, parts: int,
    lanes: int, share: int, form: str, streams: bool,
) -> None:  # fmt: skip
    # the bits of part_totals and parts_of_rows, where each row is read once by one program
    before, carry, total = (k.var(start_of(kind, DTYPES[dtype]), DTYPES[dtype]) for _ in range(3))
    scan = _scan(k, form, (x, out), _row(k, inner), carry, kind, reverse, lanes, share, streams)
    for j in k.range(parts):
        first = (parts - 1 - j if reverse else j) * k.number(per, i64)
        carry.set(before.value)
        total.set(start_of(kind, DTYPES[dtype]))
        scan.part(first, k.minimum(first + per, dim), total)
        before.set(combine(k, kind, before.value, total.value))


@kernel
def part_totals(
    k: Tracer, x: Array, totals: Array, *, kind: str, dtype: str, reverse: bool, inner: int, dim: int, per: int, lanes: int,
    share: int, form: str,
) -> None:  # fmt: skip
    # totals[r, p] = fold of the part's columns
    row, first = _row(k, inner), k.program(2) * per
    carry = k.var(start_of(kind, DTYPES[dtype]), DTYPES[dtype])
    scan = _scan(k, form, (x, totals), row, carry, kind, reverse, lanes, share)
    totals[row, k.program(2)] = scan.total(first, k.minimum(first + per, dim))


@kernel
def parts_of_rows(
    k: Tracer, x: Array, totals: Array, out: Array, *, kind: str, dtype: str, reverse: bool, inner: int, dim: int, per: int,
    parts: int, lanes: int, share: int, form: str, streams: bool,
) -> None:  # fmt: skip
    # as along_rows, from the totals of the parts before (after, if reverse), which are folded in order
    row, part = _row(k, inner), k.program(2)
    carry = k.var(start_of(kind, DTYPES[dtype]), DTYPES[dtype])
    for j in k.range(parts - 1 - part if reverse else part):
        carry.set(combine(k, kind, carry.value, totals[row, parts - 1 - j if reverse else j]))
    first = part * per
    scan = _scan(k, form, (x, out), row, carry, kind, reverse, lanes, share, streams)
    scan.part(first, k.minimum(first + per, dim))


@kernel
def in_order(k: Tracer, x: Array, out: Array, *, kind: str, dtype: str, reverse: bool, inner: int, dim: int) -> None:
    # as along_rows, one element after the other: a product of 16 may overflow where the running one is 0
    row, carry = _row(k, inner), k.var(start_of(kind, DTYPES[dtype]), DTYPES[dtype])
    for j in k.range(dim):
        c = dim - 1 - j if reverse else j
        carry.set(combine(k, kind, carry.value, wide(k, x[row, c], carry.ir.dtype, kind)))
        out[row, c] = stored(k, carry.value, out.dtype)


@kernel
def into_columns(
    k: Tracer, x: Array, out: Array, *, kind: str, dtype: str, reverse: bool, inner: int, dim: int, columns: int, block: int
) -> None:  # fmt: skip
    # out[r, d, c] = fold of x[r, i, c] over i <= d, or i >= d if reverse; each lane has its columns' totals in scratch
    row, first = _row(k, inner), k.program(2) * block
    stop, totals = k.minimum(first + block, columns), k.scratch(DTYPES[dtype], block)
    for c in k.lanes(first, stop):
        totals[c - first] = start_of(kind, DTYPES[dtype])
    for j in k.range(dim):
        d = dim - 1 - j if reverse else j
        for c in k.lanes(first, stop):
            total = combine(k, kind, totals[c - first], wide(k, x[row, d, c], DTYPES[dtype], kind))
            totals[c - first] = total
            out[row, d, c] = stored(k, total, out.dtype)
