"""The sizes of a matmul: rows, columns, depth, and the matrices of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from camshaft.dtypes import DType, bf16, f16, f32, f64, i32
from camshaft.extent import Extent
from camshaft.lang import Constant
from camshaft.ops import op as ops
from camshaft.ops.kernels import output_dtype
from camshaft.ops.spec import Dim, TensorSpec, bound

DTYPES = (f32, f16, bf16)
SHORT = (f16, bf16)
CPUS = ("simd", "scalar", "c")
# Dtypes that are multiplied and added without conversion; both operands have the same.
OWN_DTYPES = (f64, i32)


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
    def multiply_adds(self) -> float:
        """Multiplications at the bound."""
        return float(self.matrices) * bound(self.rows) * self.columns * self.depth

    def constants(self) -> dict[str, Constant]:
        """The batch as kernel constants, which `matrix_of` reads."""
        return {"batch": self.batch, "a_steps": self.a_steps, "b_steps": self.b_steps}

    def offsets(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """[matrices, 2]: the first element in a and in b of each product's matrices."""
        index = np.indices(self.batch or (1,), np.int64).reshape(len(self.batch) or 1, -1)
        steps = np.array([self.a_steps or (0,), self.b_steps or (0,)], np.int64)
        scale = np.array([bound(self.rows) * self.depth, self.columns * self.depth], np.int64)
        return np.ascontiguousarray((steps @ index).T.reshape(-1, 2) * scale)


def sizes_of(node: ops.NodeSpec) -> Sizes:
    """Returns the sizes of a valid node."""
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
    """Why a variant that does not round its results cannot compute the node, or None."""
    dtype = node.outputs[0].dtype
    return f"does not round results; wanted {dtype.name}" if dtype in SHORT else None


def rounds_on_cpus(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """`only_f32` except on CPUs: where 32-bit words are the smallest unit of a store, two programs may share one."""
    return None if target.backend in CPUS else only_f32(node)


def infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs, op: str = "matmul") -> tuple[TensorSpec, ...]:
    """out [.., m, n] in f32 or, rounded, in the dtype of the attribute `to`; in f64 or i32 if both operands are. As in NumPy, the
    result has no axis for a vector.

    ShapeError, as from `op`, for other ranks, dtypes, depths that differ, batches that do not broadcast.
    """
    ops.expect(len(specs) == 2, op, specs, "a [.., m, k] and b [.., k, n]")
    own = specs[0].dtype if specs[0].dtype == specs[1].dtype and specs[0].dtype in OWN_DTYPES else None
    for spec in specs:
        fits = len(spec.shape) >= 1 and spec.is_plain and spec.dtype in (own, *DTYPES)
        ops.expect(fits, op, spec, "f32, f16 or bf16 [.., r, c], or both f64 or i32")
    transposed = attrs.get("transpose_b", False)
    ops.expect(isinstance(transposed, bool), op, transposed, "transpose_b True or False")
    a, b = as_matrices(specs, transposed)
    fixed = (*a.shape[:-2], a.shape[-1], *b.shape)
    ops.expect(not any(isinstance(d, Extent) for d in fixed), op, specs, "an Extent only as the rows of a")
    depth, columns = (b.shape[-1], b.shape[-2]) if transposed else (b.shape[-2], b.shape[-1])
    order = "[.., n, k]" if transposed else "[.., k, n]"
    ops.expect(depth == a.shape[-1], op, specs, f"b {order} with k = {a.shape[-1]}")
    ops.expect(min(a.bounds + b.bounds) > 0, op, specs, "no empty axis")
    try:
        batch = np.broadcast_shapes(a.bounds[:-2], b.bounds[:-2])
    except ValueError:
        batch = None
    ops.expect(batch is not None, op, specs, "batch axes that broadcast")
    kept = (*(batch or ()), *a.shape[-2:-1][: len(specs[0].shape) - 1], *(columns,)[: len(specs[1].shape) - 1])
    if own is not None:
        ops.expect("to" not in attrs, op, f"to {attrs.get('to')!r}", f"no `to` beside {own.name}")
        return (TensorSpec(kept, own),)
    return (output_dtype.result(op, TensorSpec(kept, f32), attrs),)
