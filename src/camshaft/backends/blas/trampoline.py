"""Machine code with a kernel's entry ABI that calls cblas_sgemm on slices of a product. Run by workers as any kernel is.

The text holds no address and no size: they are int64 words that the argument block points to, so one object serves every
shape and every process, and is cached as a kernel's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

_ROW_MAJOR, _NO_TRANSPOSE, _TRANSPOSE = 101, 111, 112
_HEADER_WORDS = 8
ROWS, COLUMNS, DEPTH, TRANSPOSE, ROWS_PER, COLUMNS_PER, B_STRIDE, FUNCTION = range(_HEADER_WORDS)


@dataclass(frozen=True)
class Slices:
    """The sizes of one product, and how many rows and columns one program computes."""

    rows: int
    columns: int
    depth: int
    transpose_b: bool
    rows_per: int
    columns_per: int

    def words(self, sgemm: int, offsets: Sequence[tuple[int, int]] | np.ndarray) -> np.ndarray:
        """The words: sizes, the function's address, then per product the first element in a and in b."""
        rows, columns, depth, transpose, rows_per, columns_per = astuple(self)
        flag = _TRANSPOSE if transpose else _NO_TRANSPOSE
        stride = depth if transpose else columns
        header = [rows, columns, depth, flag, rows_per, columns_per, stride, sgemm]
        return np.concatenate([np.array(header, np.int64), np.asarray(offsets, np.int64).reshape(-1)])


def llvm_ir(symbol: str, *, extent: bool) -> str:
    """Arguments: a, b, out, words, then with `extent` the address of the number of active rows. Programs are numbered over
    products, blocks of rows and blocks of columns, the last fastest."""
    names = ["a", "b", "out", "words", *(["active"] if extent else [])]
    unpack = [
        f"  %{n}.at = getelementptr i64, ptr %args, i64 {i}\n  %{n} = load ptr, ptr %{n}.at"
        for i, n in enumerate(names)
    ]
    header = {"rows.bound": ROWS, "n": COLUMNS, "k": DEPTH, "flag": TRANSPOSE, "mc": ROWS_PER, "nc": COLUMNS_PER}
    header |= {"ldb": B_STRIDE, "function": FUNCTION}
    loads = [
        f"  %{n}.w = getelementptr i64, ptr %words, i64 {i}\n  %{n} = load {'ptr' if n == 'function' else 'i64'}, ptr %{n}.w"
        for n, i in header.items()
    ]
    active = "load i64, ptr %active" if extent else "add i64 %rows.bound, 0"
    return f"""
declare i64 @llvm.smin.i64(i64, i64)
define void @{symbol}(ptr %args, i64 %first, i64 %last) {{
entry:
{chr(10).join(unpack)}
{chr(10).join(loads)}
  %m = {active}
  %m.up = add i64 %m, %mc
  %m.up1 = sub i64 %m.up, 1
  %row.blocks = udiv i64 %m.up1, %mc
  %n.up = add i64 %n, %nc
  %n.up1 = sub i64 %n.up, 1
  %column.blocks = udiv i64 %n.up1, %nc
  %k32 = trunc i64 %k to i32
  %n32 = trunc i64 %n to i32
  %ldb32 = trunc i64 %ldb to i32
  %flag32 = trunc i64 %flag to i32
  %turned = icmp eq i64 %flag, {_TRANSPOSE}
  %any = icmp slt i64 %first, %last
  br i1 %any, label %loop, label %done
loop:
  %p = phi i64 [ %first, %entry ], [ %next, %loop ]
  %column.block = urem i64 %p, %column.blocks
  %rest = udiv i64 %p, %column.blocks
  %row.block = urem i64 %rest, %row.blocks
  %product = udiv i64 %rest, %row.blocks
  %row = mul i64 %row.block, %mc
  %rows.left = sub i64 %m, %row
  %rows = call i64 @llvm.smin.i64(i64 %rows.left, i64 %mc)
  %column = mul i64 %column.block, %nc
  %columns.left = sub i64 %n, %column
  %columns = call i64 @llvm.smin.i64(i64 %columns.left, i64 %nc)
  %pair = mul i64 %product, 2
  %pair.at = add i64 %pair, {_HEADER_WORDS}
  %a.first.at = getelementptr i64, ptr %words, i64 %pair.at
  %b.first.at = getelementptr i64, ptr %a.first.at, i64 1
  %a.first = load i64, ptr %a.first.at
  %b.first = load i64, ptr %b.first.at
  %a.row = mul i64 %row, %k
  %a.start = add i64 %a.first, %a.row
  %a.ptr = getelementptr float, ptr %a, i64 %a.start
  %b.step = select i1 %turned, i64 %k, i64 1
  %b.column = mul i64 %column, %b.step
  %b.start = add i64 %b.first, %b.column
  %b.ptr = getelementptr float, ptr %b, i64 %b.start
  %out.product = mul i64 %product, %rows.bound
  %out.row = add i64 %out.product, %row
  %out.row.start = mul i64 %out.row, %n
  %out.start = add i64 %out.row.start, %column
  %out.ptr = getelementptr float, ptr %out, i64 %out.start
  %rows32 = trunc i64 %rows to i32
  %columns32 = trunc i64 %columns to i32
  call void %function(i32 {_ROW_MAJOR}, i32 {_NO_TRANSPOSE}, i32 %flag32, i32 %rows32, i32 %columns32, i32 %k32, float 1.0,
    ptr %a.ptr, i32 %k32, ptr %b.ptr, i32 %ldb32, float 0.0, ptr %out.ptr, i32 %n32)
  %next = add i64 %p, 1
  %more = icmp slt i64 %next, %last
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
