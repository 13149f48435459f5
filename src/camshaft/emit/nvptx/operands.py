"""Operands of NVIDIA's matrix units: pairs of 16-bit floats, each in an i32, from workgroup memory or the device's.

With g = lane / 4 and t = lane % 4 of a warp, a thread has of the left matrix (16 x 16) the pairs (g, 2t), (g + 8, 2t),
(g, 2t + 8), (g + 8, 2t + 8), and of the right matrix (16 x 8), in column g, the pairs of rows 2t and 2t + 8 (PTX ISA, "Matrix
fragments for mma.m16n8k16"). Where the rows of a matrix lie in workgroup memory: swizzle.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from camshaft.emit.llvm import index
from camshaft.emit.llvm.memory import pointer
from camshaft.emit.llvm.values import Rep, integer
from camshaft.emit.nvptx.simt import WARP, SimtContext
from camshaft.emit.nvptx.swizzle import swizzled_column
from camshaft.lang import ir

ROWS, COLUMNS, DEPTH = 16, 8, 16


def sum_of(ctx: SimtContext, a: Rep, *more: Rep | int) -> Rep:
    """The sum of integers."""
    for b in more:
        a = index.plus(ctx, a, b if isinstance(b, Rep) else integer(b))
    return a


@dataclass(frozen=True)
class InWarp:
    """A thread's position in its warp: number, number / 4, and 2 (number % 4)."""

    number: str
    group: Rep
    pair: Rep


def in_warp(ctx: SimtContext) -> InWarp:
    """This thread's position in its warp."""
    number = ctx.line(f"and i64 %lane, {WARP - 1}")
    group = Rep(ctx.line(f"lshr i64 {number}, 2"))
    return InWarp(number, group, Rep(ctx.line(f"shl i64 {ctx.line(f'and i64 {number}, 3')}, 1"), multiple=2))


@dataclass(frozen=True)
class Operand:
    """A matrix of a product, and the thread's position in its pieces.

    It starts at (row, column) of the last two dimensions of an array; `before`: the elements before these two.
    """

    array: ir.Array
    before: Rep
    row: Rep
    column: Rep
    thread: InWarp

    @property
    def stride(self) -> int:
        return self.array.strides[-2]

    def starts_at_multiples_of(self, n: int) -> bool:
        """Whether each row of the matrix starts at a multiple of n elements."""
        return all(at % n == 0 for at in (self.before.multiple, self.column.multiple, self.stride))

    @property
    def in_eights(self) -> bool:
        """Whether rows of 8 are in workgroup memory at multiples of 16 bytes, as loads of whole matrices require."""
        return self.array.scratch and self.starts_at_multiples_of(8)


def operand(ctx: SimtContext, array: ir.Array, at: tuple[ir.Value, ...]) -> Operand:
    """The matrix that starts at an element."""
    before = integer(0)
    for value, stride in zip(at[:-2], array.strides, strict=False):
        before = index.plus(ctx, before, index.times(ctx, ctx.reps[value], stride))
    row, column = (ctx.reps[value] for value in at[-2:])
    return Operand(array, before, row, column, in_warp(ctx))


def left(ctx: SimtContext, x: Operand, row: Rep, p: Rep) -> list[str]:
    """Four pairs in rows `row`.. and columns p.. ."""
    if x.in_eights:
        return _matrices(ctx, x, row, p, False, down_first=True)
    positions = [(sum_of(ctx, row, r), sum_of(ctx, p, c)) for c in (0, 8) for r in (0, 8)]
    return [_words(ctx, x, sum_of(ctx, r, x.thread.group), sum_of(ctx, c, x.thread.pair)) for r, c in positions]


def right(ctx: SimtContext, x: Operand, column: Rep, count: int, p: Rep, transposed: bool) -> list[list[str]]:
    """Two pairs along p.. for each of `count` pieces from `column` on. `transposed`: the array's rows are the product's columns.

    One load brings the matrices of two pieces, those of the last piece of an odd number twice.
    """
    if not x.in_eights:
        starts = [sum_of(ctx, column, c * COLUMNS) for c in range(count)]
        return [_right_words(ctx, x, start, p, transposed) for start in starts]
    found: list[list[str]] = []
    for c in range(0, count, 2):
        start = sum_of(ctx, column, min(c, max(count - 2, 0)) * COLUMNS)
        at = (start, p) if transposed else (p, start)
        words = _matrices(ctx, x, *at, not transposed, down_first=not transposed, single=count == 1)
        found += [words[:2], words[2:]] if count - c > 1 else [words[-2:]]
    return found


def _right_words(ctx: SimtContext, x: Operand, column: Rep, p: Rep, transposed: bool) -> list[str]:
    """Two pairs along p.. in columns `column`.. from any memory."""
    steps = [sum_of(ctx, p, n, x.thread.pair) for n in (0, 8)]
    at = sum_of(ctx, column, x.thread.group)
    if transposed:
        return [_words(ctx, x, at, step) for step in steps]
    return [_joined(ctx, x, *(_element(ctx, x, sum_of(ctx, step, n), at) for n in (0, 1))) for step in steps]


def _element(ctx: SimtContext, x: Operand, row: Rep, column: Rep) -> Rep:
    """The number of an element of the array."""
    row, column = sum_of(ctx, x.row, row), sum_of(ctx, x.column, column)
    return sum_of(ctx, x.before, index.times(ctx, row, x.stride), column)


def _words(ctx: SimtContext, x: Operand, row: Rep, column: Rep) -> str:
    """Two adjacent elements of a row: one load if they are known to be an aligned word."""
    at = _element(ctx, x, row, column)
    if x.starts_at_multiples_of(2):
        return ctx.line(f"load i32, ptr {pointer(ctx, x.array, at.name)}, align 4")
    return _joined(ctx, x, at, sum_of(ctx, at, 1))


def _joined(ctx: SimtContext, x: Operand, first: Rep, second: Rep) -> str:
    low, high = (ctx.line(f"load i16, ptr {pointer(ctx, x.array, at.name)}, align 2") for at in (first, second))
    upper = ctx.line(f"shl i32 {ctx.line(f'zext i16 {high} to i32')}, 16")
    return ctx.line(f"or i32 {upper}, {ctx.line(f'zext i16 {low} to i32')}")


def _matrices(
    ctx: SimtContext, x: Operand, row: Rep, column: Rep, across: bool, down_first: bool, single: bool = False
) -> list[str]:
    """Load four matrices of 8 x 8, or with `single` two; thread n gives the address of row n % 8 of matrix n / 8.

    The second matrix is below the first with `down_first`, else to the right of it; the next two are on the other side of these.
    """
    row_in, matrix = (Rep(ctx.line(f"{op} i64 {x.thread.number}, {n}")) for op, n in (("and", 7), ("lshr", 3)))
    first, second = (Rep(ctx.line(f"and i64 {ctx.line(f'lshr i64 {matrix.name}, {n}')}, 1")) for n in (0, 1))
    second = integer(0) if single else second
    down, aside = (first, second) if down_first else (second, first)
    rows = sum_of(ctx, x.row, row, index.times(ctx, down, 8), row_in)
    columns = swizzled_column(ctx, x.array, row_in, sum_of(ctx, x.column, column, index.times(ctx, aside, 8)))
    at = sum_of(ctx, x.before, index.times(ctx, rows, x.stride), columns)
    return ctx.machine.matrices(ctx, pointer(ctx, x.array, at.name), 2 if single else 4, across)
