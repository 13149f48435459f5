"""floor_divide and remainder of floats give NumPy's bits: signs of zero, infinities, quotients at the end of the mantissa."""

import ml_dtypes
import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.registry import device
from camshaft.dtypes import as_dtype
from camshaft.ops.op import NodeSpec
from camshaft.ops.spec import TensorSpec
from camshaft.validation.run import run_variant

SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 1e-40, -1e-40, 7.0, 8388609.0, -8388607.0, np.inf, -np.inf, np.nan)
# dtype: bits of the mantissa, bits as an integer
DTYPES = {
    np.dtype(np.float32): (24, np.uint32),
    np.dtype(np.float64): (53, np.uint64),
    np.dtype(np.float16): (11, np.uint16),
    np.dtype(ml_dtypes.bfloat16): (8, np.uint16),
}


def pairs(dtype, mantissa, n=300):
    """Every pair of special values; then quotients of 2^3 and around 2^mantissa, half of them nearly whole."""
    rng = np.random.default_rng(1)
    a, b = (x.ravel() for x in np.meshgrid(SPECIAL, SPECIAL))
    found = [(a.astype(dtype), b.astype(dtype))]
    for exponent in (3, *range(mantissa - 3, mantissa + 2)):
        by = (rng.normal(size=n) * np.exp(rng.normal(size=n))).astype(dtype)
        wide = by.astype(np.float64)
        quotient = rng.uniform(2.0**exponent / 2, 2.0**exponent, n) * rng.choice([1, -1], n)
        found += [((wide * q).astype(dtype), by) for q in (quotient, np.round(quotient))]
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", ["simd", pytest.param("cpu:c", marks=pytest.mark.full)])
def test_bits_are_those_of_numpy(backend, dtype) -> None:
    mantissa, integer = DTYPES[dtype]
    with np.errstate(all="ignore"):
        inputs = pairs(dtype, mantissa)
        for name in ("floor_divide", "remainder"):
            op, specs = ops.get(name), tuple(TensorSpec(x.shape, as_dtype(dtype)) for x in inputs)
            node = NodeSpec(specs, op.outputs(specs, {}), {})
            (got,), wanted = run_variant(op.variants[0], node, device(backend), inputs, {}), getattr(np, name)(*inputs)
            nan = np.isnan(wanted.astype(np.float64))
            np.testing.assert_array_equal(np.isnan(got.astype(np.float64)), nan, err_msg=name)
            np.testing.assert_array_equal(got.view(integer)[~nan], wanted.view(integer)[~nan], err_msg=name)
