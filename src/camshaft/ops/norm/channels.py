"""The checks and samples of norms of [N, C, ..] with a weight and a bias per channel."""

from __future__ import annotations

import numpy as np

from camshaft.dtypes import DType, as_dtype
from camshaft.ops import op as ops
from camshaft.ops.checks import FLOATS, expect_tensor
from camshaft.ops.spec import TensorSpec


def checked_channels(op: str, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> TensorSpec:
    """Returns x of the inputs x [N, C, ..], w [C] and b [C]. ShapeError for others, or an eps that is not above 0."""
    ops.expect(len(specs) == 3, op, specs, "x [N, C, ..], w [C], b [C]")
    x, *others = specs
    expect_tensor(op, x, FLOATS)
    ops.expect(len(x.shape) > 1, op, x, "x [N, C, ..]")
    for name, spec in zip("wb", others, strict=True):
        want = TensorSpec(x.shape[1:2], as_dtype(x.dtype))
        ops.expect(spec == want, op, spec, f"{name} of {want}")
    eps = attrs.get("eps", 1e-5)
    ops.expect(eps > 0, op, eps, "eps above 0")
    return x


def draw_channels(shape: tuple[int, ...], dtype: DType, mean: float = 0.0) -> tuple[ops.Array, ...]:
    """Normal x of that shape around the mean, w and b."""
    rng = np.random.default_rng(sum(shape))
    drawn = mean + rng.normal(size=shape), *(rng.normal(size=shape[1]) for _ in range(2))
    return tuple(a.astype(dtype.numpy) for a in drawn)
