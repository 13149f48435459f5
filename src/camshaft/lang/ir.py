"""Kernel IR: what tracing a kernel yields and what the emitters and the interpreter read.

Values in blocks; no phi but loop counters.

A value is uniform (one for the whole program) or varying (one per lane), found by lang/uniformity.py; `width` n > 0 makes it an
explicit vector of n elements, which is uniform as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from camshaft.dtypes import DType, bf16, f16, f32, i8, i16, i32, u8, u16, u32
from camshaft.lang.operators import Operators
from camshaft.lang.operators import recorder as recorder
from camshaft.lang.operators import recorders as recorders

Operand: TypeAlias = "Value | int | float"

# The attr of a sum or product of floats that is rounded by itself: LLVM does not fuse it with its neighbours.
EXACT = "exact"

# Storage types that arithmetic widens: loads give the second, stores narrow again.
ARITHMETIC_DTYPE: dict[DType, DType] = {f16: f32, bf16: f32, i8: i32, i16: i32, u8: u32, u16: u32}


def arithmetic_dtype(dtype: DType) -> DType:
    """The dtype that a load of `dtype` yields."""
    return ARITHMETIC_DTYPE.get(dtype, dtype)


@dataclass(frozen=True)
class ArrayParam:
    """An array parameter: `shape` holds bounds (an Extent's bound where a size varies), row-major."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    writable: bool = False


@dataclass(frozen=True)
class GridDim:
    """One axis of the grid: `size` programs, or ceil(scalar / divisor) programs for the run-time scalar of that name."""

    size: int = 1
    scalar: str | None = None
    divisor: int = 1


@dataclass(eq=False)
class Block:
    """Statements in order. `parent` is the enclosing block; a value may be used only where its block is still open."""

    parent: Block | None = None
    statements: list[Value | Statement] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Value(Operators):
    """The result of an instruction. Python's operators on it record further instructions."""

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
        """Conversion by value to another dtype."""
        result: Value = recorder().cast(self, dtype)
        return result


@dataclass(eq=False)
class Array:
    """An array inside a kernel: a parameter (`scratch` False) or workgroup scratch, made on a `line` of its source."""

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
    """What yields no value."""

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
    """array[indices] = value. `scattered` allows any index; `count` masks an explicit vector to its first elements; `streamed`: a
    CPU may write around its caches."""

    array: Array
    indices: tuple[Value, ...]
    value: Value
    scattered: bool = False
    count: Value | None = None
    streamed: bool = False


@dataclass(eq=False)
class Lanes(Statement):
    """for index in start..stop, spread over the lanes."""

    index: Value
    start: Value
    stop: Value
    body: Block


@dataclass(eq=False)
class Range(Statement):
    """for index in range(start, stop, step), one after the other; uniform."""

    index: Value
    start: Value
    stop: Value
    step: int
    body: Block


@dataclass(eq=False)
class When(Statement):
    """if condition: a branch where it is uniform, a mask where it varies."""

    condition: Value
    body: Block


@dataclass(eq=False)
class Barrier(Statement):
    """All lanes of the program's workgroup arrive before any goes on."""


@dataclass(eq=False)
class Prefetch(Statement):
    array: Array
    indices: tuple[Value, ...]


@dataclass(eq=False)
class Tile:
    """Accumulators, `rows` by `columns`, spread over the lanes as the target likes: of f32, or where `is_words` of f32 or i32."""

    rows: int
    columns: int
    block: Block
    line: int
    dtype: DType = f32
    is_words: bool = False


@dataclass(eq=False)
class TileNew(Statement):
    """All accumulators 0."""

    tile: Tile


@dataclass(eq=False)
class TileMma(Statement):
    """tile[i, j] += sum over p < depth of a[i, p] * b[p, j], `transposed`: b[j, p]; both from the element at `a_at`, `b_at`.

    In a tile of words a and b are u32, and such a product is a sum itself: of 4 bytes, a's signed and b's not, or of 2 bf16.
    """

    tile: Tile
    a: Array
    a_at: tuple[Value, ...]
    b: Array
    b_at: tuple[Value, ...]
    depth: int
    transposed: bool


@dataclass(eq=False)
class TileScale(Statement):
    """Every accumulator times a uniform value."""

    tile: Tile
    factor: Value


@dataclass(eq=False)
class TileStore(Statement):
    """array[.., i, j] = tile[i, j] for i < rows and j < columns (all, if None)."""

    tile: Tile
    array: Array
    indices: tuple[Value, ...]
    rows: Value | None = None
    columns: Value | None = None


@dataclass(eq=False)
class AsyncCopy(Statement):
    """The whole `destination` from source at `indices`, 0 from `rows` and `columns` (if given) on; done at the next AsyncWait."""

    destination: Array
    source: Array
    indices: tuple[Value, ...]
    rows: Value | None = None
    columns: Value | None = None


@dataclass(eq=False)
class AsyncWait(Statement):
    """All copies begun before have ended, for all lanes."""


TILE_STATEMENTS = (TileNew, TileMma, TileScale, TileStore, AsyncCopy, AsyncWait)


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


def walk(block: Block) -> Iterator[Value | Statement]:
    """Every value and statement, in program order, inner blocks after their statement."""
    for item in block.statements:
        yield item
        body = getattr(item, "body", None)
        if body is not None:
            yield from walk(body)


def changed_arrays(block: Block) -> frozenset[Array]:
    """The arrays that are stored to or changed by atomics."""
    changed = {item.array for item in walk(block) if isinstance(item, (Store, TileStore))}
    changed |= {item.destination for item in walk(block) if isinstance(item, AsyncCopy)}
    atomics = {item.attr[0] for item in walk(block) if isinstance(item, Value) and item.op == "atomic"}
    return frozenset(changed | atomics)


def operands(item: Value | Statement) -> tuple[Value, ...]:
    """The values that an instruction or a statement reads."""
    if isinstance(item, Value):
        return item.args
    if isinstance(item, VarNew):
        return (item.var.init,)
    if isinstance(item, VarSet):
        return (item.value,)
    if isinstance(item, Store):
        return (*item.indices, item.value, *((item.count,) if item.count is not None else ()))
    if isinstance(item, Prefetch):
        return item.indices
    if isinstance(item, (Lanes, Range)):
        return (item.start, item.stop)
    if isinstance(item, When):
        return (item.condition,)
    if isinstance(item, TileMma):
        return (*item.a_at, *item.b_at)
    if isinstance(item, TileScale):
        return (item.factor,)
    if isinstance(item, (TileStore, AsyncCopy)):
        return (*item.indices, *(v for v in (item.rows, item.columns) if v is not None))
    return ()
