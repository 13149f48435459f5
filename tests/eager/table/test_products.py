"""The table's products beside NumPy's: vectors, batches, empty matrices, errors; attributes by keyword; 16-bit floats."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from camshaft import table
from camshaft.errors import CamshaftError

F32 = np.float32
RNG = np.random.default_rng(8)


def draw(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(F32)


MATMULS = [
    ((3,), (3,)),
    ((3,), (3, 5)),
    ((2, 3), (3,)),
    ((4, 2, 3), (3,)),
    ((2, 1, 2, 3), (4, 3, 5)),
    ((0, 3), (3, 5)),
    ((2, 0), (0, 5)),
    ((4, 2, 3), (3, 0)),
]


@pytest.mark.parametrize(("left", "right"), MATMULS)
@pytest.mark.parametrize("dtype", [F32, np.float16])
def test_products_of_vectors_batches_and_nothing(left: Any, right: Any, dtype: Any) -> None:
    a, b = draw(*left).astype(dtype), draw(*right).astype(dtype)
    got, wanted = table().matmul(a, b), np.matmul(a, b)
    assert (type(got), got.shape, got.dtype) == (type(wanted), wanted.shape, wanted.dtype)
    np.testing.assert_allclose(got, wanted, rtol=1e-2 if dtype != F32 else 1e-5, atol=1e-2 if dtype != F32 else 1e-6)
    if wanted.ndim:
        out = np.full(wanted.shape, np.nan, dtype)
        assert table().matmul(a, b, out=out) is out
        np.testing.assert_array_equal(out, got)


@pytest.mark.parametrize(
    ("left", "right", "out"),
    [
        ((2, 3), (4, 5), None),
        ((3,), (4, 5), None),
        ((), (4, 5), None),
        ((2, 2, 3), (3, 3, 5), None),
        ((2, 3), (3, 5), (2, 4)),
        ((2, 3), (3, 5), (3, 4)),
    ],
)
def test_products_that_do_not_fit_are_refused_in_numpys_words(left: Any, right: Any, out: Any) -> None:
    a, b = draw(*left) if left else np.float32(1), draw(*right)
    given = {} if out is None else {"out": np.empty(out, F32)}
    with pytest.raises(ValueError) as theirs:  # noqa: PT011 - its text is compared
        np.matmul(a, b, **given)
    with pytest.raises(CamshaftError) as ours:
        table().matmul(a, b, **given)
    assert isinstance(ours.value, ValueError)
    assert str(ours.value) == str(theirs.value)


def test_a_product_into_its_own_operand() -> None:
    a = draw(6, 6)
    wanted = a @ a
    assert table().matmul(a, a, out=a) is a
    np.testing.assert_allclose(a, wanted, rtol=1e-4, atol=1e-5)


def test_attributes_by_keyword_and_unknown_ones() -> None:
    x, w = draw(3, 8), draw(8)
    wanted = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w
    out = np.empty_like(x)
    assert table().rms_norm(x, w, eps=1e-5, out=out) is out
    np.testing.assert_allclose(out, wanted, rtol=1e-4)
    with pytest.raises(TypeError, match=r"softmax\(\) got an unexpected keyword argument 'axes_'"):
        table().softmax(x, axes_=1)
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'where'"):
        table().matmul(x, x.T, where=True)


def test_16_bit_floats_that_an_op_does_not_take_are_computed_in_f32() -> None:
    x = draw(3, 8).astype(ml_dtypes.bfloat16)
    got = table().softmax(x)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, table().softmax(x.astype(F32)).astype(x.dtype))
