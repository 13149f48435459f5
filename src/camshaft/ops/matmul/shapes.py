"""The sizes of a matmul: rows, columns, depth, and the matrices of a batch; for variants and in kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import numpy as np

from camshaft.dtypes import DType, bf16, f16, f32, f64, i32, i64, u64
from camshaft.extent import Extent
from camshaft.lang import Constant, Tracer, Value
from camshaft.ops import op as ops
from camshaft.ops.kernels.strides import is_zero
from camshaft.ops.spec import Dim, TensorSpec, bound

DTYPES = (f32, f16, bf16)
SHORT = (f16, bf16)
CPUS = ("simd", "scalar", "c")
# Dtypes that are multiplied and added without conversion; both operands have the same.
OWN_DTYPES = (f64, i32, i64, u64)
# Elements of 16 bits in a 32-bit word.
PAIR = 2
# Constants of `Matrices`, which a kernel may take as run-time scalars.
SIZES = ("rows", "columns", "depth", "batch", "a_steps", "b_steps")
# Elements of an explicit vector.
WIDTH = 16
Axes: TypeAlias = tuple[int, ...]


def matrix_of(index: Value, batch: Axes, steps: Axes) -> Value | int:
    """Returns the index of an operand's matrix for product `index` of the batch; the constant 0 if it has only one."""
    found: Value | int = 0
    for size, step in zip(reversed(batch), reversed(steps), strict=True):
        if not is_zero(step):
            found = index % size * step + found
        index = index // size
    return found


def column_vectors(k: Tracer, first: Value, columns: int, n: int) -> tuple[list[Value], list[Value | None]]:
    """Returns the first columns of n vectors, and the number of columns in each (None if all are always full)."""
    starts = [first + j * WIDTH for j in range(n)]
    if isinstance(columns, int) and columns % (n * WIDTH) == 0:
        return starts, [None] * n
    return [k.minimum(s, columns - 1) for s in starts], [k.maximum(columns - s, 0) for s in starts]


