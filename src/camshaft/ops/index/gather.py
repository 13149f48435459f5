"""gather: y[i] = x[rows[i]], where x[r] is a part of x along its first axis. Bit for bit.

A negative index counts from the end, as in NumPy. An index out of bounds reads nothing and gives NaN (0 for integers).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, boolean, f32, i32, i64
from camshaft.extent import Extent
from camshaft.lang import Array, Constant, Tracer, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import EVERY, expect_tensor
from camshaft.ops.gradient import expect_fixed, zeros
from camshaft.ops.kernels import blocks
from camshaft.ops.kernels.bits import NAN_BITS, as_bits
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec, bound

INDEXES = (i32, i64)


def index_of(k: Tracer, wanted: ir.Value, limit: ir.Operand) -> tuple[ir.Value, ir.Value]:
    """The index from the front, and whether it is in bounds."""
    index = wanted.to(i64)
    index = k.select(index < 0, index + limit, index)
    return index, (index >= 0) & (index < limit)


@kernel
def gather_bounded(
    k: Tracer, x: Array, rows: Array, out: Array, *, limit: int, columns: int, block: int, missing: int, inner: int = 0
) -> None:
    # y[i, c] = x[rows[i], c]
    _gather(k, x, rows, out, limit, columns, block, missing, inner)


@kernel
def gather_active(
    k: Tracer,
    x: Array,
    rows: Array,
    out: Array,
    limit: ir.Value,
    *,
    columns: int,
    block: int,
    missing: int,
    inner: int = 0,
) -> None:
    # y[i, c] = x[rows[i], c], rows[i] under x's active extent
    _gather(k, x, rows, out, limit, columns, block, missing, inner)


def _gather(
    k: Tracer, x: Array, rows: Array, out: Array, limit: ir.Operand, columns: int, block: int, missing: int, inner: int
) -> None:
    """With `inner`, programs are (first axis of rows, the others, block of columns)."""
    i = k.program(0) * inner + k.program(1) if inner else k.program(0)
    first = k.program(2 if inner else 1) * block
    stop = k.minimum(first + block, columns)
    source, inside = index_of(k, rows[i], limit)
    with k.when(inside):
        for c in k.lanes(first, stop):
            out[i, c] = x[source, c]
    with k.when(inside ^ k.const(True, boolean)):
        for c in k.lanes(first, stop):
            out[i, c] = float("nan") if x.dtype.is_float else k.const(missing, ir.arithmetic_dtype(x.dtype))


def expect_indexes(op: str, name: str, spec: TensorSpec) -> None:
    """ShapeError unless the spec is of integers that index; an Extent only as the one axis."""
    fits = spec.is_plain and spec.dtype in INDEXES and 0 not in spec.bounds
    fits = fits and (len(spec.shape) == 1 or not any(isinstance(d, Extent) for d in spec.shape))
    ops.expect(fits, op, spec, f"{name} of i32 or i64 with no empty axis, and an Extent only as the one axis")


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "gather", specs, "x [T, ..] and rows [..]")
    x, rows = specs
    expect_tensor("gather", x, EVERY)
    expect_indexes("gather", "rows", TensorSpec(rows.bounds[1:], rows.dtype) if _is_partly_active(rows) else rows)
    return (TensorSpec((*rows.shape, *x.shape[1:]), x.dtype),)


def _is_partly_active(rows: TensorSpec) -> bool:
    """Whether indexes have an Extent as the first of several axes."""
    return rows.is_plain and len(rows.shape) > 1 and isinstance(rows.shape[0], Extent)


def missing_of(dtype: DType) -> int | float:
    """Returns the value for an index out of bounds."""
    return float("nan") if dtype.is_float else 0


def taken(x: ops.Array, rows: ops.Array) -> ops.Array:
    """x[rows], with what is missing where an index is out of bounds."""
    inside = (rows >= -len(x)) & (rows < len(x))
    found = np.asarray(x[np.where(inside, rows, 0)])
    return np.where(
        inside.reshape(rows.shape + (1,) * (x.ndim - 1)), found, x.dtype.type(missing_of(as_dtype(x.dtype)))
    )


def gathered(node: ops.NodeSpec, x: int, rows: int) -> ops.Build:
    """One launch: a program per index and block of columns. `x` and `rows` are the inputs' numbers. A result of another dtype is
    converted, of the same one moved."""
    table, indexes, out = node.inputs[x], node.inputs[rows], node.outputs[0]
    columns, count, moves = prod(table.bounds[1:]), prod(indexes.bounds), table.dtype == out.dtype
    block = blocks.even_block(columns)
    source, made = ops.read(x, shape=(table.bounds[0], columns)), ops.write(0, shape=(count, columns))
    if moves:
        source, made = as_bits(source, table), as_bits(made, out)
    first = indexes.shape[0] if len(indexes.shape) == 1 else count
    grid: tuple[ops.Cells, ...] = (ops.Cells(first), ops.Cells(columns, per=block))
    inner = prod(indexes.bounds[1:]) if _is_partly_active(indexes) else 0
    if inner:
        grid = ops.Cells(indexes.shape[0]), ops.Cells(inner), grid[1]
    arrays = source, ops.read(rows, shape=(count,)), made
    missing = NAN_BITS.get(as_dtype(table.dtype), 0)
    constants: dict[str, Constant] = {"columns": columns, "block": block, "missing": missing}
    constants |= {"inner": inner} if inner else {}
    if isinstance(table.shape[0], Extent):
        return ops.Build((ops.Launch(gather_active, arrays, grid, constants, extents=(table.shape[0],)),))
    constants["limit"] = bound(table.shape[0])
    sizes = ("limit", "columns", "block")
    return ops.Build((ops.Launch(gather_bounded, arrays, grid, constants, sizes=() if inner else sizes),))


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(15)
    for n_rows, columns, taken in ((1, 1, 1), (5, 15, 3), (4, 16, 9), (9, 33, 2), (3, blocks.BLOCK + 1, 4)):
        x = rng.normal(size=(n_rows, columns)).astype(np.float32)
        yield ops.Sample(f"{taken} of {n_rows}x{columns}", (x, rng.integers(0, n_rows, taken, dtype=np.int32)))
    bad = np.array([0, -1, 4, 3, -4, -5, 2**31 - 1, -(2**31)], np.int32)
    yield ops.Sample("indexes out of bounds", (rng.normal(size=(4, 17)).astype(np.float32), bad))
    yield ops.Sample("integers", (rng.integers(-9, 9, (4, 17)).astype(np.int32), bad))
    yield ops.Sample("i64 indexes of f64", (rng.normal(size=(4, 2, 9)), bad.reshape(4, 2).astype(np.int64)))
    yield ops.Sample("bf16", (rng.normal(size=(4, 18)).astype(bf16.numpy), bad[:2]))
    yield ops.Sample("bytes", (rng.integers(0, 9, (4, 3, 6)).astype(np.uint8), bad))
    tokens, wanted = Extent("tokens", 16), Extent("rows", 8)
    specs = (TensorSpec((tokens, 33), f32), TensorSpec((wanted,), i32))
    rows = np.array([6, 0, 7, 3, 1, 1, 1, 1], np.int32)
    yield ops.Sample(
        "4 of 7 of 16", (rng.normal(size=(16, 33)).astype(np.float32), rows), {}, specs, {tokens: 7, wanted: 4}
    )
    table, few = rng.normal(size=(5, 17)).astype(np.float32), Extent("few", 6)
    specs = (TensorSpec((5, 17), f32), TensorSpec((few, 3), i32))
    yield ops.Sample("3 of each of 4 of 6", (table, rng.integers(0, 5, (6, 3)).astype(np.int32)), {}, specs, {few: 4})


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x,), {}, "wanted x")
    yield ops.ErrorSample((x, TensorSpec((3,), f32)), {}, "wanted rows of i32")
    yield ops.ErrorSample((TensorSpec((), f32), TensorSpec((3,), i32)), {}, "wanted a tensor of")


def _vjp(f: Any, dy: Any, y: Any, x: Any, rows: Any) -> tuple[Any, None]:
    """dy added at the rows; none where the row is out of bounds."""
    expect_fixed(rows.shape)
    count = prod(rows.shape)
    places = rows.reshape((count, *(1,) * (x.ndim - 1)))
    return f.scatter_add(zeros(f, x), places, dy.reshape((count, *x.shape[1:])), axis=0), None


OP = ops.Op(
    name="gather",
    formula="y[i] = x[rows[i]]",
    parameters=Parameters("x rows"),
    infer=_infer,
    reference=lambda inputs, attrs: (taken(*inputs),),
    variants=(ops.KernelVariant("row_blocks", ops.EVERYWHERE, lambda node, target: gathered(node, 0, 1)),),
    indexes={1: lambda node: node.inputs[0].bounds[0]},
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 0.0, "f64": 0.0},
    nbytes=lambda node: 2.0 * node.outputs[0].nbytes,
    vjp=_vjp,
)
