"""Scans: the same bits for any lane count, exact over long rows, and torch's meaning."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from camshaft import ops, table
from camshaft.backends.cpu.device import cpu_device
from camshaft.dtypes import as_dtype
from camshaft.ops.op import NodeSpec
from camshaft.ops.scan import variants
from camshaft.ops.spec import TensorSpec
from camshaft.validation.run import run_variant
from tests.support.quick import each_value, full, quick_of

LONG = 40_003  # three parts of a row, the last one ragged


def computed(name, x, backend, variant="scans", run_time_sizes=False, **attrs):
    """`run_time_sizes`: as eager calls have it, so that one kernel takes rows of all lengths."""
    op, specs = ops.get(name), (TensorSpec(x.shape, as_dtype(x.dtype)),)
    (chosen,) = (v for v in op.variants if v.name == variant)
    node = NodeSpec(specs, op.infer(specs, attrs), attrs)
    return run_variant(chosen, node, cpu_device(backend), (x,), run_time_sizes=run_time_sizes)[0]


@pytest.mark.parametrize(("name", "dtype", "reverse"), [full("cummax", "f32", True), ("cumsum", "f64", False)])
def test_one_lane_and_sixteen_give_the_same_bits(name, dtype, reverse):
    x = np.random.default_rng(0).normal(size=LONG).astype(as_dtype(dtype).numpy)
    one, sixteen = (computed(name, x, backend, reverse=reverse) for backend in ("scalar", "simd"))
    assert one.tobytes() == sixteen.tobytes()


@pytest.mark.parametrize(
    ("name", "reverse", "by_pairs"),
    quick_of(
        product(["cumsum", "cummax", "cummin"], [True, False], [True, False]),
        [("cumsum", False, False), ("cummin", True, True)],
    ),
)
def test_a_program_for_a_row_gives_the_bits_of_one_for_each_part(monkeypatch, name, reverse, by_pairs):
    monkeypatch.setattr(variants, "has_fast_moves_in_blocks", lambda target: by_pairs)
    x = np.random.default_rng(3).normal(size=LONG).astype(np.float32)
    x[20_000:20_003] = 3e38, 3e38, -3e38  # in the second part, whose sums overflow
    parts, whole = (computed(name, x, "simd", variant, reverse=reverse) for variant in ("scans", "whole_rows"))
    assert parts.tobytes() == whole.tobytes()


@pytest.mark.parametrize(("by_pairs", "reverse"), each_value([True, False], [True, False]))
def test_not_finite_sums_have_the_same_bits_by_parts_and_by_rows(monkeypatch, by_pairs, reverse):
    monkeypatch.setattr(variants, "has_fast_moves_in_blocks", lambda target: by_pairs)
    for values in (
        (np.nan, np.nan, -np.nan),
        (-np.nan, np.nan, np.nan),
        (np.inf, -np.inf, np.nan),
        (np.inf, 1, -np.inf),
    ):
        for at in ((20, 21, 25), (17_000, 17_001, 39_000)):
            x = np.random.default_rng(7).normal(size=LONG).astype(np.float32)
            x[list(at)] = values
            parts, whole = (
                computed("cumsum", x, "simd", variant, reverse=reverse) for variant in ("scans", "whole_rows")
            )
            assert parts.tobytes() == whole.tobytes()


@pytest.mark.parametrize("dtype", ["f32", full("f64"), full("f16")])
def test_a_running_maximum_has_numpys_zeros_infinities_and_first_nan(dtype):
    x = np.array([-np.inf, -2, -0.0, -1, 0.0, 3, np.inf, -np.nan, 7, -5] * 3).astype(as_dtype(dtype).numpy)
    for name, fold in (("cummax", np.maximum), ("cummin", np.minimum)):
        for given in (x, x[::-1], x[:7], x[:3]):
            np.testing.assert_array_equal(getattr(table(), name)(given), fold.accumulate(given))


@pytest.mark.parametrize("dtype", [full("f32"), "i8"])
def test_sums_are_those_of_all_before_at_every_length(dtype):
    x = np.random.default_rng(4).integers(-9, 9, 131).astype(as_dtype(dtype).numpy)
    for n in (31, 33, 131):
        for reverse in (False, True):
            given = x[:n][::-1] if reverse else x[:n]
            expected = np.cumsum(given, dtype=np.int64)[:: -1 if reverse else 1]
            np.testing.assert_array_equal(table().cumsum(x[:n], reverse=reverse).astype(np.int64), expected)


@pytest.mark.parametrize(("by_pairs", "reverse"), each_value([True, False], [True, False]))
def test_sums_within_groups_are_right_at_every_length(monkeypatch, by_pairs, reverse):
    monkeypatch.setattr(variants, "has_fast_moves_in_blocks", lambda target: by_pairs)
    for n in (128, 129, 143, 191, 255, 323, 16_384 + 130):
        x = np.random.default_rng(n).integers(-9, 9, (2, n)).astype(np.float32)
        expected = np.cumsum(x[:, ::-1] if reverse else x, 1)[:, :: -1 if reverse else 1]
        for variant in ("scans", "whole_rows"):
            np.testing.assert_array_equal(computed("cumsum", x, "simd", variant, True, reverse=reverse), expected)


@pytest.mark.parametrize(("by_pairs", "reverse"), each_value([True, False], [True, False]))
def test_sums_of_a_group_may_overflow_where_the_running_sum_does_not(monkeypatch, by_pairs, reverse):
    monkeypatch.setattr(variants, "has_fast_moves_in_blocks", lambda target: by_pairs)
    for at in range(100, 116):  # three neighbours or more overflow, all four or all of the group do not
        x = np.zeros(300, np.float32)
        x[0], x[at : at + 4] = -3e38, (1.2e38, 1.2e38, 1.2e38, -3.3e38)
        given = x[::-1] if reverse else x
        found = computed("cumsum", given.copy(), "simd", "scans", True, reverse=reverse)[:: -1 if reverse else 1]
        np.testing.assert_array_equal(found, np.cumsum(x, dtype=np.float64).astype(np.float32))


@pytest.mark.parametrize(
    ("name", "reverse"),
    quick_of(product(["cumsum", "cummax", "cummin"], [True, False]), [("cumsum", True), ("cummax", False)]),
)
def test_rows_of_whole_groups_are_scanned_as_each_alone(monkeypatch, name, reverse):
    monkeypatch.setattr(variants, "has_fast_moves_in_blocks", lambda target: True)
    rng = np.random.default_rng(5)
    for rows, dim in ((1, 64), (67, 64), (34, 128)):
        plain = rng.normal(size=(rows, dim)).astype(np.float32)
        for at, value in ((0, 1), (rows - 1, np.nan), (0, -np.nan), (rows // 2, np.inf), (rows - 1, 3e38)):
            x = plain.copy()
            x[at, dim - 3 : dim - 1] = value
            together, alone = (
                computed(name, x, "simd", variant, True, reverse=reverse) for variant in ("scans", "whole_rows")
            )
            assert together.tobytes() == alone.tobytes()
            scalar = computed(name, x, "scalar", run_time_sizes=True, reverse=reverse)
            np.testing.assert_allclose(together, scalar, rtol=2e-6, atol=1e-5)


EXTREMES = [("f32", False), ("f16", True), ("bf16", False)]


@pytest.mark.parametrize(
    ("dtype", "reverse", "lengths"),
    [
        ("f32", True, (323,)),
        *(full(dtype, reverse, (128, 143, 16_384 + 130)) for dtype, reverse in EXTREMES),
    ],
)
@pytest.mark.full
def test_extremes_of_long_rows_have_the_bits_of_one_lane(monkeypatch, dtype, reverse, lengths):
    monkeypatch.setattr(variants, "has_fast_moves_in_blocks", lambda target: True)
    rng = np.random.default_rng(6)
    for n in lengths:
        x = np.round(rng.normal(size=(2, n))).astype(as_dtype(dtype).numpy) * -1  # with zeros of both signs
        for value in (None, np.inf, -np.inf, np.nan, -np.nan):
            given = x.copy()
            if value is not None:
                given[1, n // 2] = value
            for name in ("cummax", "cummin"):
                one, sixteen = (
                    computed(name, given, backend, run_time_sizes=True, reverse=reverse)
                    for backend in ("scalar", "simd")
                )
                assert one.tobytes() == sixteen.tobytes()


def test_a_long_sum_is_within_ten_roundings_of_its_elements():
    x = np.random.default_rng(1).random(LONG, np.float32)
    for given in (x, x - np.float32(0.5)):
        exact, most = np.cumsum(given, dtype=np.float64), np.cumsum(np.abs(given), dtype=np.float64)
        assert np.all(np.abs(table().cumsum(given) - exact) <= 10 * 2.0**-24 * most)


def test_a_running_sum_below_zero_takes_numbers_whose_own_sum_overflows():
    x = np.array([-3e38, 3e38, 3e38] + [0.0] * 130, np.float32)
    np.testing.assert_array_equal(table().cumsum(x), np.float32([-3e38, 0, 3e38] + [3e38] * 130))


def test_a_product_stays_zero_before_numbers_whose_own_product_overflows():
    x = np.array([0.0] + [1e300] * 20)
    np.testing.assert_array_equal(table().cumprod(x), np.zeros(21))


def test_any_view_is_scanned_along_any_axis():
    x = np.random.default_rng(2).integers(-9, 9, (6, 8, 10))[::2, ::-1].transpose(2, 0, 1)
    for axis in (0, 1, 2, -1):
        np.testing.assert_array_equal(table().cumsum(x, axis=axis), np.cumsum(x, axis))
        np.testing.assert_array_equal(table().cummin(x, axis=axis), np.minimum.accumulate(x, axis))


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
def test_references_agree_with_torch(name):
    torch = pytest.importorskip("torch")
    for sample in ops.get(name).samples():
        (x,), attrs = sample.inputs, dict(sample.attrs)
        if x.dtype.name not in ("float32", "float64", "int32", "int64") or attrs.pop("reverse", False) or "to" in attrs:
            continue
        found = getattr(torch, name)(
            torch.from_numpy(x.astype(np.float64) if x.dtype == np.float32 else x), attrs["axis"]
        )
        expected = (found if torch.is_tensor(found) else found.values).numpy()
        (ours,) = ops.get(name).reference((x,), sample.attrs)
        np.testing.assert_allclose(ours.astype(np.float64), expected.astype(np.float64), rtol=1e-9, atol=1e-9)
