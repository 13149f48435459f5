"""The form of a launch that takes its sizes at run time, so that one kernel serves many shapes.

Eager calls use it: a plan's shapes are known when it is compiled, and there constants are quicker. Both forms compute the same
bits.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import prod
from typing import Any

from camshaft.backends.device import CompiledKernel, Device
from camshaft.extent import Extent
from camshaft.lang import ir
from camshaft.lang.kernel import Constant, Kernel
from camshaft.ops.kernels.launch import operand_part
from camshaft.ops.op import Build, Launch, NativeCall, NodeSpec
from camshaft.ops.spec import bound

BACKENDS = ("simd", "scalar")
# More programs than any launch has: a power of two, by which a division is a shift.
_MANY = ir.GridDim(1 << 62)
_ONE = ir.GridDim(1)


@dataclass(frozen=True)
class RunTimeForm:
    """A kernel whose run-time scalars have these `values`. Launches that differ only in values share the kernel: their `key`s
    are equal."""

    kernel: Kernel
    arrays: tuple[ir.ArrayParam, ...]
    constants: dict[str, Constant]
    grid: tuple[ir.GridDim, ...]
    lanes: int | None
    values: tuple[int, ...]
    programs: int

    @property
    def key(self) -> Hashable:
        """Equal for launches that share a kernel."""
        return id(self.kernel), self.arrays, tuple(self.constants.items()), self.grid, self.lanes, len(self.values)

    def compile(self, device: Device) -> CompiledKernel:
        """The kernel for every launch of this key."""
        names = tuple(f"size{i}" for i in range(len(self.values)))
        return device.compile(self.kernel, self.arrays, names, self.constants, self.grid, self.lanes)


class _Scalars:
    """The run-time scalars of a launch, numbered as they are met."""

    def __init__(self) -> None:
        self.values: list[int] = []

    def new(self, value: int) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def of(self, constant: Any) -> Any:
        """The constant with its numbers at run time. In tuples 0 and 1 stay: strides of repeated and contiguous axes."""
        if isinstance(constant, tuple):
            return tuple(part if part in (0, 1) else self.of(part) for part in constant)
        return ir.RunTime(self.new(constant))


def run_time_form(
    launch: Launch | NativeCall, node: NodeSpec, build: Build, device: Device
) -> RunTimeForm | None:
    """The form of a launch whose sizes are run-time scalars; None where its kernel takes none, or has Extents, or runs on
    another device than a CPU."""
    if device.backend not in BACKENDS or isinstance(launch, NativeCall) or not launch.sizes or any(isinstance(c.dim, Extent) for c in launch.grid):
        return None
    scalars = _Scalars()
    constants = {n: scalars.of(v) if n in launch.sizes else v for n, v in launch.constants.items()}
    arrays = []
    for i, operand in enumerate(launch.arrays):
        part = operand_part(operand, node, build)
        shape = part.shape if operand.shape is None else operand.shape
        inner = tuple(ir.RunTime(scalars.new(size)) for size in shape[1:])
        dtype = operand.dtype or part.dtype
        arrays.append(ir.ArrayParam(f"{operand.kind}_{i}", dtype, (ir.ANY_SIZE, *inner), operand.access != "read"))
    counts = [-(-bound(cells.dim) // cells.per) for cells in launch.grid]
    grid = _grid(counts, scalars)
    return RunTimeForm(
        launch.kernel, tuple(arrays), constants, grid, launch.lanes, tuple(scalars.values), prod(counts)
    )


def _grid(counts: list[int], scalars: _Scalars) -> tuple[ir.GridDim, ...]:
    """The grid's axes. The first needs no bound, as none comes before it; the last stays where it is one program, which spares a
    division by program; of three, the first stays where it is one."""
    first = int(len(counts) == 3 and counts[0] == 1)
    dims = [_ONE] * first + [_MANY]
    for axis, count in enumerate(counts[first + 1 :], first + 2):
        is_one = axis == len(counts) and count == 1
        dims.append(_ONE if is_one else ir.GridDim(scalar=f"size{scalars.new(count)}"))
    return tuple(dims)
