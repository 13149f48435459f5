"""Kernel IR: what tracing a kernel yields and what the emitters and the interpreter read.

A kernel body is a tree of blocks. Loop counters are the only values that change per iteration; other state is in variables,
so there are no phi nodes.

A value is uniform (one per program) or varying (one per lane); lang/uniformity.py computes which. A value with `width` n > 0 is
an explicit vector of n elements, and is uniform.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from camshaft.dtypes import DType, bf16, f16, f32, i8, i16, i32, u8, u16, u32
from camshaft.lang.operators import Operators
from camshaft.lang.operators import recorder as recorder
from camshaft.lang.operators import recording as recording

Operand: TypeAlias = "Value | int | float"

# The attr of a float add, subtract or multiply that LLVM must round separately, without fusing it into an FMA.
EXACT = "exact"

# Storage dtype -> arithmetic dtype: loads widen to it, stores narrow from it.
ARITHMETIC_DTYPE: dict[DType, DType] = {f16: f32, bf16: f32, i8: i32, i16: i32, u8: u32, u16: u32}


def arithmetic_dtype(dtype: DType) -> DType:
    """Return the dtype that a load of `dtype` yields."""
    return ARITHMETIC_DTYPE.get(dtype, dtype)


@dataclass(frozen=True)
class RunTime:
    """Run-time scalar number `index`, in a constant or an array's shape: the kernel gets a traced value, not an int."""

    index: int


# The bound of an array whose sizes are run-time scalars.
ANY_SIZE = 1 << 40


@dataclass(frozen=True)
class ArrayParam:
    """A row-major array parameter. `shape` holds upper bounds (an Extent's bound for a size that varies). Axes but the first
    may be run-time scalars; in the IR the array is then flat."""

    name: str
    dtype: DType
    shape: tuple[int | RunTime, ...]
    writable: bool = False

    @property
    def bounds(self) -> tuple[int, ...]:
        """The shape in the IR."""
        sizes = tuple(size for size in self.shape if isinstance(size, int))
        return sizes if len(sizes) == len(self.shape) else (ANY_SIZE,)


@dataclass(frozen=True)
class GridDim:
    """One axis of the grid: `size` programs, or ceil(scalar / divisor) programs for the run-time scalar of that name."""

    size: int = 1
    scalar: str | None = None
    divisor: int = 1


@dataclass(eq=False)
class Block:
    """A list of values and statements in program order. `parent` is the enclosing block.

    A value may be used only in its own block and the blocks nested in it.
    """

    parent: Block | None = None
    statements: list[Value | Statement] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Value(Operators):
    """The result of an instruction. Python operators on it record further instructions."""

    op: str
    dtype: DType
    args: tuple[Value, ...] = ()
    width: int = 0
    attr: Any = None
    block: Block | None = None
    line: int = 0

    def __repr__(self) -> str:
        return f"<{self.op} {self.dtype}{f'x{self.width}' if self.width else ''} line {self.line}>"

    def to(self, dtype: DType) -> Value:
        """Record a conversion by value to `dtype`."""
        result: Value = recorder().cast(self, dtype)
        return result


@dataclass(eq=False)
class Array:
    """An array inside a kernel: a parameter (`scratch` False) or workgroup scratch, declared on source line `line`."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    writable: bool
    scratch: bool = False
    line: int = 0

    @property
    def strides(self) -> tuple[int, ...]:
        strides, step = [], 1
        for size in reversed(self.shape):
            strides.append(step)
            step *= size
        return tuple(reversed(strides))


@dataclass(eq=False)
class Var:
    """A variable: read with `.value`, set with `.set(x)`. `identity` names the accumulator kind, or is None."""

    dtype: DType
    width: int
    init: Value
    identity: str | None
    block: Block
    line: int


@dataclass(eq=False)
class Statement:
    """An operation without a result. `line` is its source line."""

    line: int


@dataclass(eq=False)
class VarNew(Statement):
    var: Var


@dataclass(eq=False)
class VarSet(Statement):
    var: Var
    value: Value


@dataclass(eq=False)
class Store(Statement):
    """array[indices] = value.

    `scattered` allows non-contiguous lane indices. `count` stores only the first elements of an explicit vector. `streamed`
    allows nontemporal stores on a CPU.
    """

    array: Array
    indices: tuple[Value, ...]
    value: Value
    scattered: bool = False
    count: Value | None = None
    streamed: bool = False


@dataclass(eq=False)
class Lanes(Statement):
    """for index in start..stop, distributed over the lanes."""

    index: Value
    start: Value
    stop: Value
    body: Block


@dataclass(eq=False)
class Range(Statement):
    """for index in range(start, stop, step), sequential; the index is uniform."""

    index: Value
    start: Value
    stop: Value
    step: int
    body: Block


@dataclass(eq=False)
class When(Statement):
    """if condition: a branch if the condition is uniform, a lane mask if it varies."""

    condition: Value
    body: Block


@dataclass(eq=False)
class Barrier(Statement):
    """A workgroup barrier: no lane continues before all lanes have arrived."""


@dataclass(eq=False)
class Prefetch(Statement):
    array: Array
    indices: tuple[Value, ...]
    near: bool = True


@dataclass(frozen=True)
class KernelIR:
    """A traced kernel."""

    name: str
    arrays: tuple[Array, ...]
    scalars: tuple[str, ...]
    grid: tuple[GridDim, ...]
    scratch: tuple[Array, ...]
    body: Block
    source_file: str
