"""Native code that calls cblas_sgemm on slices of a product and has the same entry ABI as a kernel.

The LLVM IR contains no address or size: it reads them as int64 words through the argument block. So one cached object serves
every shape and process.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from camshaft.emit.llvm.builder import F32, I32, I64, PTR, VOID, Builder, Module, Value

_ROW_MAJOR, _NO_TRANSPOSE, _TRANSPOSE = 101, 111, 112
NAME = "cblas_sgemm"  # of the launch, and so of its kernel
_HEADER_WORDS = 8
ROWS, COLUMNS, DEPTH, TRANSPOSE, ROWS_PER, COLUMNS_PER, B_STRIDE, FUNCTION = range(_HEADER_WORDS)


@dataclass(frozen=True)
class Slices:
    """The sizes of a product, and the rows and columns that one program computes."""

    rows: int
    columns: int
    depth: int
    transpose_b: bool
    rows_per: int
    columns_per: int

    def words(self, sgemm: int, offsets: Sequence[tuple[int, int]] | np.ndarray) -> np.ndarray:
        """Returns the words: the sizes, the function's address, then the first elements of each product in a and in b."""
        rows, columns, depth, transpose, rows_per, columns_per = astuple(self)
        flag = _TRANSPOSE if transpose else _NO_TRANSPOSE
        stride = depth if transpose else columns
        header = [rows, columns, depth, flag, rows_per, columns_per, stride, sgemm]
        return np.concatenate([np.array(header, np.int64), np.asarray(offsets, np.int64).reshape(-1)])


def llvm_ir(symbol: str, *, extent: bool) -> str:
    """Returns the LLVM IR. Arguments: a, b, out, words, and with `extent` the address of the number of active rows. Programs
    are numbered over products, blocks of rows and blocks of columns, the last fastest."""
    module = Module()
    module.define(functools.partial(_products, extent=extent), VOID, PTR, I64, I64, name=symbol)
    return module.text()


def _products(b: Builder, args: Value, first: Value, last: Value, *, extent: bool) -> None:
    left, right, out, words = (b.load_word(args, i, PTR) for i in range(4))
    bound, n, k, transpose, rows_per, columns_per, stride = (b.load_word(words, i) for i in range(FUNCTION))
    function = b.load_word(words, FUNCTION, PTR)
    m = b.load(I64, b.load_word(args, 4, PTR)) if extent else bound
    row_blocks, column_blocks = (m + rows_per - 1) // rows_per, (n + columns_per - 1) // columns_per
    step = b.select(b.eq(transpose, _TRANSPOSE), k, 1)

    def narrow(value: Value) -> Value:
        return b.cast("trunc", value, I32)

    with b.for_(first, last) as program:
        block = program // column_blocks
        row, column = block % row_blocks * rows_per, program % column_blocks * columns_per
        product = block // row_blocks
        rows, columns = b.smin(m - row, rows_per), b.smin(n - column, columns_per)
        offsets = b.element(words, product * 2 + _HEADER_WORDS)
        a = b.element(left, b.load(I64, offsets) + row * k, F32)
        w = b.element(right, b.load_word(offsets, 1) + column * step, F32)
        y = b.element(out, (product * bound + row) * n + column, F32)
        kinds = (b.const(I32, _ROW_MAJOR), b.const(I32, _NO_TRANSPOSE), narrow(transpose))
        sizes = (narrow(rows), narrow(columns), narrow(k))
        one, zero = b.const(F32, 1.0), b.const(F32, 0.0)
        b.call_at(function, VOID, *kinds, *sizes, one, a, narrow(k), w, narrow(stride), zero, y, narrow(n))
