"""Dtype groups, and the checks and rounding that shape rules, references and decompositions of several families share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from camshaft.dtypes import PARTS, DType, as_dtype, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.spec import TensorSpec

FLOATS = (f32, f64, f16, bf16)
SIGNED = (i8, i16, i32, i64)
UNSIGNED = (u8, u16, u32, u64)
NUMBERS = (*FLOATS, *SIGNED, *UNSIGNED)
EVERY = (*NUMBERS, boolean)
COMPLEX = tuple(PARTS)
# Tolerances of results that the attribute `to` rounds. Rounding error against the unrounded y: step^2 / 12 at a power of two,
# where steps are widest, and a tenth more.
TO_TOLERANCE = {"f32": 1e-12, "f16": 1.1 * 2.0**-20 / 12, "bf16": 1.1 * 2.0**-14 / 12}


def expect_tensor(op: str, spec: TensorSpec, dtypes: Iterable[DType] = (f32,)) -> None:
    """Raises ShapeError unless `spec` is a plain, non-empty tensor of one of `dtypes`. Only axis 0 may be an Extent."""
    allowed = tuple(dtypes)
    wanted = (
        f"a tensor of {' or '.join(d.name for d in allowed)} with no empty axis, and an Extent only as its first axis"
    )
    inner_extent = any(isinstance(d, Extent) for d in spec.shape[1:])
    fits = spec.is_plain and spec.dtype in allowed and len(spec.shape) >= 1 and not inner_extent
    ops.expect(fits and 0 not in spec.bounds, op, spec, wanted)


def same_dtype(op: str, specs: Sequence[TensorSpec], dtypes: Sequence[DType]) -> DType:
    """Returns the common dtype of all specs. ShapeError if they differ or it is not one of `dtypes`."""
    wanted = f"tensors of {', '.join(d.name for d in dtypes)}"
    for spec in specs:
        ops.expect(spec.is_plain and spec.dtype in dtypes, op, spec, wanted)
    names = {spec.dtype.name for spec in specs}
    ops.expect(len(names) == 1, op, tuple(specs), "operands of one dtype; cast them first")
    return as_dtype(specs[0].dtype)


def widened(x: ops.Array) -> ops.Array:
    """Converts floats to a wider type, so that a reference's result can be rounded correctly. Returns others unchanged."""
    if x.dtype.kind == "c":
        return x.astype(np.complex128 if x.dtype == np.complex64 else np.clongdouble)
    if x.dtype == np.float64:
        return x.astype(np.longdouble)
    return x.astype(np.float64) if as_dtype(x.dtype).is_float else x


def partly_active(full: ops.Sample, active: int, fixed: Sequence[int] = (), extent: str = "tokens") -> ops.Sample:
    """Returns the sample with its rows as an Extent, of which `active` are computed. Inputs in `fixed` have no rows."""
    rows = Extent(extent, next(len(a) for i, a in enumerate(full.inputs) if i not in fixed))
    specs = (
        TensorSpec(a.shape if i in fixed else (rows, *a.shape[1:]), as_dtype(a.dtype))
        for i, a in enumerate(full.inputs)
    )
    return replace(full, specs=tuple(specs), extents={rows: active})


def rounded(y: Any, dtype: DType) -> ops.Array:
    """Converts a reference's result for comparison: float64 for f32, otherwise rounded to `dtype`."""
    return np.asarray(y).astype(np.float64 if dtype == f32 else dtype.numpy)


def to_dtype(op: str, y: TensorSpec, attrs: ops.Attrs) -> TensorSpec:
    """Returns y in the dtype that the attribute `to` names: computed in f32, rounded once when it is stored. ShapeError for
    other dtypes than f32, f16 and bf16."""
    dtypes = {dtype.name: dtype for dtype in (f32, f16, bf16)}
    name = attrs.get("to", "f32")
    ops.expect(name in dtypes, op, f"to {name!r}", "to f32, f16 or bf16")
    return TensorSpec(y.shape, dtypes[name])


def in_f32(decompose: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a decomposition that casts 16-bit floats to f32, and its results back, so that they are rounded once."""

    def decomposed(f: Any, *tensors: Any, **attrs: Any) -> Any:
        dtype = as_dtype(tensors[-1].dtype)
        if dtype not in (f16, bf16):
            return decompose(f, *tensors, **attrs)
        found = decompose(f, *(f.cast(x, to="f32") if x.dtype == dtype else x for x in tensors), **attrs)
        if isinstance(found, tuple):
            return tuple(f.cast(y, to=dtype.name) for y in found)
        return f.cast(found, to=dtype.name)

    return decomposed
