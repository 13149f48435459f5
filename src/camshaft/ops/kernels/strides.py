"""Iteration over a result whose operands have other shapes or strides, such as NumPy's broadcasting.

Shapes are known when a kernel is traced, so sizes and strides are its constants. Axes through which all operands step alike are
joined; what is left is [outer, middle.., columns]. A program takes a block of columns at one index of the other axes, where an
operand is contiguous, one element, or strided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from camshaft.extent import Extent
from camshaft.lang import Array, Constant, Tracer, ir
from camshaft.ops import op as ops
from camshaft.ops.kernels import blocks
from camshaft.ops.spec import Dim, TensorSpec, bound

Strides = tuple[int, ...]
# Constants of `ProgramBlock` that may be run-time scalars.
SIZES = ("columns", "block", "sizes", "strides")


def strides_of(spec: TensorSpec, shape: Sequence[Dim]) -> Strides:
    """An operand's stride in elements along each axis of the result: 0 where it repeats."""
    strides, stride = [0] * len(shape), 1
    for back, size in enumerate(reversed(spec.shape), 1):
        strides[-back] = stride if size != 1 else 0
        stride *= bound(size)
    return tuple(strides)


@dataclass(frozen=True)
class Iteration:
    """`strides`: for each operand along (outer, *middle, columns). `columns` is an Extent where everything is one flat axis of
    active elements; else `outer` may be one."""

    outer: Dim
    middle: tuple[int, ...]
    columns: Dim
    strides: tuple[Strides, ...]

    @property
    def block(self) -> int:
        """Columns of a program."""
        return blocks.BLOCK if isinstance(self.columns, Extent) else blocks.even_block(self.columns)

    @property
    def grid(self) -> tuple[ops.Cells, ops.Cells, ops.Cells]:
        """A program per outer index, middle index and block of columns."""
        return ops.Cells(self.outer), ops.Cells(prod(self.middle)), ops.Cells(self.columns, per=self.block)

    @property
    def extents(self) -> tuple[Extent, ...]:
        """The run-time scalars that a kernel takes after its arrays: the number of columns, if it is an Extent."""
        return (self.columns,) if isinstance(self.columns, Extent) else ()

    @property
    def constants(self) -> dict[str, Constant]:
        """The constants of `ProgramBlock`; columns 0 where they are an Extent."""
        return {
            "columns": 0 if isinstance(self.columns, Extent) else self.columns,
            "block": self.block,
            "sizes": self.middle,
            "strides": self.strides,
        }


def iteration(shape: Sequence[Dim], strides: Sequence[Strides]) -> Iteration:
    """The iteration over a result of this shape, with axes joined where every operand's strides allow it."""
    axes: list[tuple[Dim, Strides]] = []
    for size, stride in zip(shape, zip(*strides, strict=True), strict=True):
        if size == 1:
            continue
        before = axes[-1] if axes else None
        if before and isinstance(before[0], int) and isinstance(size, int) and _joins(before[1], size, stride):
            axes[-1] = before[0] * size, stride
        else:
            axes.append((size, stride))
    none = (0,) * len(strides)
    outer: tuple[Dim, Strides] = (1, none)
    if len(axes) > 1 and isinstance(axes[0][0], Extent):
        outer, axes = axes[0], axes[1:]
    columns = axes.pop() if axes else (1, none)
    order = [outer[1], *(s for _, s in axes), columns[1]]
    middle = tuple(bound(size) for size, _ in axes)
    return Iteration(outer[0], middle, columns[0], tuple(zip(*order, strict=True)))


def _joins(before: Strides, size: int, stride: Strides) -> bool:
    return all(a == size * b for a, b in zip(before, stride, strict=True))


class ProgramBlock:
    """Inside a kernel: this program's columns, and loads and stores of the operands there. The grid is `Iteration.grid`."""

    def __init__(
        self,
        k: Tracer,
        columns: int,
        active: Sequence[ir.Value],
        block: int,
        sizes: Strides,
        strides: tuple[Strides, ...],
    ) -> None:
        """`active`: the run-time scalars after the arrays, of which the first is the number of columns where `columns` is 0."""
        self._k, self._strides = k, strides
        self._index = [k.program(0), *split_index(k.program(1), sizes)]
        first = k.program(2) * block
        count = active[0] if is_zero(columns) else columns
        self.start, self.stop = first, k.minimum(first + block, count)
        self._bases = [self._base(s[:-1]) for s in strides]

    def _base(self, strides: Strides) -> ir.Operand:
        total: ir.Operand = 0
        for index, stride in zip(self._index, strides, strict=True):
            if not is_zero(stride):
                total = total + index * stride
        return total

    def load(self, operand: int, array: Array, column: ir.Value, first: ir.Operand = 0) -> ir.Value:
        """The operand's element for a column of the block, where the operand begins at element `first` of its array."""
        base, stride = first + self._bases[operand], self._strides[operand][-1]
        if is_zero(stride):
            return array[base]
        contiguous = isinstance(stride, int) and stride == 1
        return array[column + base] if contiguous else self._k.gather(array, column * stride + base)

    def place(self, operand: int, column: ir.Value) -> ir.Value:
        """The operand's index of a column of the block, for a gather beside it."""
        return column * self._strides[operand][-1] + self._bases[operand]

    def store(self, operand: int, array: Array, column: ir.Value, value: ir.Operand, streams: bool = False) -> None:
        """Stores the result's element of a column; a result's columns are contiguous."""
        self._k.store(array, (column + self._bases[operand],), value, streamed=streams)

    def scatter(self, operand: int, array: Array, column: ir.Value, value: ir.Operand, first: int) -> None:
        """Stores as `store` does, to the element `first` after each of a result whose columns are apart."""
        stride = self._strides[operand][-1] or 1
        self._k.scatter(array, value, column * stride + self._bases[operand] + first)


def is_zero(number: ir.Operand) -> bool:
    """Whether a constant is 0; a run-time scalar is not."""
    return isinstance(number, int) and number == 0


def split_index(index: ir.Value, sizes: Sequence[ir.Operand]) -> list[ir.Value]:
    """The row-major index into `sizes` as one index per axis."""
    parts: list[ir.Value] = []
    for i, size in enumerate(sizes):
        inner = prod(sizes[i + 1 :])
        part = index // inner if i + 1 < len(sizes) else index
        parts.append(part % size if i else part)
    return parts
