"""Asynchronous copies to workgroup memory in LLVM IR, chunk by chunk.

The machine copies 16, 8 or 4 bytes at once and fills with zeros what is not there; a copy whose places are not known to be
multiples of 4 bytes goes element by element, at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.emit.llvm.values import Rep, memory_dtype, scalar_type
from camshaft.lang import ir

if TYPE_CHECKING:
    from camshaft.emit.nvptx.simt import SimtEmitter

CHUNKS = (16, 8, 4)


def copy(e: SimtEmitter, item: ir.AsyncCopy) -> None:
    """Each thread takes every lanes-th chunk of the destination."""
    columns = item.destination.shape[-1]
    rows = item.destination.shape[0] if len(item.destination.shape) == 2 else 1
    base = e.linear_index(item.source, tuple(e.reps[i] for i in item.indices))
    nbytes = _chunk_nbytes(item, base, rows, columns)
    each = nbytes // memory_dtype(item.source.dtype).nbytes if nbytes else 1
    in_row = columns // each

    def one(index: str) -> None:
        row = e.line(f"udiv i64 {index}, {in_row}")
        column = e.line(f"mul nuw nsw i64 {e.line(f'urem i64 {index}, {in_row}')}, {each}")
        stride = item.source.strides[-2] if rows > 1 else 0
        offset = e.line(f"add nsw i64 {e.line(f'mul nsw i64 {row}, {stride}')}, {column}")
        source = e.pointer(item.source, e.line(f"add nsw i64 {base.name}, {offset}"), inbounds=False)
        to = e.line(f"add nsw i64 {e.line(f'mul nsw i64 {row}, {columns}')}, {column}")
        there = _elements_there(e, item, row, column, each)
        (_begin if nbytes else _at_once)(e, item, source, e.pointer(item.destination, to), there, each)

    e.counted_loop("%lane", str(rows * in_row), e.simt.lanes, one)


def wait(e: SimtEmitter, item: ir.AsyncWait) -> None:
    """This thread's copies have ended, then all threads'."""
    e.wait_for_copies()
    e.wait_for_all()


def _chunk_nbytes(item: ir.AsyncCopy, base: Rep, rows: int, columns: int) -> int:
    """The largest chunk that never crosses a row's end and lies aligned on both sides; 0 where there is none."""
    size = memory_dtype(item.source.dtype).nbytes
    counts = [base.multiple, columns, *([item.source.strides[-2]] if rows > 1 else [])]
    if item.source.scratch:  # the machine copies from the device's memory
        return 0
    return next((n for n in CHUNKS if n >= size and all(count * size % n == 0 for count in counts)), 0)


def _elements_there(e: SimtEmitter, item: ir.AsyncCopy, row: str, column: str, each: int) -> str:
    """How many elements of a chunk are before the limits (i64, 0 to `each`)."""
    there = str(each)
    if item.columns is not None:
        left = e.line(f"sub nsw i64 {e.reps[item.columns].name}, {column}")
        for name, bound in (("smin", each), ("smax", 0)):
            e.declare(f"llvm.{name}.i64", f"declare i64 @llvm.{name}.i64(i64, i64)")
            left = e.line(f"call i64 @llvm.{name}.i64(i64 {left}, i64 {bound})")
        there = left
    if item.rows is None:
        return there
    inside = e.line(f"icmp slt i64 {row}, {e.reps[item.rows].name}")
    return e.line(f"select i1 {inside}, i64 {there}, i64 0")


def _begin(e: SimtEmitter, item: ir.AsyncCopy, source: str, to: str, there: str, each: int) -> None:
    size = memory_dtype(item.source.dtype).nbytes
    present = e.line(f"trunc i64 {e.line(f'mul nuw nsw i64 {there}, {size}')} to i32")
    e.begin_copy(to, source, each * size, present)


def _at_once(e: SimtEmitter, item: ir.AsyncCopy, source: str, to: str, there: str, each: int) -> None:
    dtype = memory_dtype(item.source.dtype)
    typ, slot = scalar_type(dtype), e.fresh("element")
    e.allocas.append(f"{slot} = alloca {typ}")
    e.write(f"store {typ} zeroinitializer, ptr {slot}")

    def read() -> None:
        e.write(f"store {typ} {e.line(f'load {typ}, ptr {source}, align {dtype.nbytes}')}, ptr {slot}")

    e.guarded([e.line(f"icmp sgt i64 {there}, 0")], read)
    e.write(f"store {typ} {e.line(f'load {typ}, ptr {slot}')}, ptr {to}, align {dtype.nbytes}")
