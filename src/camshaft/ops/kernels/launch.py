"""The compile-time signature of a Launch, and the limits of the device and the plan that variants depend on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod

from camshaft.errors import ShapeError
from camshaft.extent import Extent
from camshaft.lang import CompileRequest, ir
from camshaft.ops.op import Build, Cells, Launch, NativeCall, NodeSpec, Operand, Target
from camshaft.ops.spec import Part, TensorSpec

_WORKGROUP_MEMORY = "workgroup_memory"
_WORKERS: ContextVar[int | None] = ContextVar("workers", default=None)


@dataclass(frozen=True)
class Signature:
    """The parameters of a compiled kernel. `scalars` are the Extents in the order of the kernel's run-time scalars."""

    arrays: tuple[ir.ArrayParam, ...]
    scalars: tuple[Extent, ...]
    grid: tuple[ir.GridDim, ...]

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """Names by position, so that equal kernels with differently named extents share code."""
        return tuple(f"extent{i}" for i in range(len(self.scalars)))

    def request(self, launch: Launch) -> CompileRequest:
        """Returns the launch's kernel with these parameters, for a device to compile."""
        return CompileRequest(launch.kernel, self.arrays, self.scalar_names, launch.constants, self.grid, launch.lanes)


def operand_spec(operand: Operand, node: NodeSpec, build: Build) -> TensorSpec:
    """Returns the spec of an operand's tensor."""
    tensors = {"input": node.inputs, "output": node.outputs, "scratch": build.scratch}[operand.kind]
    return tensors[operand.index]


def operand_part(operand: Operand, node: NodeSpec, build: Build) -> Part:
    """Returns the part of an operand's tensor."""
    return operand_spec(operand, node, build).part(operand.part)


def signature(launch: Launch | NativeCall, node: NodeSpec, build: Build) -> Signature:
    """Returns the launch's parameters. Extents that only the grid uses come after those that the kernel takes."""
    arrays = []
    for i, operand in enumerate(launch.arrays):
        part = operand_part(operand, node, build)
        shape = operand.shape if operand.shape is not None else part.shape
        dtype = operand.dtype or part.dtype
        if prod(shape) * dtype.nbytes != part.nbytes:
            raise ShapeError(f"{launch.name}: {part} cannot be seen as {dtype} {shape}")
        arrays.append(
            ir.ArrayParam(f"{operand.kind}{operand.index}_{part.name}_{i}", dtype, shape, operand.access != "read")
        )
    scalars = list(launch.extents)
    for cells in launch.grid:
        if isinstance(cells.dim, Extent) and cells.dim not in scalars:
            scalars.append(cells.dim)
    grid = tuple(_grid_dim(cells, scalars) for cells in launch.grid)
    return Signature(tuple(arrays), tuple(scalars), grid)


def _grid_dim(cells: Cells, scalars: list[Extent]) -> ir.GridDim:
    if isinstance(cells.dim, Extent):
        return ir.GridDim(scalar=f"extent{scalars.index(cells.dim)}", divisor=cells.per)
    return ir.GridDim(-(-cells.dim // cells.per))


def program_factors(launch: Launch | NativeCall) -> tuple[int, tuple[tuple[Extent, int], ...]]:
    """Returns the number of programs: a constant, and (extent, divisor) for each factor ceil(active value / divisor)."""
    fixed = prod(-(-c.dim // c.per) for c in launch.grid if isinstance(c.dim, int))
    return fixed, tuple((c.dim, c.per) for c in launch.grid if isinstance(c.dim, Extent))


def program_count(launch: Launch | NativeCall, active: dict[Extent, int]) -> int:
    """Returns the number of programs when the extents have these active values."""
    total, factors = program_factors(launch)
    for extent, divisor in factors:
        total *= -(-active[extent] // divisor)
    return total


def has_threads(target: Target) -> bool:
    """Returns whether lanes are the threads of a workgroup (GPUs). On CPUs they are vector elements, and scratch is on the
    stack."""
    return _WORKGROUP_MEMORY in target.limits


def without_threads(target: Target, least: int = 1) -> str | None:
    """Returns why a target does not have workgroups of at least this many threads, or None."""
    if has_threads(target) and target.lanes >= least:
        return None
    return "takes devices whose lanes are threads of a workgroup" + (f", at least {least}" if least > 1 else "")


def workgroup_nbytes(target: Target) -> int:
    """Returns the bytes of memory that a workgroup may use; 0 on CPUs."""
    return target.limits.get(_WORKGROUP_MEMORY, 0)


def plan_workers() -> int | None:
    """Returns the number of workers of the plan that this thread compiles, or of the call that it prepares; else None.

    Only costs may depend on it, and only between variants with the same results.
    """
    return _WORKERS.get()


@contextmanager
def for_workers(count: int) -> Iterator[None]:
    """Sets `plan_workers` in the body (plan/compile.py)."""
    token = _WORKERS.set(count)
    try:
        yield
    finally:
        _WORKERS.reset(token)
