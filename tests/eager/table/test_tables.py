"""The dispatch table: every op on arrays, under each override, frozen."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.blas.library import openblas_path
from camshaft.backends.cpu.device import counts
from camshaft.eager.tables import DispatchTable, table
from camshaft.errors import ShapeError
from camshaft.selection.override import backend, set_backend_override

RNG = np.random.default_rng(3)
BACKENDS = ["scalar", "simd", pytest.param("blas", marks=pytest.mark.skipif(openblas_path() is None, reason="no BLAS"))]


def draw(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("name", BACKENDS)
def test_ops_on_arrays_agree_with_numpy(name: str) -> None:
    a, b, w = draw(5, 17), draw(17, 33), draw(33)
    with backend(name):
        product = table().matmul(a, b)
        np.testing.assert_allclose(product, a @ b, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(table().add(product, product), 2 * product, rtol=1e-6)
        norm = table().rms_norm(product, w, eps=1e-6)
    wanted = product / np.sqrt((product**2).mean(-1, keepdims=True) + 1e-6) * w
    np.testing.assert_allclose(norm, wanted, rtol=1e-4, atol=1e-6)


def test_16_bit_inputs_are_taken_as_they_are() -> None:
    a, b = draw(3, 20), draw(9, 20).astype(ml_dtypes.bfloat16)
    product = table().matmul(a, b, transpose_b=True)
    assert product.dtype == np.float32
    np.testing.assert_allclose(product, a @ b.astype(np.float32).T, rtol=1e-4, atol=1e-5)


def test_strided_and_array_like_inputs() -> None:
    a, b = draw(17, 5), draw(17, 33)
    np.testing.assert_allclose(table().matmul(a.T, b), a.T @ b, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(table().add(memoryview(a), a), a + a)


def test_a_call_is_compiled_once_and_its_result_is_fresh() -> None:
    a = draw(4, 18)
    first = table().add(a, a)
    before = counts.compiled + counts.loaded
    second = table().add(a, a)
    assert counts.compiled + counts.loaded == before
    assert not np.shares_memory(first, second)


def test_wrong_shapes_are_worded_as_numpy_does() -> None:
    with pytest.raises(ShapeError, match=r"matmul: Input operand 1 has a mismatch.*\(size 5 is different from 4\)"):
        table().matmul(draw(3, 4), draw(5, 6))


def test_every_op_with_a_variant_or_of_others_is_there() -> None:
    for op in ops.all_ops():
        assert (op.name in table().ops) == (bool(op.variants) or ops.is_composite(op))
    with pytest.raises(AttributeError, match="no op 'marmul'"):
        _ = table().marmul


def test_in_place_inputs_must_be_the_callers_own() -> None:
    op = ops.get("kv_cache_update") if "kv_cache_update" in ops.NAMES else None
    if op is None:
        return
    with pytest.raises(ShapeError, match="is written in place"):
        table().kv_cache_update([[0.0]], [[0.0]])


def test_a_table_is_frozen_and_one_per_override() -> None:
    free = table()
    with pytest.raises(AttributeError, match="frozen"):
        free.matmul = None  # type: ignore[assignment]
    with pytest.raises(AttributeError, match="frozen"):
        del free.matmul
    with backend("scalar"):
        scalar = table()
        assert scalar is table() is table("scalar")
        assert scalar is not free
    set_backend_override("scalar")
    assert table() is scalar
    assert isinstance(free, DispatchTable)
    assert free.override is None
    assert free.choice("matmul", draw(2, 8), draw(8, 2)).backend != "scalar"
    assert scalar.choice("matmul", draw(2, 8), draw(8, 2)).backend == "scalar"
