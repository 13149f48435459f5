"""LLVM's types and literals, and Rep: the form of a value, with the known pattern of an index."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from camshaft.dtypes import DType, bf16, f16, f32, i64, u8, u16

_TYPES = {
    "f16": "half",
    "bf16": "bfloat",
    "f32": "float",
    "f64": "double",
    "i8": "i8",
    "u8": "i8",
    "i16": "i16",
    "u16": "i16",
    "i32": "i32",
    "u32": "i32",
    "i64": "i64",
    "u64": "i64",
    "bool": "i1",
}


def scalar_type(dtype: DType) -> str:
    """LLVM's type of one element."""
    return _TYPES[dtype.name]


def vector_type(dtype: DType, n: int) -> str:
    """LLVM's type of a vector of n elements, or of one element if n is 0 or 1."""
    return f"<{n} x {_TYPES[dtype.name]}>" if n > 1 else _TYPES[dtype.name]


def memory_dtype(dtype: DType) -> DType:
    """Return the dtype of an array's elements in memory: i8 for booleans (i1 as values); the bits of f16 and bf16.

    (On a CPU without half, LLVM would keep one in an f32 and call functions to narrow it again.)
    """
    if dtype in (f16, bf16):
        return u16
    return u8 if dtype.kind == "b" else dtype


def suffix(dtype: DType, n: int = 0) -> str:
    """A type in an intrinsic's name: f32, v8i16."""
    return (f"v{n}" if n else "") + dtype.name.replace("u", "i")


def array_name(name: str) -> str:
    """The name of an array's pointer. The prefix keeps it apart from other values."""
    return f"%array.{name}"


def literal(value: float | int | bool, dtype: DType) -> str:
    """An LLVM constant. Floats are given by their bits as a double."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.is_float:
        with np.errstate(over="ignore"):  # a number past the largest f32 is infinity
            exact = float(np.float32(value)) if dtype == f32 else float(value)
        return f"0x{struct.unpack('>Q', struct.pack('>d', exact))[0]:016X}"
    return str(int(value))


def iota(n: int, dtype: DType = i64) -> str:
    """The constant 0, 1, ..., n - 1."""
    if n == 1:
        return literal(0, dtype)
    element = scalar_type(dtype)
    return "<" + ", ".join(f"{element} {literal(i, dtype)}" for i in range(n)) + ">"


@dataclass(frozen=True)
class Affine:
    """An index per lane: base + coefficient * (lane // divisor)."""

    base: Rep
    coefficient: int
    divisor: int = 1

    @property
    def is_contiguous(self) -> bool:
        """Whether the index grows by one from lane to lane."""
        return self.coefficient == 1 and self.divisor == 1


class Rep(NamedTuple):
    """A value in LLVM IR. `n`: number of elements (0: a scalar). An integer is a multiple of `multiple` (0: it is zero)."""

    name: str
    n: int = 0
    multiple: int = 1
    constant: int | None = None
    affine: Affine | None = None

    @property
    def is_scalar(self) -> bool:
        return self.n == 0 and self.affine is None


def integer(value: int) -> Rep:
    """A constant i64."""
    return Rep(str(value), multiple=abs(value), constant=value)
