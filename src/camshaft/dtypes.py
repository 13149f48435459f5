"""DType: the element types of tensors and kernel values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from camshaft.errors import ShapeError


@dataclass(frozen=True)
class DType:
    """An element type. `kind`: 'f' float, 'i' signed, 'u' unsigned, 'b' boolean, 'c' complex; `nbytes`: the size in memory."""

    name: str
    kind: str
    nbytes: int
    numpy: np.dtype[Any] = field(compare=False, repr=False)

    @property
    def bits(self) -> int:
        return self.nbytes * 8

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    def __repr__(self) -> str:
        return self.name


f16 = DType("f16", "f", 2, np.dtype(np.float16))
bf16 = DType("bf16", "f", 2, np.dtype(ml_dtypes.bfloat16))
f32 = DType("f32", "f", 4, np.dtype(np.float32))
f64 = DType("f64", "f", 8, np.dtype(np.float64))
i8 = DType("i8", "i", 1, np.dtype(np.int8))
i16 = DType("i16", "i", 2, np.dtype(np.int16))
i32 = DType("i32", "i", 4, np.dtype(np.int32))
i64 = DType("i64", "i", 8, np.dtype(np.int64))
u8 = DType("u8", "u", 1, np.dtype(np.uint8))
u16 = DType("u16", "u", 2, np.dtype(np.uint16))
u32 = DType("u32", "u", 4, np.dtype(np.uint32))
u64 = DType("u64", "u", 8, np.dtype(np.uint64))
boolean = DType("bool", "b", 1, np.dtype(np.bool_))

DTYPES: dict[str, DType] = {d.name: d for d in (f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, boolean)}
# Complex dtypes and those of their parts: real and imaginary part lie side by side. Kernels see them as pairs.
complex64 = DType("complex64", "c", 8, np.dtype(np.complex64))
complex128 = DType("complex128", "c", 16, np.dtype(np.complex128))
PARTS = {complex64: f32, complex128: f64}
NAMED = DTYPES | {d.name: d for d in PARTS}
_BY_NUMPY: dict[np.dtype[Any], DType] = {d.numpy: d for d in NAMED.values()}


def as_dtype(value: object) -> DType:
    """Convert a DType, its name, a NumPy dtype or anything that `numpy.dtype` accepts. Raises ShapeError for other values."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in NAMED:
        return NAMED[value]
    try:
        if value is None:  # NumPy's f64
            raise TypeError
        return _BY_NUMPY[np.dtype(value)]  # type: ignore[call-overload]
    except (TypeError, KeyError, ValueError):
        raise ShapeError(f"no dtype {value!r}; wanted one of {', '.join(NAMED)}") from None
