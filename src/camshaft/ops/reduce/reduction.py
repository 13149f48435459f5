"""Reductions over any axes: sum, mean, prod, max, min, and dot: a row for each. Kernels are in ops/reduce/frame.py.

Attributes: `axes` (one or several, negative ones from the end; None, the default, for all) and `keepdims`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from camshaft.backends.blas import library
from camshaft.dtypes import DType, as_dtype, i64, u64
from camshaft.extent import Extent
from camshaft.lang import Constant
from camshaft.ops import op as ops
from camshaft.ops.checks import FLOATS, NUMBERS, in_f32, rounded, same_dtype, widened
from camshaft.ops.gradient import rule_in_f32, spread, with_axes
from camshaft.ops.kernels import blocks
from camshaft.ops.parameters import AXES, KEEPDIMS, Parameters
from camshaft.ops.reduce import frame as reducing
from camshaft.ops.reduce import reduction_samples
from camshaft.ops.reduce.axes import axes_of, expect_kept_extent, reduced
from camshaft.ops.reduce.frame import Fold, fold_of, partial_spec
from camshaft.ops.spec import TensorSpec, bound


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Why NumPy's BLAS cannot compute it, or None."""
    if not node.inputs[0].parts[0].dtype.is_float:
        return "NumPy multiplies integers without BLAS"
    return library.absent()


def _build_blas(node: ops.NodeSpec, target: ops.Target) -> ops.HostCall:
    return ops.HostCall(_by_numpy)


def _by_numpy(node: ops.NodeSpec, inputs: Sequence[ops.Array], outputs: Sequence[ops.Array]) -> None:
    # in f64, as the kernels: a sum that cancels keeps f32's precision
    a, b = (x.astype(np.float64, copy=False) for x in inputs)
    outputs[0][...] = np.dot(a, b)


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Nanoseconds: widening and reading both operands on one thread, and the call into Python."""
    return 20_000.0 + bound(node.inputs[0].shape[0]) / 0.5


VARIANT = ops.KernelVariant("numpy", frozenset({"blas"}), _build_blas, _supports, _cost)


@dataclass(frozen=True)
class Reduction:
    """`kind` of fold: sum, product, max or min. `gives`: the result's dtype; `mean` divides by the number of elements; `others`:
    variants besides the kernels; `decompose` and `vjp`: as of an Op."""

    name: str
    text: str
    kind: str
    numpy: Callable[..., object]
    dtypes: tuple[DType, ...] = NUMBERS
    gives: Callable[[DType], DType] = lambda dtype: dtype
    mean: bool = False
    arity: int = 1
    others: tuple[ops.KernelVariant, ...] = ()
    decompose: Callable[..., Any] | None = None
    vjp: Callable[..., Any] | None = None
    tolerance: Mapping[str, float] = field(
        default_factory=lambda: {"f32": 1e-12, "f64": 1e-26, "f16": 1e-8, "bf16": 1e-6}
    )


def counted(dtype: DType) -> DType:
    """The dtype of a sum, as in NumPy: integers widen to 64 bits, floats keep their dtype."""
    return dtype if dtype.is_float else i64 if dtype.kind == "i" else u64


def infer(row: Reduction, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    """The result's spec. ShapeError for wrong axes (`axes_of`), wrong dtypes and empty tensors."""
    ops.expect(len(specs) == row.arity, row.name, specs, f"{row.arity} tensor{'s' if row.arity > 1 else ''}")
    unknown = set(attrs) - {"axes", "keepdims"}
    ops.expect(not unknown, row.name, f"attributes {sorted(unknown)}", "axes and keepdims")
    dtype, x = same_dtype(row.name, specs, row.dtypes), specs[0]
    if row.arity == 2:
        fits = len(x.shape) == 1 and specs[1].shape == x.shape and not attrs and isinstance(x.shape[0], int)
        ops.expect(fits, row.name, specs, "two vectors of one size")
    axes = axes_of(row.name, x, attrs)
    expect_kept_extent(row.name, x, axes)
    return (TensorSpec(reduced(x, axes, bool(attrs.get("keepdims"))), row.gives(dtype)),)


