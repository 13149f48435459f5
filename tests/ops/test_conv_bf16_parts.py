"""conv2d's `bf16_parts`: as precise as f32, at any size, for any magnitudes, with infinity and NaN in their own columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from camshaft import ops
from camshaft.ops.op import Sample
from camshaft.validation.run import run_variant
from camshaft.validation.validate import check_sample, node_of
from tests.support.devices.played_amx import device
from tests.support.needs import require_level
from tests.support.quick import full

OP = ops.get("conv2d")
VARIANT = next(v for v in OP.variants if v.name == "bf16_parts")


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def found(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    require_level("avx512-bf16")
    (y,) = run_variant(VARIANT, node_of(OP, Sample("", (x, w))), device(), (x, w), {})
    return y


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((2, 33, 5, 13), (33, 33, 1, 1), {}),
        full((1, 32, 4, 24), (32, 32, 1, 1), {}),
        full((1, 1, 1, 1), (1, 1, 1, 1), {}),
        full((1, 31, 1, 31), (31, 31, 1, 1), {}),
        full((1, 64, 9, 17), (96, 64, 1, 1), {"stride": (2, 3)}),
        full((2, 70, 6, 11), (66, 35, 1, 1), {"groups": 2}),
        ((1, 3, 8, 8), (65, 3, 1, 1), {}),
    ],
)
def test_ragged_sizes_are_as_precise_as_f32(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    require_level("avx512-bf16")
    checked = check_sample(OP, VARIANT, device(), Sample("", (drawn(*x), drawn(*w)), attrs))
    assert checked.max_error < 3e-14  # products of two parts alone have 1e-11


@pytest.mark.parametrize(("of_x", "of_w"), [(1e-37, 1.0), (1.0, 1e-37), (1e30, 1e-30), (1e-20, 1e-17)])
def test_products_of_any_magnitudes_keep_their_precision(of_x: float, of_w: float) -> None:
    x, w = drawn(1, 33, 1, 40) * np.float32(of_x), drawn(34, 33, 1, 1) * np.float32(of_w)
    y = found(x, w).astype(np.float64)
    want = np.einsum("ncij,oc->noij", x.astype(np.float64), w[:, :, 0, 0].astype(np.float64))
    assert np.square(y - want).sum() < 1e-12 * np.square(want).sum()


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
def test_infinity_and_nan_stay_in_their_columns() -> None:
    x, w = drawn(1, 33, 1, 70), np.abs(drawn(34, 33, 1, 1))
    x[0, 3, 0, 5], x[0, 4, 0, 40], x[0, 9, 0, 69] = np.inf, np.nan, 3.4e38
    w[33, 9] = 20
    y = found(x, w)[0, :, 0]
    assert np.isposinf(y[:, 5]).all()
    assert np.isnan(y[:, 40]).all()
    assert np.isposinf(y[33, 69])
    assert np.isfinite(np.delete(y, [5, 40, 69], axis=1)).all()


@pytest.mark.filterwarnings("ignore:invalid value")
def test_infinite_weights_stay_in_their_output() -> None:
    x, w = np.abs(drawn(1, 33, 1, 40)), drawn(66, 33, 1, 1)
    w[33, 1] = -np.inf
    y = found(x, w)[0, :, 0]
    assert np.isneginf(y[33]).all()
    assert np.isfinite(np.delete(y, 33, axis=0)).all()


def test_the_elements_of_an_image_of_zeros_are_zeros() -> None:
    assert not found(np.zeros((1, 33, 1, 40), np.float32), drawn(34, 33, 1, 1)).any()
