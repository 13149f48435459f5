"""argmax and argmin: the index of the largest (smallest) element along an axis; ties to the smaller index.

Attributes: `axis` (-1 by default; None for the whole tensor), `keepdims`, `nan_first` (by default the first NaN wins, as in
NumPy; else NaNs are ignored), and `to`, the result's dtype: i32, or i64 as NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DTYPES, as_dtype, boolean, f16, f32, f64, i8, i32, i64, u8
from camshaft.extent import Extent
from camshaft.lang import Array, Constant, Tracer, ir, kernel
from camshaft.lang.instructions import identity
from camshaft.ops import op as ops
from camshaft.ops.checks import NUMBERS, same_dtype
from camshaft.ops.gradient import OF_INTEGERS
from camshaft.ops.parameters import KEEPDIMS, Attribute, Parameters
from camshaft.ops.reduce.axes import axes_of, expect_kept_extent, reduced
from camshaft.ops.reduce.frame import COLUMNS
from camshaft.ops.spec import TensorSpec, bound


def _better(k: Tracer, value: ir.Value, best: ir.Value, least: bool, nan_first: bool) -> ir.Value:
    """Whether the value replaces the best one. A NaN does not, or with `nan_first` only the first."""
    better = value < best if least else value > best
    if nan_first and value.dtype.is_float:
        better = better | (k.isnan(value) & (k.isnan(best) ^ k.const(True, boolean)))
    return better


@kernel
def one_row_per_program(k: Tracer, x: Array, out: Array, *, dim: int, dtype: str, least: bool, nan_first: bool) -> None:
    # out[r] = argmax_c x[r, c]: each lane keeps its largest element and the first index of it; then the lanes are compared
    value_dtype = DTYPES[dtype]
    row, best = k.program(0), k.var(identity("min" if least else "max", value_dtype.numpy), value_dtype)
    where = k.var(0, i32)
    for c in k.lanes(dim):
        value = x[row, c]
        better = _better(k, value, best.value, least, nan_first)
        best.set(k.select(better, value, best.value))
        where.set(k.select(better, c.to(i32), where.value))
    winner = k.lanes_min(best) if least else k.lanes_max(best)
    wins = best.value == winner
    if nan_first and value_dtype.is_float:
        wins = wins | k.isnan(best.value)
    out[row] = k.lanes_min(k.select(wins, where.value, k.number(dim, i32))).to(out.dtype)


@kernel
def into_columns(
    k: Tracer, x: Array, out: Array, *, dim: int, columns: int, dtype: str, least: bool, nan_first: bool,
    block: int,
) -> None:  # fmt: skip
    # out[r, c] = argmax_d x[r, d, c]; each lane keeps the best elements of its columns in scratch
    value_dtype, row, first = DTYPES[dtype], k.program(0), k.program(1) * block
    stop = k.minimum(first + block, columns)
    best, where = k.scratch(value_dtype, block), k.scratch(i32, block)
    for c in k.lanes(first, stop):
        best[c - first] = identity("min" if least else "max", value_dtype.numpy)
        where[c - first] = 0
    for d in k.range(dim):
        for c in k.lanes(first, stop):
            value, old = x[row, d, c], best[c - first]
            better = _better(k, value, old, least, nan_first)
            best[c - first] = k.select(better, value, old)
            where[c - first] = k.select(better, d.to(i32), where[c - first])
    for c in k.lanes(first, stop):
        out[row, c] = where[c - first].to(out.dtype)


_ATTRIBUTES = (
    Attribute("axis", "int | None", -1),
    KEEPDIMS,
    Attribute("nan_first", "bool", True),
    Attribute("to", "str", "i32"),
)


def _axes(name: str, x: TensorSpec, attrs: ops.Attrs) -> tuple[int, ...]:
    axis = attrs.get("axis", -1)
    ops.expect(axis is None or isinstance(axis, int), name, f"axis {axis}", "an integer, or None for all axes")
    return axes_of(name, x, {"axes": axis})


def index_spec(name: str, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    """The spec of the index that the op `name` gives. ShapeError for other inputs and attributes."""
    ops.expect(len(specs) == 1, name, specs, "one tensor x")
    same_dtype(name, specs, NUMBERS)
    unknown = set(attrs) - {"axis", "keepdims", "nan_first", "to"}
    ops.expect(not unknown, name, f"attributes {sorted(unknown)}", "axis, keepdims, nan_first and to")
    to = attrs.get("to", i32.name)
    ops.expect(to in (i32.name, i64.name), name, f"to {to!r}", "to i32 or i64")
    x = specs[0]
    axes = _axes(name, x, attrs)
    expect_kept_extent(name, x, axes)
    return (TensorSpec(reduced(x, axes, bool(attrs.get("keepdims"))), DTYPES[to]),)


def _reference(name: str, inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x = inputs[0]
    if as_dtype(x.dtype).is_float:
        x = x.astype(np.float64)
        x = x if attrs.get("nan_first", True) else np.where(np.isnan(x), np.inf if name == "argmin" else -np.inf, x)
    found = getattr(np, name)(x, axis=attrs.get("axis", -1), keepdims=bool(attrs.get("keepdims")))
    return (np.asarray(found).astype(DTYPES[attrs.get("to", i32.name)].numpy),)


def _build(name: str, node: ops.NodeSpec) -> ops.Build:
    x = node.inputs[0]
    axes = _axes(name, x, node.attrs)
    outer = x.shape[0] if axes and axes[0] else 1
    before, dim = prod(x.bounds[: axes[0]]) if axes else 1, prod(x.bounds[a] for a in axes)
    columns = prod(x.bounds[axes[-1] + 1 :]) if axes else 1
    rows = outer if before == bound(outer) else before
    value_dtype = ir.arithmetic_dtype(as_dtype(x.dtype))
    constants: dict[str, Constant] = {"dim": dim, "dtype": value_dtype.name, "least": name == "argmin"}
    constants["nan_first"] = bool(node.attrs.get("nan_first", True))
    if columns == 1:
        arrays = ops.read(0, shape=(before, dim)), ops.write(0, shape=(before,))
        return ops.Build((ops.Launch(one_row_per_program, arrays, (ops.Cells(rows),), constants, sizes=("dim",)),))
    arrays = ops.read(0, shape=(before, dim, columns)), ops.write(0, shape=(before, columns))
    grid = ops.Cells(rows), ops.Cells(columns, per=COLUMNS)
    constants |= {"columns": columns, "block": COLUMNS}
    return ops.Build((ops.Launch(into_columns, arrays, grid, constants, sizes=("dim", "columns")),))


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(16)
    for rows, dim in ((1, 1), (9, 15), (9, 16), (9, 17), (20, 33), (3, 1000), (1, 49152)):
        yield ops.Sample(f"{rows}x{dim}", (rng.normal(size=(rows, dim)).astype(np.float32),))
    yield ops.Sample("ties", (rng.integers(0, 3, (40, 70)).astype(np.float32),))
    x = np.full((7, 40), -np.inf, np.float32)
    x[1], x[2, 3:], x[3, :39] = np.nan, np.nan, np.nan
    x[4, 17], x[5, 20:22], x[6] = -3e38, np.inf, rng.normal(size=40)
    x[6, ::2] = np.nan
    yield ops.Sample("NaN ignored", (x,), {"nan_first": False})
    yield ops.Sample("NaN first", (x,), {"to": "i64"})
    yield ops.Sample("NaN first in columns", (x,), {"axis": 0, "to": "i64"})
    for shape, axis in (((3, 7, 33), 1), ((5, COLUMNS + 3), 0), ((2, 3, 5), None)):
        x = rng.integers(-40, 40, shape).astype(np.float32)
        yield ops.Sample(f"{shape} over {axis}", (x,), {"axis": axis, "keepdims": axis == 1})
    for dtype in (f64, f16, i8, i32, i64, u8):
        drawn = (40 * rng.normal(size=(3, 37))).astype(np.int64).astype(dtype.numpy)
        yield ops.Sample(f"3x37 of {dtype.name}", (drawn,), {"axis": 1 if dtype != i8 else 0})
    wanted, x = Extent("rows", 16), rng.normal(size=(16, 33)).astype(np.float32)
    yield ops.Sample("7 of 16", (x,), {}, (TensorSpec((wanted, 33), f32),), {wanted: 7})


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x, x), {}, "wanted one tensor")
    yield ops.ErrorSample((TensorSpec((8,), boolean),), {}, "wanted tensors of")
    yield ops.ErrorSample((x,), {"axis": 2}, "wanted axes from -2 to 1")
    yield ops.ErrorSample((x,), {"to": "u8"}, "wanted to i32 or i64")
    yield ops.ErrorSample((x,), {"axis": (0, 1)}, "wanted an integer")
    yield ops.ErrorSample((TensorSpec((Extent("n", 8), 3), f32),), {"axis": 0}, "wanted no empty axis")


def _argmin(f: Any, x: Any, **attrs: Any) -> Any:
    """argmax of -x; of integers, whose negation may overflow, of all bits inverted."""
    dtype = as_dtype(x.dtype)
    ones = -1 if dtype.kind == "i" else 2**dtype.bits - 1
    return f.argmax(-x if dtype.is_float else ones - x, **attrs)


def _op(name: str, word: str, decompose: Callable[..., Any] | None = None) -> ops.Op:
    return ops.Op(
        name=name,
        formula=f"y[r] = the least c with x[r, c] = {word}(x[r])",
        parameters=Parameters("x", _ATTRIBUTES),
        infer=lambda specs, attrs: index_spec(name, specs, attrs),
        reference=lambda inputs, attrs: _reference(name, inputs, attrs),
        variants=(ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, lambda node, target: _build(name, node)),),
        samples=_samples,
        error_samples=_error_samples,
        tolerance={},
        flops=lambda node: float(np.prod(node.inputs[0].bounds)),
        decompose=decompose,
        vjp=OF_INTEGERS,
    )


OPS = {"argmax": _op("argmax", "max"), "argmin": _op("argmin", "min", _argmin)}
