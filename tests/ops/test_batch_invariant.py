"""batch_invariant_matmul: a row has the same bits alone, beside others, and in an Extent that is partly active."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.registry import device
from camshaft.ops.checks import partly_active
from camshaft.ops.op import Sample
from camshaft.validation.run import run_variant
from camshaft.validation.validate import node_of
from tests.support.quick import each_value

OP = ops.get("batch_invariant_matmul")


@pytest.mark.parametrize(
    ("where", "dtype"), each_value(["simd", "scalar"], [np.float16, ml_dtypes.bfloat16, np.float32])
)
def test_a_row_has_the_bits_that_it_has_alone(where: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x = (100 * rng.normal(size=(17, 45))).astype(np.float32)
    w = rng.normal(size=(33, 45)).astype(dtype)

    def bits(sample: Sample) -> np.ndarray:
        found = run_variant(OP.variants[0], node_of(OP, sample), device(where), sample.inputs, sample.extents)
        return np.asarray(found[0]).reshape(-1).view(np.uint32)

    alone = np.stack([bits(Sample("alone", (row[None].copy(), w))) for row in x])
    for n in (2, 3, 6, 8, 17):
        np.testing.assert_array_equal(bits(Sample("beside", (x[:n].copy(), w))), alone[:n].reshape(-1))
    some = partly_active(Sample("some", (x, w)), 3, fixed=(1,), extent="rows")
    np.testing.assert_array_equal(bits(some)[: 3 * len(w)], alone[:3].reshape(-1))