def even_panel(panel: Value, panels: int, vectors: int) -> tuple[Value, Value]:
    """Returns the first vector of one of so many even panels of all vectors, and that of the next. Rounded, not cut: the halves
    of the panels have equal vectors."""
    start, stop = (((panel + n) * (2 * vectors) + panels) // (2 * panels) for n in (0, 1))
    return start, stop


@dataclass(frozen=True)
class Matrices:
    """The sizes of a matmul in a kernel, from its constants: `Sizes.constants`."""

    rows: int
    columns: int
    depth: int
    batch: Axes
    a_steps: Axes
    b_steps: Axes

    def a(self, index: Value) -> Value | int:
        """Returns the index of the matrix of a for a product of the batch."""
        return matrix_of(index, self.batch, self.a_steps)

    def b(self, index: Value) -> Value | int:
        """Returns the index of the matrix of b for a product of the batch."""
        return matrix_of(index, self.batch, self.b_steps)


@dataclass(frozen=True)
class Blocks(Matrices):
    """The sizes of a product in blocks: rows of a tile and how many tiles have all of these (`tall`), vectors of a panel, tiles
    and panels of a program, depth of a step. If `even` is not 0 the columns are so many even panels of `vectors` vectors or one
    less, one for each program. `streamed`: whether nontemporal stores write the result."""

    tile: int
    tall: int
    vectors: int
    block: int
    panels: int
    part: int
    even: int = 0
    streamed: bool = False

    @property
    def all_vectors(self) -> int:
        """The vectors of all columns."""
        return -(-self.columns // WIDTH)

    @property
    def width(self) -> int:
        """The columns of a panel."""
        return self.vectors * WIDTH


@dataclass(frozen=True)
class Tiles:
    """A split of rows into tiles: `tall` tiles of `tile` rows, then tiles with one row less, so that no row is computed twice.
    With `active`, all tiles are tall and the last is partial."""

    k: Tracer
    rows: int
    tile: int
    tall: int
    active: Value | None

    @property
    def count(self) -> int:
        """The number of tiles at the bound."""
        short = self.rows - self.tall * self.tile
        return -(-self.rows // self.tile) if self.active is not None else self.tall + short // max(self.tile - 1, 1)

    @property
    def has_short(self) -> bool:
        """Whether there are tiles of tile - 1 rows."""
        return self.active is None and self.tall < self.count

    def first_row(self, t: Value) -> Value:
        """The first row of tile t."""
        return t * self.tile - self.k.maximum(t - self.tall, 0) if self.has_short else t * self.tile


@dataclass(frozen=True)
class Sizes:
    """The sizes of a matmul. `rows` may be an Extent. `batch` has the broadcast axes; `a_steps` and `b_steps` are the strides
    along them in matrices of a and b (0 where the operand is broadcast)."""

    rows: Dim
    columns: int
    depth: int
    transposed: bool
    batch: tuple[int, ...]
    a_steps: tuple[int, ...]
    b_steps: tuple[int, ...]
    a_matrices: int
    b_matrices: int

    @property
    def matrices(self) -> int:
        """The number of products in the batch."""
        return prod(self.batch)

    @property
    def extents(self) -> tuple[Extent, ...]:
        """The Extent of the rows, if it is one."""
        return (self.rows,) if isinstance(self.rows, Extent) else ()

    @property
    def b_shape(self) -> tuple[int, int]:
        """The rows of all matrices of b, as one array."""
        rows, columns = (self.columns, self.depth) if self.transposed else (self.depth, self.columns)
        return self.b_matrices * rows, columns

    @property
    def operands(self) -> tuple[ops.Operand, ops.Operand, ops.Operand]:
        """The rows of all matrices of a, of b, and of the result, each as one array."""
        return (
            ops.read(0, shape=(self.a_matrices * bound(self.rows), self.depth)),
            ops.read(1, shape=self.b_shape),
            self.out,
        )

    @property
    def out(self) -> ops.Operand:
        """The rows of all matrices of the result, as one array."""
        return ops.write(0, shape=(self.matrices * bound(self.rows), self.columns))

    @property
    def multiply_adds(self) -> float:
        """Multiplications at the bound."""
        return float(self.matrices) * bound(self.rows) * self.columns * self.depth

    @property
    def in_words(self) -> Sizes:
        """These sizes with the depth in words of PAIR elements."""
        return replace(self, depth=self.depth // PAIR)

    def in_panels(self, width: int) -> float:
        """Multiplications at the bound with the columns padded to whole panels of `width`."""
        return float(self.matrices) * bound(self.rows) * self.depth * -(-self.columns // width) * width

    def constants(self) -> dict[str, Constant]:
        """The kernel constants of `Matrices`."""
        sizes: dict[str, Constant] = {"rows": bound(self.rows), "columns": self.columns, "depth": self.depth}
        return sizes | {"batch": self.batch, "a_steps": self.a_steps, "b_steps": self.b_steps}

    def offsets(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """[matrices, 2]: the first element in a and in b of each product's matrices."""
        index = np.indices(self.batch or (1,), np.int64).reshape(len(self.batch) or 1, -1)
        steps = np.array([self.a_steps or (0,), self.b_steps or (0,)], np.int64)
        scale = np.array([bound(self.rows) * self.depth, self.columns * self.depth], np.int64)
        return np.ascontiguousarray((steps @ index).T.reshape(-1, 2) * scale)


def sizes_of(node: ops.NodeSpec) -> Sizes:
    """Returns the sizes of a valid node."""
    found: Sizes | None = node.derived.get("sizes")
    if found is None:
        found = node.derived["sizes"] = _sizes_of(node)
    return found


def _sizes_of(node: ops.NodeSpec) -> Sizes:
    transposed = bool(node.attrs.get("transpose_b", False))
    a, b = as_matrices(node.inputs, transposed)
    columns = bound(b.shape[-2 if transposed else -1])
    batch = np.broadcast_shapes(a.bounds[:-2], b.bounds[:-2])
    return Sizes(
        a.shape[-2],
        columns,
        bound(a.shape[-1]),
        transposed,
        batch,
        _steps(a, batch),
        _steps(b, batch),
        prod(a.bounds[:-2]),
        prod(b.bounds[:-2]),
    )


def _steps(spec: TensorSpec, batch: tuple[int, ...]) -> tuple[int, ...]:
    own = (1,) * (len(batch) - len(spec.shape) + 2) + spec.bounds[:-2]
    steps, step = [], 1
    for size in reversed(own):
        steps.append(0 if size == 1 else step)
        step *= size
    return tuple(reversed(steps))


def as_matrices(specs: tuple[TensorSpec, ...], transposed: bool) -> tuple[TensorSpec, TensorSpec]:
    """Returns the specs with a vector a as one row and a vector b as one column."""
    a, b = specs
    if len(a.shape) == 1:
        a = TensorSpec((1, *a.shape), a.dtype)
    if len(b.shape) == 1:
        b = TensorSpec((1, *b.shape) if transposed else (*b.shape, 1), b.dtype)
    return a, b


def only_floats(node: ops.NodeSpec) -> str | None:
    """Returns why a variant that computes in f32 cannot compute the node, or None."""
    dtype = node.inputs[0].dtype
    return f"computes in f32; {dtype.name} is computed in {dtype.name}" if dtype in OWN_DTYPES else None


def result_of(node: ops.NodeSpec) -> DType:
    """Returns the dtype of the stored product."""
    return node.outputs[0].parts[0].dtype


def only_f32(node: ops.NodeSpec) -> str | None:
    """Returns why a variant that does not round its results cannot compute the node, or None."""
    dtype = node.outputs[0].dtype
    return f"does not round results; wanted {dtype.name}" if dtype in SHORT else None


def rounds_on_cpus(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """`only_f32` except on CPUs: where 32-bit words are the smallest unit of a store, two programs may share one."""
    return None if target.backend in CPUS else only_f32(node)
