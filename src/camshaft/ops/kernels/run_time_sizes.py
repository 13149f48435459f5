"""The form of a launch that takes its sizes at run time, so that one kernel serves many shapes.

Eager calls use it: a plan's shapes are known when it is compiled, and there constants are quicker. Both forms compute the same
bits.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from camshaft.backends.device import CompiledKernel, Device
from camshaft.dtypes import DType
from camshaft.extent import Extent
from camshaft.lang import CompileRequest, Constant, Kernel, ir
from camshaft.ops.kernels.launch import operand_part
from camshaft.ops.op import Build, Launch, NativeCall, NodeSpec
from camshaft.ops.spec import bound

BACKENDS = ("simd", "scalar")
# More programs than any launch has: a power of two, by which a division is a shift.
_MANY = ir.GridDim(1 << 62)
_ONE = ir.GridDim(1)
# Scalars by number: more than the sizes and strides of four operands of NumPy's 64 axes.
_SCALARS = tuple(ir.RunTime(i) for i in range(384))


class _Array(NamedTuple):
    """An array parameter: `inner` are the scalars that are its sizes after the first."""

    dtype: DType
    inner: tuple[ir.RunTime, ...]
    access: str


@dataclass(frozen=True)
class RunTimeForm:
    """A kernel whose run-time scalars have these `values`. Launches that differ only in values share the kernel: their `key`s
    are equal."""

    kernel: Kernel
    arrays: tuple[_Array, ...]
    constants: dict[str, Constant]
    grid: tuple[ir.GridDim, ...]
    lanes: int | None
    values: tuple[int, ...]
    programs: int

    @property
    def key(self) -> Hashable:
        """Equal for launches that share a kernel."""
        constants = tuple(self.constants.items())
        return self.kernel, self.arrays, constants, self.grid, self.lanes, len(self.values)

    def compile(self, device: Device) -> CompiledKernel:
        """The kernel for every launch of this key."""
        params = tuple(
            ir.ArrayParam(f"array{i}", a.dtype, (ir.ANY_SIZE, *a.inner), a.access != "read")
            for i, a in enumerate(self.arrays)
        )
        names = tuple(f"size{i}" for i in range(len(self.values)))
        return device.compile(CompileRequest(self.kernel, params, names, self.constants, self.grid, self.lanes))


def run_time_form(launch: Launch | NativeCall, node: NodeSpec, build: Build, device: Device) -> RunTimeForm | None:
    """The form of a launch whose sizes are run-time scalars; None where its kernel takes none, or has Extents, or runs on
    another device than a CPU."""
    if device.backend not in BACKENDS or isinstance(launch, NativeCall) or not launch.sizes:
        return None
    if any(isinstance(cells.dim, Extent) for cells in launch.grid):
        return None
    values: list[int] = []
    constants = {n: _scalars(v, values) if n in launch.sizes else v for n, v in launch.constants.items()}
    arrays = []
    for operand in launch.arrays:
        part = operand_part(operand, node, build)
        shape = part.shape if operand.shape is None else operand.shape
        inner = tuple(_scalar(size, values) for size in shape[1:])
        arrays.append(_Array(operand.dtype or part.dtype, inner, operand.access))
    counts = [-(-bound(cells.dim) // cells.per) for cells in launch.grid]
    grid = _grid(counts, values)
    return RunTimeForm(launch.kernel, tuple(arrays), constants, grid, launch.lanes, tuple(values), prod(counts))


def _scalar(value: int, values: list[int]) -> ir.RunTime:
    values.append(value)
    return _SCALARS[len(values) - 1]


def _scalars(constant: Any, values: list[int]) -> Any:
    """The constant with run-time scalars for its numbers. In tuples 0 and 1 stay: strides of repeated and contiguous axes."""
    if isinstance(constant, tuple):
        return tuple(part if part in (0, 1) else _scalars(part, values) for part in constant)
    return _scalar(constant, values)


def _grid(counts: list[int], values: list[int]) -> tuple[ir.GridDim, ...]:
    """The grid's axes. The first needs no bound, as none comes before it; the last stays where it is one program, which spares a
    division by program; of three, the first stays where it is one."""
    first = int(len(counts) == 3 and counts[0] == 1)
    dims = [_ONE] * first + [_MANY]
    for axis, count in enumerate(counts[first + 1 :], first + 2):
        is_one = axis == len(counts) and count == 1
        dims.append(_ONE if is_one else ir.GridDim(scalar=f"size{_scalar(count, values).index}"))
    return tuple(dims)