def _reference(row: Reduction, inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    dtype = row.gives(as_dtype(inputs[0].dtype))
    wide = [widened(x) if dtype.is_float else x.astype(dtype.numpy) for x in inputs]
    with np.errstate(all="ignore"):
        if row.arity == 2:
            return (rounded(row.numpy(*wide), dtype),)
        spec = TensorSpec(inputs[0].shape, as_dtype(inputs[0].dtype))
        axes = axes_of(row.name, spec, attrs)
        return (rounded(row.numpy(wide[0], axis=axes, keepdims=bool(attrs.get("keepdims"))), dtype),)


def _build(row: Reduction, node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x = node.inputs[0]
    axes = axes_of(row.name, x, node.attrs)
    wide = reducing.accumulates_in(row.kind, as_dtype(x.dtype), target.backend)
    count = (prod(x.bounds[a] for a in axes),) if row.mean else ()
    fold = fold_of(x.shape, axes)
    reads = [ops.read(i, shape=(prod(spec.bounds),)) for i, spec in enumerate(node.inputs)]
    result = ops.write(0, shape=(prod(node.outputs[0].bounds),))
    if fold.parts == 1:
        return ops.Build((_launch(row, fold, wide, count, (*reads, result), target),))
    between = partial_spec(fold, wide)
    flat = (prod(between.bounds),)
    first = _launch(row, fold, wide, (), (*reads, ops.scratch(0, "write", flat)), target)
    rest = fold_of((fold.outer, *between.bounds[1:]), (2,))
    second = _launch(row, rest, wide, count, (ops.scratch(0, "read", flat), result), target)
    return ops.Build((first, second), (between,))


def _launch(
    row: Reduction, fold: Fold, wide: DType, count: tuple[int, ...], arrays: tuple[ops.Operand, ...],
    target: ops.Target,
) -> ops.Launch:  # fmt: skip
    constants: dict[str, Constant] = {
        "kind": row.kind,
        "dtype": wide.name,
        "kept": fold.kept,
        "reduced": fold.reduced,
        "columns": fold.columns,
        "per": fold.per,
        "parts": fold.parts,
        "outer_step": fold.outer_stride if isinstance(fold.outer, Extent) else 0,
        "count": count,
    }
    outer, kept = ops.Cells(fold.outer), ops.Cells(fold.n_kept)
    if fold.along:
        grid = (outer, kept, ops.Cells(fold.parts))
        width = reducing.lanes_for(fold, row.kind, target)
        constants |= {"inputs": len(arrays) - 1}
        return ops.Launch(reducing.along_rows, arrays, grid, constants, lanes=width, sizes=reducing.SIZES)
    blocks = -(-fold.columns // reducing.COLUMNS)
    grid = (outer, kept, ops.Cells(fold.parts * blocks))
    constants |= {"block": reducing.COLUMNS, "blocks": blocks}
    return ops.Launch(reducing.into_columns, arrays, grid, constants, sizes=(*reducing.SIZES, "blocks"))


@in_f32
def _mean(f: Any, x: Any, axes: Any = None, keepdims: bool = False) -> Any:
    count = prod(x.spec.bounds[a] for a in axes_of("mean", x.spec, {"axes": axes}))
    return f.sum(x, axes=axes, keepdims=keepdims) / float(count)


@in_f32
def _dot(f: Any, a: Any, b: Any) -> Any:
    total = f.sum(a * b)
    return total if total.dtype == a.dtype else f.cast(total, to=a.dtype.name)  # a sum of integers has 64 bits


def _sum_vjp(f: Any, dy: Any, y: Any, x: Any, axes: Any = None, keepdims: bool = False) -> Any:
    return spread(f, dy, x, axes_of("sum", x.spec, {"axes": axes}))


@rule_in_f32
def _mean_vjp(f: Any, dy: Any, y: Any, x: Any, axes: Any = None, keepdims: bool = False) -> Any:
    given = axes_of("mean", x.spec, {"axes": axes})
    return spread(f, dy / float(prod(x.spec.bounds[a] for a in given)), x, given)


@rule_in_f32
def _extreme_vjp(f: Any, dy: Any, y: Any, x: Any, axes: Any = None, keepdims: bool = False) -> Any:
    """dy in equal parts to the elements that are y, as torch.amax does."""
    given = axes_of("max", x.spec, {"axes": axes})
    ties = f.equal(x, with_axes(y, x, given))
    count = f.sum(f.cast(ties, to=x.dtype.name), axes=given, keepdims=True)
    return f.where(ties, with_axes(dy, x, given) / count, 0)


@rule_in_f32
def _prod_vjp(f: Any, dy: Any, y: Any, x: Any, axes: Any = None, keepdims: bool = False) -> Any:
    """dy times the products of the elements before and after each, so that zeros need no division."""
    given = axes_of("prod", x.spec, {"axes": axes})
    if not given:
        return dy
    kept = tuple(i for i in range(x.ndim) if i not in given)
    order, shape = (*kept, *given), tuple(x.shape[i] for i in (*kept, *given))
    rows = f.transpose(x, axes=order).reshape((*shape[: len(kept)], -1))
    one = f.where(np.ones((), np.bool_), 1, rows[..., :1])
    before = f.cumprod(f.concat(one, rows[..., :-1], axis=-1)) if rows.shape[-1] > 1 else one
    after = f.cumprod(f.concat(rows[..., 1:], one, axis=-1), reverse=True) if rows.shape[-1] > 1 else one
    others = (before * after).reshape(shape)
    back = tuple(sorted(range(x.ndim), key=order.__getitem__))
    return f.transpose(others, axes=back) * with_axes(dy, x, given)


def _dot_vjp(f: Any, dy: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
    return dy * b, dy * a


def op_of(row: Reduction) -> ops.Op:
    """The Op of a row."""

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        return _build(row, node, target)

    return ops.Op(
        name=row.name,
        formula=row.text,
        parameters=Parameters("x", (AXES, KEEPDIMS)) if row.arity == 1 else Parameters("a b"),
        infer=lambda specs, attrs: infer(row, specs, attrs),
        reference=lambda inputs, attrs: _reference(row, inputs, attrs),
        variants=(ops.KernelVariant("folds", ops.EVERYWHERE, build, tunables=blocks.lane_tunables(build)), *row.others),
        samples=lambda: reduction_samples.samples(row),
        error_samples=lambda: reduction_samples.error_samples(row),
        tolerance=row.tolerance,
        flops=lambda node: float(prod(node.inputs[0].bounds)),
        decompose=row.decompose,
        vjp=row.vjp,
    )


# For targets without 64-bit floats, where a product of 30,000 factors rounds 30,000 times.
_IN_F32 = {"f32": 1e-10, "f64": 1e-26, "f16": 1e-8, "bf16": 1e-6}
ROWS = (
    Reduction("sum", "y = sum over axes of x", "sum", np.sum, gives=counted, vjp=_sum_vjp),
    Reduction(
        "mean",
        "y = sum over axes of x / their number",
        "sum",
        np.mean,
        FLOATS,
        mean=True,
        decompose=_mean,
        vjp=_mean_vjp,
    ),
    Reduction(
        "prod", "y = product over axes of x", "product", np.prod, gives=counted, tolerance=_IN_F32, vjp=_prod_vjp
    ),
    Reduction("max", "y = max over axes of x, NaN where there is one", "max", np.max, vjp=_extreme_vjp),
    Reduction("min", "y = min over axes of x, NaN where there is one", "min", np.min, vjp=_extreme_vjp),
    Reduction("dot", "y = sum_i a[i] b[i]", "sum", np.dot, arity=2, others=(VARIANT,), decompose=_dot, vjp=_dot_vjp),
)
OPS = {row.name: op_of(row) for row in ROWS}
