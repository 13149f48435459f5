"""How the LLVM emitter holds a value: its name, its form, and what is known of an index."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import gcd

import numpy as np

from camshaft.dtypes import DType, bf16, f16, f32, u8, u16

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
    """LLVM's name of an element type."""
    return _TYPES[dtype.name]


def vector_type(dtype: DType, n: int) -> str:
    """LLVM's name of a vector of n, or of the element itself where n is 0 or 1."""
    return f"<{n} x {_TYPES[dtype.name]}>" if n > 1 else _TYPES[dtype.name]


def memory_dtype(dtype: DType) -> DType:
    """Return the type of an array's elements in memory: i8 for booleans (i1 as values); the bits of f16 and bf16.

    (LLVM would keep a half in an f32 where the CPU has no such type, and call functions to narrow it again.)
    """
    if dtype in (f16, bf16):
        return u16
    return u8 if dtype.kind == "b" else dtype


def array_name(name: str) -> str:
    """An array's pointer in LLVM: a prefix of its own, so that no parameter is mistaken for another value."""
    return f"%array.{name}"


def literal(value: float | int | bool, dtype: DType) -> str:
    """A constant as LLVM spells it: floats by their bits as a double."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.is_float:
        exact = float(np.float32(value)) if dtype == f32 else float(value)
        return f"0x{struct.unpack('>Q', struct.pack('>d', exact))[0]:016X}"
    return str(int(value))


@dataclass(frozen=True)
class Affine:
    """An index by lane: base + coefficient * (lane // divisor)."""

    base: Rep
    coefficient: int
    divisor: int = 1

    @property
    def is_contiguous(self) -> bool:
        """Whether each lane's index is one more than the last one's."""
        return self.coefficient == 1 and self.divisor == 1


@dataclass(frozen=True)
class Rep:
    """A value in LLVM. `n` elements (0: scalar); `multiple`: the integer is known to be a multiple of it (0: it is zero)."""

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


def common_multiple(a: int, b: int) -> int:
    """Return a number that divides the sum of a multiple of a and a multiple of b (0 represents zero itself)."""
    return gcd(a, b)
