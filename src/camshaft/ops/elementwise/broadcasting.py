"""How operands of different shapes walk over one result, NumPy's broadcasting included.

Shapes are known when a kernel is traced, so a walk is constants: axes that all operands step through alike are joined, what is
left is [outer, middle.., columns]. A program takes up to a block of columns at one place of the other axes, so inside it an
operand is contiguous, one element, or at a constant stride.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from camshaft.extent import Extent
from camshaft.lang import ir
from camshaft.lang.kernel import Constant
from camshaft.lang.tracing.tracer import Array as KernelArray
from camshaft.lang.tracing.tracer import Tracer
from camshaft.ops import op as ops
from camshaft.ops.elementwise import frame as elementwise
from camshaft.ops.spec import Dim, TensorSpec, bound

Strides = tuple[int, ...]


def broadcast(op: str, specs: Sequence[TensorSpec]) -> tuple[Dim, ...]:
    """The shape that all specs broadcast to, axes matched from the last on. ShapeError if they do not, or where an axis but
    the result's first is an Extent."""
    rank = max(len(s.shape) for s in specs)
    result: list[Dim] = []
    for axis in range(-rank, 0):
        sizes = {s.shape[axis] for s in specs if len(s.shape) >= -axis} - {1}
        ops.expect(len(sizes) < 2, op, tuple(specs), "shapes that broadcast to one")
        result.append(sizes.pop() if sizes else 1)
    fits = not any(isinstance(d, Extent) for d in result[1:]) and 0 not in result
    ops.expect(fits, op, tuple(specs), "no empty axis, and an Extent only as the result's first axis")
    return tuple(result)


def steps_of(spec: TensorSpec, shape: Sequence[Dim]) -> Strides:
    """How many elements an operand goes on per axis of the result: 0 where it repeats."""
    steps, step = [0] * len(shape), 1
    for back, size in enumerate(reversed(spec.shape), 1):
        steps[-back] = step if size != 1 else 0
        step *= bound(size)
    return tuple(steps)


@dataclass(frozen=True)
class Walk:
    """`steps`: for each operand its strides along (outer, *middle, columns). `columns` is an Extent where all is one flat axis
    of active elements; else `outer` may be one."""

    outer: Dim
    middle: tuple[int, ...]
    columns: Dim
    steps: tuple[Strides, ...]

    @property
    def block(self) -> int:
        """Columns of a program."""
        return elementwise.BLOCK if isinstance(self.columns, Extent) else elementwise.even_block(self.columns)

    @property
    def grid(self) -> tuple[ops.Cells, ops.Cells, ops.Cells]:
        return ops.Cells(self.outer), ops.Cells(prod(self.middle)), ops.Cells(self.columns, per=self.block)

    @property
    def extents(self) -> tuple[Extent, ...]:
        """The run-time scalars that a kernel takes after its arrays: the number of columns, if it is one."""
        return (self.columns,) if isinstance(self.columns, Extent) else ()

    @property
    def constants(self) -> dict[str, Constant]:
        """What `Places` reads; columns 0 where they are a run-time scalar."""
        return {
            "columns": 0 if isinstance(self.columns, Extent) else self.columns,
            "block": self.block,
            "sizes": self.middle,
            "steps": self.steps,
        }


def walk(shape: Sequence[Dim], steps: Sequence[Strides]) -> Walk:
    """Joins the axes of the result that every operand goes through as through one."""
    axes: list[tuple[Dim, Strides]] = []
    for size, step in zip(shape, zip(*steps, strict=True), strict=True):
        if size == 1:
            continue
        before = axes[-1] if axes else None
        if before and isinstance(before[0], int) and isinstance(size, int) and _joins(before[1], size, step):
            axes[-1] = before[0] * size, step
        else:
            axes.append((size, step))
    none = (0,) * len(steps)
    outer: tuple[Dim, Strides] = (1, none)
    if len(axes) > 1 and isinstance(axes[0][0], Extent):
        outer, axes = axes[0], axes[1:]
    columns = axes.pop() if axes else (1, none)
    order = [outer[1], *(s for _, s in axes), columns[1]]
    middle = tuple(bound(size) for size, _ in axes)
    return Walk(outer[0], middle, columns[0], tuple(zip(*order, strict=True)))


def _joins(before: Strides, size: int, step: Strides) -> bool:
    return all(a == size * b for a, b in zip(before, step, strict=True))


class Places:
    """Inside a kernel: where each operand stands in this program's block of columns. Grid as of `Walk.grid`."""

    def __init__(
        self, k: Tracer, active: ir.Operand, block: int, sizes: tuple[int, ...], steps: tuple[Strides, ...]
    ) -> None:
        self._k, self._steps = k, steps
        self._index = [k.program(0), *split_index(k.program(1), sizes)]
        first = k.program(2) * block
        self.start, self.stop = first, k.minimum(first + block, active)
        self._bases = [self._base(s[:-1]) for s in steps]

    def _base(self, steps: Strides) -> ir.Operand:
        total: ir.Operand = 0
        for index, step in zip(self._index, steps, strict=True):
            if step:
                total = total + index * step
        return total

    def load(self, operand: int, array: KernelArray, column: ir.Value, first: int = 0) -> ir.Value:
        """The operand's element for a column of the block; its walk begins at element `first`."""
        base, step = self._bases[operand] + first if first else self._bases[operand], self._steps[operand][-1]
        if step not in (0, 1):
            return self._k.gather(array, column * step + base)
        return array[column + base if step else base]

    def store(
        self, operand: int, array: KernelArray, column: ir.Value, value: ir.Operand, streams: bool = False
    ) -> None:
        """Stores the result's element of a column; its columns are contiguous."""
        self._k.store(array, (column + self._bases[operand],), value, streamed=streams)


def split_index(index: ir.Value, sizes: Sequence[int]) -> list[ir.Value]:
    """The row-major index into `sizes` as one index per axis."""
    parts: list[ir.Value] = []
    for i, size in enumerate(sizes):
        inner = prod(sizes[i + 1 :])
        part = index // inner if inner > 1 else index
        parts.append(part % size if i else part)
    return parts
