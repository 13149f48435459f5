"""Asynchronous copies to workgroup memory in LLVM IR.

The hardware copies chunks of 16, 8 or 4 bytes and fills missing elements with zeros. If the addresses are not known to be
multiples of 4 bytes, the copy is synchronous, element by element.
"""

from __future__ import annotations

from dataclasses import dataclass

from camshaft.emit.llvm import index
from camshaft.emit.llvm.control import counted_loop
from camshaft.emit.llvm.memory import pointer
from camshaft.emit.llvm.values import Rep, integer, memory_dtype, scalar_type
from camshaft.emit.nvptx.simt import SimtContext, guarded
from camshaft.emit.nvptx.swizzle import swizzled_column
from camshaft.lang import tile_ir

CHUNKS = (16, 8, 4)
# Chunks of a thread that are written one after the other; more become a loop.
MOST_UNROLLED = 16


def copy(ctx: SimtContext, item: tile_ir.AsyncCopy) -> None:
    """Copy: each thread takes every `threads`-th chunk of the destination, in its own order if it is swizzled."""
    columns = item.destination.shape[-1]
    rows = item.destination.shape[0] if len(item.destination.shape) == 2 else 1
    base = index.linear(ctx, item.source, item.indices)
    nbytes = _chunk_nbytes(item, base, rows, columns)
    each = nbytes // memory_dtype(item.source.dtype).nbytes if nbytes else 1
    chunks = _Chunks(ctx, item, base, nbytes, each)
    in_row = columns // each
    turns, left = divmod(rows * in_row, ctx.threads)
    if ctx.threads % in_row == 0 and not left and turns <= MOST_UNROLLED:
        # a thread stays in its column, so that rows differ by a constant
        first, column = chunks.place("%lane", in_row)
        for turn in range(turns):
            chunks.start(index.plus(ctx, first, integer(turn * (ctx.threads // in_row))), column)
    else:
        count = str(rows * in_row)
        counted_loop(ctx, "%lane", count, ctx.threads, lambda number: chunks.start(*chunks.place(number, in_row)))


@dataclass(frozen=True)
class _Chunks:
    """Chunks of a copy: of `each` elements and `nbytes` bytes, or elements that are copied at once (`nbytes` 0)."""

    ctx: SimtContext
    item: tile_ir.AsyncCopy
    base: Rep
    nbytes: int
    each: int

    def place(self, number: str, in_row: int) -> tuple[Rep, Rep]:
        """The row and column of a chunk's first element."""
        row, rest = (self.ctx.line(f"{op} i64 {number}, {in_row}") for op in ("udiv", "urem"))
        return Rep(row), index.times(self.ctx, Rep(rest), self.each)

    def start(self, row: Rep, column: Rep) -> None:
        """Start to copy the chunk at a row and column."""
        ctx, item, to = self.ctx, self.item, self.item.destination
        has_rows = len(to.shape) == 2
        offset = index.times(ctx, row, item.source.strides[-2]) if has_rows else integer(0)
        offset = index.plus(ctx, index.plus(ctx, self.base, column), offset)
        source = pointer(ctx, item.source, offset.name, inbounds=False)
        kept = index.plus(ctx, index.times(ctx, row, to.shape[-1]), swizzled_column(ctx, to, row, column))
        present = _present_elements(ctx, item, row.name, column.name, self.each)
        start = _start_chunk if self.nbytes else _copy_element
        start(ctx, item, source, pointer(ctx, to, kept.name), present, self.each)


def wait(ctx: SimtContext, item: tile_ir.AsyncWait) -> None:
    """Wait for this thread's copies, then for all threads."""
    ctx.machine.wait_for_copies(ctx, item.ahead)
    ctx.machine.wait_for_all(ctx)


def _chunk_nbytes(item: tile_ir.AsyncCopy, base: Rep, rows: int, columns: int) -> int:
    """The largest chunk that crosses no row's end and is aligned on both sides; 0 if there is none."""
    size = memory_dtype(item.source.dtype).nbytes
    counts = [base.multiple, columns, *([item.source.strides[-2]] if rows > 1 else [])]
    if item.source.scratch:  # the hardware copies from the device's memory only
        return 0
    return next((n for n in CHUNKS if n >= size and all(count * size % n == 0 for count in counts)), 0)


def _present_elements(ctx: SimtContext, item: tile_ir.AsyncCopy, row: str, column: str, each: int) -> str:
    """The number of elements of a chunk that are within the limits (i64, 0 to `each`)."""
    present = str(each)
    if item.columns is not None:
        left = ctx.line(f"sub nsw i64 {ctx.reps[item.columns].name}, {column}")
        for name, bound in (("smin", each), ("smax", 0)):
            left = ctx.call(f"llvm.{name}.i64", "i64", ("i64", left), ("i64", str(bound)))
        present = left
    if item.rows is None:
        return present
    inside = ctx.line(f"icmp slt i64 {row}, {ctx.reps[item.rows].name}")
    return ctx.line(f"select i1 {inside}, i64 {present}, i64 0")


def _start_chunk(ctx: SimtContext, item: tile_ir.AsyncCopy, source: str, to: str, present: str, each: int) -> None:
    size = memory_dtype(item.source.dtype).nbytes
    nbytes = ctx.line(f"trunc i64 {ctx.line(f'mul nuw nsw i64 {present}, {size}')} to i32")
    ctx.machine.begin_copy(ctx, to, source, each * size, nbytes)


def _copy_element(ctx: SimtContext, item: tile_ir.AsyncCopy, source: str, to: str, present: str, each: int) -> None:
    dtype = memory_dtype(item.source.dtype)
    typ = scalar_type(dtype)
    slot = ctx.slot("element", typ)
    ctx.write(f"store {typ} zeroinitializer, ptr {slot}")

    def read() -> None:
        ctx.write(f"store {typ} {ctx.line(f'load {typ}, ptr {source}, align {dtype.nbytes}')}, ptr {slot}")

    guarded(ctx, [ctx.line(f"icmp sgt i64 {present}, 0")], read)
    ctx.write(f"store {typ} {ctx.line(f'load {typ}, ptr {slot}')}, ptr {to}, align {dtype.nbytes}")
