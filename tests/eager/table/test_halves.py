"""Products of 16-bit floats through the table: computed in f32, rounded once to the operands' dtype by a launch of their own."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from camshaft import table
from camshaft.selection import override
from tests.support.quick import pairwise


@pytest.mark.parametrize(
    ("dtype", "shape", "backend"),
    pairwise([np.float16, ml_dtypes.bfloat16], [(3, 8, 5), (70, 64, 130)], ["simd", "blas"]),
)
def test_products_are_those_in_f32_rounded(dtype, shape, backend) -> None:
    m, k, n = shape
    rng = np.random.default_rng(4)
    # small whole numbers: exact in f32 whatever the order, so that only the rounding shows
    a, b = (rng.integers(-9, 10, size).astype(dtype) for size in ((m, k), (k, n)))
    wanted = (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)
    out = np.zeros((m, n), dtype)
    with override.backend(backend):
        for _ in range(3):
            got = table().matmul(a, b)
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(got, wanted)
            assert table().matmul(a, b, out=out) is out
            np.testing.assert_array_equal(out, wanted)
