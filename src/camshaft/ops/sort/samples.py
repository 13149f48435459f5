"""Samples of argsort, sort and top_k."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from camshaft.dtypes import DType, bf16, complex64, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.sort.definition import Ordered
from camshaft.ops.spec import TensorSpec

_CASES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1,), 0),
    ((3, 15), -1),
    ((2, 16), -1),
    ((2, 3, 33), 2),
    ((17, 130), -1),
    ((2, 70, 3), 1),
    ((300, 2), 0),
)
_DTYPES = (f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64)


def draw(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> ops.Array:
    """Numbers of which some are equal; any integers."""
    if dtype.is_float:
        return np.round(rng.normal(size=shape) * 8).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)


def odd_rows(rng: np.random.Generator) -> ops.Array:
    """Rows of NaN, infinities, zeros of both signs and subnormals."""
    odd = rng.normal(size=(5, 37)).astype(np.float32)
    odd[0, ::3], odd[1, ::2], odd[2, 1:20:4] = np.nan, -np.inf, np.inf
    odd[3] = np.where(rng.random(37) < 0.5, -0.0, 0.0)
    odd[4, :9] = np.array([1e-45, -1e-45, 0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 3.4e38], np.float32)
    return odd


def samples(row: Ordered) -> Iterable[ops.Sample]:
    rng = np.random.default_rng(len(row.name))

    def attrs_of(shape: tuple[int, ...], axis: int, turn: int) -> dict[str, Any]:
        if row.selects:
            return {"k": (shape[axis] + 1) // 2 if turn % 2 else shape[axis], "axis": axis, "largest": turn % 3 != 1}
        return {"axis": axis, "descending": turn % 2 == 1}

    for turn, (shape, axis) in enumerate(_CASES):
        yield ops.Sample(f"{shape} along {axis}", (draw(rng, f32, shape),), attrs_of(shape, axis, turn))
    for turn, dtype in enumerate(_DTYPES):
        yield ops.Sample(dtype.name, (draw(rng, dtype, (2, 41)),), attrs_of((2, 41), -1, turn))
    for turn in range(2):
        yield ops.Sample(f"NaN, infinities and zeros {turn}", (odd_rows(rng),), attrs_of((5, 37), 1, turn))
    if "places" in row.gives:
        yield ops.Sample("to i64", (draw(rng, f32, (2, 41)),), {**attrs_of((2, 41), -1, 1), "to": "i64"})
    if row.selects:
        yield ops.Sample("5 of 1100", (rng.normal(size=(2, 1100)).astype(np.float32),), {"k": 5})
        yield ops.Sample("9 of 700 and ties", (draw(rng, i16, (2, 700)) % 5,), {"k": 9})
    else:  # rows that are split, and that are split among programs
        for n in (700, 60_000):
            yield ops.Sample(
                f"{n} and ties", (np.round(rng.normal(size=(1, n)) * 99).astype(np.float32),), {"axis": -1}
            )
    yield ops.Sample("bool", (rng.random((2, 41)) < 0.5,), attrs_of((2, 41), -1, 1))
    rows, x = Extent("rows", 16), draw(rng, f32, (16, 33))
    yield ops.Sample("7 of 16", (x,), attrs_of((16, 33), 1, 1), (TensorSpec((rows, 33), f32),), {rows: 7})


def error_samples(row: Ordered) -> Iterable[ops.ErrorSample]:
    x, attrs = TensorSpec((2, 8), f32), {"k": 3} if row.selects else {}
    yield ops.ErrorSample((x, x), attrs, "wanted one tensor x")
    yield ops.ErrorSample((TensorSpec((8,), complex64),), attrs, "wanted tensors of")
    yield ops.ErrorSample((x,), {**attrs, "axis": 2}, "wanted an axis from -2 to 1")
    yield ops.ErrorSample((x,), {**attrs, "stable": True}, "wanted")
    yield ops.ErrorSample((TensorSpec((2, 0), f32),), attrs, "wanted no empty axis")
    if "places" in row.gives:
        yield ops.ErrorSample((x,), {**attrs, "to": "u8"}, "wanted to i32 or i64")
    if row.selects:
        yield ops.ErrorSample((x,), {"k": 9}, "wanted k from 1 to 8, the size of axis 1")
        yield ops.ErrorSample((x,), {"k": 3, "axis": 0}, "wanted k from 1 to 2, the size of axis 0")
        yield ops.ErrorSample((x,), {}, "wanted k from 1")
