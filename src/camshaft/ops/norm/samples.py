"""Samples of row-wise ops: rows on both sides of every vector width, small values, a large mean, fewer rows than the bound."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.dtypes import bf16, f16, f32, f64, i32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.spec import TensorSpec

if TYPE_CHECKING:
    from camshaft.ops.norm.frame import RowOp

_SHAPES = ((1,), (33,), (1, 1), (3, 15), (2, 16), (5, 17), (4, 33), (2, 3, 33), (7, 576), (2, 1001))


def _inputs(
    row: RowOp, seed: int, shape: tuple[int, ...], scale: float = 3.0, mean: float = 0.0
) -> tuple[ops.Array, ...]:
    """Normal values of the inputs beside x of that shape; `scale` and `mean` are those of inputs of x's shape."""
    from camshaft.ops.norm.frame import shape_of

    rng = np.random.default_rng(seed)
    drawn = [rng.normal(size=shape_of(axes, shape)) for axes in row.inputs.values()]
    moved = (mean + scale * a if axes == "rc" else a for a, axes in zip(drawn, row.inputs.values(), strict=True))
    return tuple(np.asarray(a, np.float32) for a in moved)


def samples(row: RowOp) -> Iterable[ops.Sample]:
    """The common samples of a row-wise op."""
    attrs: dict[str, Any] = dict(row.positive)
    for i, shape in enumerate(s for s in _SHAPES if row.rank in (None, len(s))):
        yield ops.Sample("x".join(map(str, shape)), _inputs(row, i, shape), attrs)
    yield ops.Sample("about 100", _inputs(row, 21, (4, 700), 1.0, 100.0), attrs)
    yield ops.Sample("small values", _inputs(row, 22, (6, 64), 1e-3), attrs)
    inner = () if row.rank == 2 else (2,)
    specs, extents = active_rows(row, inner)
    yield ops.Sample("7 of 16 rows", _inputs(row, 23, (16, *inner, 33)), attrs, specs, extents)
    if f64 in row.dtypes:
        yield ops.Sample("3x35 of f64", tuple(a.astype(np.float64) for a in _inputs(row, 26, (3, 35))), attrs)
    for i, dtype in enumerate(d for d in (f16, bf16) if d in row.dtypes):
        arrays = tuple(a.astype(dtype.numpy) for a in _inputs(row, 27 + i, (3, 35)))
        yield ops.Sample(f"3x35 of {dtype.name}", arrays, attrs | (dict(row.finite) if dtype == f16 else {}))
    if row.finite:
        yield ops.Sample(f"3x35, {', '.join(row.finite)}", _inputs(row, 29, (3, 35)), attrs | dict(row.finite))
    if row.to:
        yield ops.Sample("to bf16", _inputs(row, 24, (3, 35)), attrs | {"to": "bf16"})
        yield ops.Sample(
            "to f16, 7 of 16 rows", _inputs(row, 25, (16, *inner, 33)), attrs | {"to": "f16"}, specs, extents
        )


def active_rows(row: RowOp, inner: tuple[int, ...]) -> tuple[tuple[TensorSpec, ...], dict[Extent, int]]:
    """The specs for 7 active rows of at most 16, and the active value."""
    from camshaft.ops.norm.frame import shape_of

    tokens = Extent("tokens", 16)
    specs = tuple(TensorSpec(shape_of(axes, (tokens, *inner, 33)), f32) for axes in row.inputs.values())
    return specs, {tokens: 7}


def error_samples(row: RowOp) -> Iterable[ops.ErrorSample]:
    """An input too many, another dtype, an Extent as the last axis, each other input of another size, an attribute of 0."""
    from camshaft.ops.norm.frame import shape_of

    attrs, names = dict(row.positive), list(row.inputs)
    specs = tuple(TensorSpec(shape_of(axes, (2, 8)), f32) for axes in row.inputs.values())
    yield ops.ErrorSample((*specs, specs[0]), attrs, f"wanted {names[0]} ")
    yield ops.ErrorSample((TensorSpec((2, 8), i32), *specs[1:]), attrs, f"wanted {names[0]} .* of f32")
    yield ops.ErrorSample(
        (TensorSpec((2, Extent("n", 8)), f32), *specs[1:]), attrs, "wanted an Extent as the first axis"
    )
    for i, name in enumerate(names[1:], 1):
        other = TensorSpec((9, *specs[i].shape[1:]), f32)
        yield ops.ErrorSample((*specs[:i], other, *specs[i + 1 :]), attrs, f"wanted {name} of f32")
    for name in row.positive:
        yield ops.ErrorSample(specs, attrs | {name: 0.0}, f"wanted {name} above 0")
    for name in row.finite:
        yield ops.ErrorSample(specs, attrs | {name: float("nan")}, f"wanted {name}, a finite number")
    if row.to:
        yield ops.ErrorSample(specs, attrs | {"to": "i8"}, "wanted to f32, f16 or bf16")
