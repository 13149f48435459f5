"""The table's reductions against NumPy where the ops stop: no elements, booleans, means of integers, axes of any kind."""

from __future__ import annotations

import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest

from camshaft import table
from camshaft.errors import CamshaftError
from tests.support.quick import each_value

REDUCTIONS = ("sum", "mean", "prod", "max", "min", "argmax", "argmin")
SHAPES = ((), (3,), (0,), (2, 3), (0, 3), (3, 0))
AXES = (None, 0, -1, 1, (0,), (0, 1), (0, 0), np.int64(0), "a", 1.0, 5)


def outcome(function: Any, x: np.ndarray, **attrs: Any) -> Any:
    """The result, or the error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(function(x, **attrs))
    except (ValueError, TypeError) as error:
        return error


@pytest.mark.parametrize(("name", "dtype"), each_value(REDUCTIONS, [np.bool_, np.int8, np.float32]))
def test_any_shape_and_axis_as_numpy_has_them(name: str, dtype: Any) -> None:
    for shape in SHAPES:
        x = (np.arange(np.prod(shape, dtype=int)) % 3).reshape(shape).astype(dtype)
        for axis in AXES:
            attrs = {"axis": axis, "keepdims": bool(axis == 0)}
            wanted, got = outcome(getattr(np, name), x, **attrs), outcome(getattr(table(), name), x, **attrs)
            what = f"{shape} over {axis!r}: {got!r}, wanted {wanted!r}"
            if isinstance(wanted, Exception):
                allowed = not shape and axis in (0, -1)  # NumPy's sum takes those, its mean does not
                kinds = tuple(k for k in (IndexError, ValueError, TypeError) if isinstance(wanted, k))
                assert allowed or (isinstance(got, kinds) and isinstance(got, CamshaftError)), what
                continue
            assert getattr(got, "dtype", None) == wanted.dtype, what
            np.testing.assert_array_equal(got, wanted, what)


def test_axes_that_change_after_a_call() -> None:
    x, axes = np.ones((2, 3, 4), np.float32), [0]
    for _ in range(3):
        assert table().sum(x, axis=axes).shape == (3, 4)
    axes[0] = 2
    assert table().sum(x, axis=axes).shape == (2, 3)


def test_attributes_that_say_too_much_or_are_no_numbers() -> None:
    x = np.ones((2, 3), np.float32)
    with pytest.raises(TypeError, match="takes axis or axes; got both"):
        table().sum(x, axis=0, axes=0)
    with pytest.raises(TypeError, match="axis is a ndarray; wanted numbers, text or a tuple"):
        table().sum(x, axis=np.array([0]))
    with pytest.raises(TypeError, match="where: got an array of float32; wanted booleans"):
        table().add(x, x, where=x)
    with pytest.raises(TypeError, match="add\\(\\) got an unexpected keyword argument 'axes'"):
        table().add(x, x, axes=[0])
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        table().mean(x > 0, depth=1)


def test_out_of_a_reduction_that_numpy_casts() -> None:
    x, out = np.array([[True, False], [False, False]]), np.ones(2, bool)
    assert table().max(x, axis=1, out=out) is out
    assert out.tolist() == [True, False]
    with pytest.raises(TypeError, match="Cannot cast ufunc 'mean' output"):
        table().mean(x, axis=1, out=out)
    with pytest.raises(ValueError, match="wanted \\(2,\\)"):
        table().mean(x, axis=1, out=np.ones(3))


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.uint32])
def test_products_of_narrow_integers_wrap_as_numpys(dtype: Any) -> None:
    a = (np.arange(51) * 50).reshape(3, 17).astype(dtype)
    b = (np.arange(85) * 70).reshape(17, 5).astype(dtype)
    got = table().matmul(a, b)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, a @ b)


@pytest.mark.full
def test_comparisons_never_compare_truths() -> None:
    huge, signed = np.array([0, 5, 2**64 - 1], np.uint64), np.array([0, -5, -1])
    days = np.array(["2020-01-01", "2020-01-02"], "M8[D]")
    for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        compare = getattr(table(), name)
        for a, b in ((huge, signed), (signed, huge), (signed, 1j), (days, days[::-1])):
            with pytest.raises(TypeError, match=f"{name}: no kernel compares .* exactly"):
                compare(a, b)
        np.testing.assert_array_equal(compare(huge, np.uint32(5)), getattr(np, name)(huge, np.uint32(5)))
        truths = np.array([True, False])
        np.testing.assert_array_equal(compare(truths, truths[::-1]), getattr(np, name)(truths, truths[::-1]))
    np.testing.assert_array_equal(table().logical_and(huge, signed), np.logical_and(huge, signed))


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_an_empty_axis_has_no_extreme_though_the_result_is_empty(name: str) -> None:
    x = np.zeros((0, 3, 0), np.float32)
    for function in (getattr(np, name), getattr(table(), name)):
        assert function(x, axis=1).shape == (0, 0)
        with pytest.raises(ValueError, match=r"no identity|of an empty sequence"):
            function(x, axis=2)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_first_nan_is_the_extreme_as_in_numpy(name: str) -> None:
    x = np.random.default_rng(3).normal(size=(5, 70)).astype(np.float32)
    x[0, 40:43], x[1], x[2, 69] = np.nan, np.nan, np.nan
    for axis in (0, 1, None):
        got, wanted = getattr(table(), name)(x, axis=axis), getattr(np, name)(x, axis=axis)
        np.testing.assert_array_equal(got, wanted)
        assert got.dtype == wanted.dtype == np.int64
    out = np.zeros(5, np.int64)
    assert getattr(table(), name)(x, axis=1, out=out) is out
    np.testing.assert_array_equal(
        getattr(table(), name)(x, axis=1, nan_first=False)[2:], getattr(np, "nan" + name)(x[2:], axis=1)
    )


def test_transposed_arrays_reduce_where_they_lie() -> None:
    """Of 2^20 elements in another order of axes no copy is made: no such memory is taken."""
    x = np.ones((1024, 1024), np.float32)
    table().sum(x.T)
    tracemalloc.start()
    for axis in (None, 0, -1):
        got = table().sum(x.T, axis=axis)
        np.testing.assert_array_equal(got, np.sum(x.T, axis=axis))
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < x.nbytes // 4


def test_permuted_axes_as_numpy_has_them() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (3, 5, 33, 70)).astype(np.float32)
    views = [x.transpose(2, 0, 3, 1), x.T, x.transpose(3, 2, 1, 0)[::-1], np.swapaxes(x, 2, 3)[..., ::2]]
    for view in views:
        for axis in (None, 0, -1, (1, 3), (2, 0, 1)):
            for keepdims in (False, True):
                for name in ("sum", "max", "mean") if isinstance(axis, tuple) else REDUCTIONS[:2] + REDUCTIONS[3:]:
                    wanted = getattr(np, name)(view, axis=axis, keepdims=keepdims)
                    got = getattr(table(), name)(view, axis=axis, keepdims=keepdims)
                    np.testing.assert_allclose(got, wanted, 1e-5, 1e-5, err_msg=f"{name} {view.strides} {axis}")
                    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean"])
def test_every_axis_is_reduced_where_none_is_named(name: str) -> None:
    """Also of arrays that builtins leave to Python: of many elements, and not aligned."""
    record = np.ones((5, 4, 3), [("flag", "u1"), ("value", np.float32)])
    for x in (np.ones((300, 300), np.float32).T, record["value"], np.ones((300, 600))[:, ::2]):
        for attrs in ({}, {"keepdims": True}):
            wanted = getattr(np, name)(x, **attrs)
            np.testing.assert_array_equal(getattr(table(), name)(x, **attrs), wanted, strict=True)
