"""unique: the different values of a tensor, in order, with how often each is there, and their number.

The number depends on the values, and shapes must not: `values` and `counts` have as many elements as x. After the first `number`
of them, the last value is repeated with the count 0. NaNs count as one value, as do -0 and 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype, boolean, f32, f64, i8, i32, u32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.checks import NUMBERS, same_dtype
from camshaft.ops.parameters import Parameters
from camshaft.ops.sort.samples import draw, odd_rows
from camshaft.ops.spec import TensorSpec


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1 and not attrs, "unique", (*specs, *attrs), "one tensor x")
    dtype, x = same_dtype("unique", specs, NUMBERS), specs[0]
    fixed = 0 not in x.bounds and not any(isinstance(d, Extent) for d in x.shape)
    ops.expect(fixed, "unique", x, "no empty axis and no Extent")
    n = prod(x.bounds)
    return TensorSpec((n,), dtype), TensorSpec((n,), i32), TensorSpec((), i32)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    (x,) = inputs
    found, counts = np.unique(x.astype(np.float64) if as_dtype(x.dtype).is_float else x, return_counts=True)
    missing = (0, x.size - len(found))
    values = np.pad(found, missing, mode="edge").astype(x.dtype)
    return values, np.pad(counts, missing).astype(np.int32), np.array(len(found), np.int32)


def _decompose(f: Any, x: Any) -> Any:
    n = prod(x.spec.bounds)
    ordered = f.sort(x.reshape((n,)))
    group = f.argsort(ordered[:1])  # 0
    if n > 1:
        differs = f.not_equal(ordered[1:], ordered[:-1])
        if as_dtype(x.dtype).is_float:
            differs = f.logical_and(differs, f.logical_not(f.isnan(ordered[:-1])))
        group = f.concat(group, f.cumsum(f.cast(differs, to="i32"), to="i32"))
    start, end = (f.searchsorted(group, np.arange(n, dtype=np.int32), side=side) for side in ("left", "right"))
    values = f.gather(ordered, f.minimum(start, np.full(n, n - 1, np.int32)))
    return values, end - start, f.max(group) + 1


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(6)
    for shape in ((1,), (17,), (3, 33)):
        yield ops.Sample(f"{shape}", (draw(rng, f32, shape),))
    for dtype in (f64, i8, u32):
        yield ops.Sample(dtype.name, (draw(rng, dtype, (100,)),))
    yield ops.Sample("all equal", (np.full(20, 3, np.int32),))
    yield ops.Sample("NaN, infinities and zeros", (odd_rows(rng),))


def _error_samples() -> Iterable[ops.ErrorSample]:
    yield ops.ErrorSample((TensorSpec((2, 8), f32),) * 2, {}, "wanted one tensor x")
    yield ops.ErrorSample((TensorSpec((8,), boolean),), {}, "wanted tensors of")
    yield ops.ErrorSample((TensorSpec((0,), f32),), {}, "wanted no empty axis")
    yield ops.ErrorSample((TensorSpec((Extent("n", 8),), f32),), {}, "wanted no empty axis and no Extent")


OP = ops.Op(
    name="unique",
    formula="values, counts, number: the different values of x in order, padded to x's size with counts of 0",
    parameters=Parameters("x", results=3),
    infer=_infer,
    reference=_reference,
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 0.0, "f64": 0.0},
    decompose=_decompose,
)
