"""Samples of scans: sizes on both sides of a group, a part and a block of columns; any axis, both directions, every dtype."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.dtypes import bf16, boolean, f16, f32, f64, i8, i32, i64, u8, u32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.reduce.reduction_samples import draw, not_finite
from camshaft.ops.spec import TensorSpec

if TYPE_CHECKING:
    from camshaft.ops.scan.definition import Scan

# (shape, axis, reverse). One size is above PART and one above COLUMNS of ops/scan/variants.py.
_PATTERNS: tuple[tuple[tuple[int, ...], int, bool], ...] = (
    ((1,), 0, False),
    ((3, 15), -1, False),
    ((2, 16), 1, True),
    ((2, 33), 1, False),
    ((2, 3, 49), -1, True),
    ((2, 5, 17), 1, False),
    ((7, 515), 0, True),
)
_LONG: tuple[tuple[tuple[int, ...], int, bool], ...] = (((2, 32785), 1, False), ((32790,), 0, True))
_DTYPES = (f64, f16, bf16, i8, i32, i64, u8, u32)


def samples(row: Scan) -> Iterable[ops.Sample]:
    """Patterns of axes, dtypes, NaN and infinities, an active extent."""
    rng = np.random.default_rng(len(row.name))
    for shape, axis, reverse in (*_PATTERNS, *(_LONG if row.kind == "sum" else ())):
        name = f"{shape} along {axis}{' reversed' if reverse else ''}"
        yield ops.Sample(name, (draw(row.kind, rng, f32, shape),), {"axis": axis, "reverse": reverse})
    for dtype in _DTYPES:
        yield ops.Sample(dtype.name, (draw(row.kind, rng, dtype, (3, 41)),), {"axis": -1})
    if row.counts:
        yield ops.Sample("i8 to i32", (draw(row.kind, rng, i8, (3, 41)),), {"axis": -1, "to": "i32"})
        yield ops.Sample("u32 to u32", (draw(row.kind, rng, u32, (3, 41)),), {"axis": 0, "to": "u32", "reverse": True})
    yield ops.Sample("NaN and infinities", (not_finite(row.kind, rng),), {"axis": 1})
    tokens, x = Extent("tokens", 16), draw(row.kind, rng, f32, (16, 3, 33))
    for axis in (2, 1):
        specs: Any = (TensorSpec((tokens, 3, 33), f32),)
        yield ops.Sample(f"7 of 16 along {axis}", (x,), {"axis": axis}, specs, {tokens: 7})


def error_samples(row: Scan) -> Iterable[ops.ErrorSample]:
    """A wrong number of tensors, axes and attributes that there are not, dtypes that it lacks."""
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x, x), {}, "wanted one tensor x")
    yield ops.ErrorSample((TensorSpec((8,), boolean),), {}, "wanted tensors of")
    yield ops.ErrorSample((x,), {"axis": 2}, "wanted an axis from -2 to 1")
    yield ops.ErrorSample((TensorSpec((), f32),), {}, "wanted a tensor with axes")
    yield ops.ErrorSample((x,), {"axes": 1}, "wanted axis")
    yield ops.ErrorSample((TensorSpec((2, 0), f32),), {}, "wanted no empty axis")
    yield ops.ErrorSample((TensorSpec((Extent("n", 8), 3), f32),), {"axis": 0}, "wanted no empty axis")
    if row.counts:
        yield ops.ErrorSample((x,), {"to": "i32"}, "wanted no `to`, or f32")
        yield ops.ErrorSample((TensorSpec((8,), i8),), {"to": "u32"}, "wanted to i64 or i32")
