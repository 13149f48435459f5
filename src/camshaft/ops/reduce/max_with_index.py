"""max_with_index: the largest element along an axis and its index, the first of equal ones; the first NaN where there is one.

Attributes: `axis` (-1 by default), `keepdims`, and `to`: the dtype of the index, i32 or i64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype, bf16, boolean, f32, f64, i8, u32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.parameters import KEEPDIMS, Attribute, Parameters
from camshaft.ops.reduce.argmax import index_spec
from camshaft.ops.spec import TensorSpec

PARAMETERS = Parameters("x", (Attribute("axis", "int", -1), KEEPDIMS, Attribute("to", "str", "i32")), results=2)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    axis = attrs.get("axis", -1)
    ops.expect(isinstance(axis, int), "max_with_index", f"axis {axis}", "an integer")
    ops.expect("nan_first" not in attrs, "max_with_index", "nan_first", "axis, keepdims and to")
    (index,) = index_spec("max_with_index", specs, attrs)
    return TensorSpec(index.shape, specs[0].dtype), index


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    (x,) = inputs
    axis, keepdims = attrs.get("axis", -1), bool(attrs.get("keepdims"))
    wide = x.astype(np.float64) if as_dtype(x.dtype).is_float else x
    index = np.expand_dims(wide.argmax(axis), axis)
    found = np.take_along_axis(x, index, axis), index.astype(np.int64 if attrs.get("to") == "i64" else np.int32)
    return found if keepdims else tuple(y.squeeze(axis) for y in found)


def _decompose(f: Any, x: Any, axis: int = -1, keepdims: bool = False, to: str = "i32") -> Any:
    return f.max(x, axes=axis, keepdims=keepdims), f.argmax(x, axis=axis, keepdims=keepdims, to=to)


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(27)
    for shape, axis in (((1,), 0), ((3, 33), -1), ((5, 17), 0)):
        yield ops.Sample(f"{shape}", (rng.integers(-9, 9, shape).astype(np.float32),), {"axis": axis})
    for dtype in (f64, bf16, i8, u32):
        yield ops.Sample(
            dtype.name, (rng.integers(0, 99, (3, 20)).astype(dtype.numpy),), {"keepdims": True, "to": "i64"}
        )
    odd = rng.normal(size=(3, 20)).astype(np.float32)
    odd[0, 5:7], odd[1], odd[2, 3] = np.nan, -np.inf, np.inf
    yield ops.Sample("NaN and infinities", (odd,))
    rows, x = Extent("rows", 16), rng.normal(size=(16, 33)).astype(np.float32)
    yield ops.Sample("7 of 16", (x,), {}, (TensorSpec((rows, 33), f32),), {rows: 7})


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x, x), {}, "wanted one tensor x")
    yield ops.ErrorSample((TensorSpec((8,), boolean),), {}, "wanted tensors of")
    yield ops.ErrorSample((x,), {"axis": 2}, "wanted axes from -2 to 1")
    yield ops.ErrorSample((x,), {"k": 2}, "wanted axis, keepdims")


OP = ops.Op(
    name="max_with_index",
    formula="y, i = max of x along an axis and the least i with x[i] = y",
    parameters=PARAMETERS,
    infer=_infer,
    reference=_reference,
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 0.0, "f64": 0.0},
    decompose=_decompose,
)
