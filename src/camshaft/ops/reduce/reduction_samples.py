"""Samples of reductions: sizes on both sides of every block, chunk and vector width, and every pattern of axes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.dtypes import DType, bf16, boolean, f16, f32, f64, i8, i32, i64, u8, u32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.reduce.frame import BLOCK, CHUNK, COLUMNS
from camshaft.ops.spec import TensorSpec

if TYPE_CHECKING:
    from camshaft.ops.reduce.reduction import Reduction

# (shape, axes): along rows, into columns, both, with kept or reduced axes between
_PATTERNS: tuple[tuple[tuple[int, ...], Any], ...] = (
    ((1,), None),
    ((3, 33), 1),
    ((37, 17), 0),
    ((2, 5, 3, 7), (0, 2)),
    ((2, 5, 3, 7), (1, 3)),
)
_LARGE: tuple[tuple[tuple[int, ...], Any], ...] = (
    ((2 * BLOCK + 3,), None),
    ((2, 3, BLOCK + 1), -1),
    ((CHUNK // 16 + 1, 3), 0),
    ((2, 201, COLUMNS + 5), 1),
)
_DTYPES = (f64, f16, bf16, i8, i32, i64, u8, u32)


def draw(kind: str, rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> ops.Array:
    """Factors whose product is near 1 for kind "product"; floats whose sum does not cancel; any integers."""
    if kind == "product" and dtype.is_float:
        powers: ops.Array = np.exp(rng.normal(size=shape) / np.sqrt(np.prod(shape)))
        return powers.astype(dtype.numpy)
    if dtype.is_float:
        return (rng.normal(size=shape) + 1).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)


def not_finite(kind: str, rng: np.random.Generator) -> ops.Array:
    """Rows with a NaN, with an infinity of each sign, with both, and one without."""
    x = draw(kind, rng, f32, (5, 33))
    x[0, 3], x[1, 32], x[2, 0], x[3, :2] = np.nan, np.inf, -np.inf, (np.inf, -np.inf)
    return x


def samples(row: Reduction) -> Iterable[ops.Sample]:
    """Patterns of axes, dtypes, sizes of several programs, NaN and infinities, an active extent."""
    rng = np.random.default_rng(len(row.name))
    if row.arity == 2:
        yield from _vectors(row, rng)
        return
    for shape, axes in (*_PATTERNS, *(_LARGE if row.kind == "sum" and not row.mean else _LARGE[:1] + _LARGE[3:])):
        yield ops.Sample(f"{shape} over {axes}", (draw(row.kind, rng, f32, shape),), _attrs(axes))
    for dtype in (d for d in _DTYPES if d in row.dtypes):
        yield ops.Sample(f"{dtype.name}", (draw(row.kind, rng, dtype, (3, 41)),), {"axes": -1, "keepdims": True})
    yield ops.Sample("NaN and infinities", (not_finite(row.kind, rng),), {"axes": 1})
    tokens = Extent("tokens", 16)
    x = draw(row.kind, rng, f32, (16, 3, 33))
    for axes in ((1, 2), (1,)):
        specs = (TensorSpec((tokens, 3, 33), f32),)
        yield ops.Sample(f"7 of 16 over {axes}", (x,), {"axes": axes}, specs, {tokens: 7})


def _attrs(axes: Any) -> dict[str, Any]:
    return {} if axes is None else {"axes": axes}


def _vectors(row: Reduction, rng: np.random.Generator) -> Iterable[ops.Sample]:
    for n in (1, 33, BLOCK + 5):
        yield ops.Sample(f"{n}", tuple(draw(row.kind, rng, f32, (n,)) for _ in range(2)))
    for dtype in (d for d in _DTYPES if d in row.dtypes):
        yield ops.Sample(f"37 of {dtype.name}", tuple(draw(row.kind, rng, dtype, (37,)) for _ in range(2)))


def error_samples(row: Reduction) -> Iterable[ops.ErrorSample]:
    """A wrong number of tensors, unknown axes, an unsupported dtype, a reduced Extent."""
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x,) * (row.arity + 1), {}, f"wanted {row.arity} tensor")
    yield ops.ErrorSample((TensorSpec((8,), boolean),) * row.arity, {}, "wanted tensors of")
    if row.arity == 2:
        yield ops.ErrorSample((TensorSpec((8,), f32), TensorSpec((9,), f32)), {}, "wanted two vectors of one size")
        return
    yield ops.ErrorSample((x,), {"axes": 2}, "wanted axes from -2 to 1")
    yield ops.ErrorSample((x,), {"axes": (1, -1)}, "wanted each axis once")
    yield ops.ErrorSample((x,), {"axis": 1}, "wanted axes and keepdims")
    yield ops.ErrorSample((TensorSpec((Extent("n", 8), 3), f32),), {"axes": 0}, "wanted no empty axis")
