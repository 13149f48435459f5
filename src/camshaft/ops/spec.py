"""TensorSpec: the shape, dtype and layout of a tensor, for shape rules and plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from operator import index
from typing import Any, TypeAlias, cast

from camshaft.dtypes import DType, u8
from camshaft.errors import ArrayMemoryError, ShapeError
from camshaft.extent import Extent
from camshaft.formats.blocks import BlockFormat

Dim: TypeAlias = int | Extent
ALIGNMENT = 64
# Bytes of a tensor: its sizes and those of its padding fit i64.
MOST_NBYTES = 1 << 60


def bound(dim: Dim) -> int:
    """Returns the size of a dimension, or the upper bound of an Extent."""
    return dim.bound if isinstance(dim, Extent) else dim


@dataclass(frozen=True)
class Part:
    """A typed, row-major array inside a tensor's bytes, which a kernel can access. `shape` has the bounds of Extents."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset_nbytes: int

    @cached_property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.nbytes


@dataclass(frozen=True)
class Layout:
    """A tensor's layout in memory. `parts` returns its arrays in order as (name, dtype, shape); each is 64-byte aligned.

    `numbers(bytes, spec)`, if given, decodes the bytes to a float64 array. It is used to compare with a reference that
    returns numbers instead of bytes."""

    name: str
    parts: Callable[[TensorSpec], tuple[tuple[str, DType, tuple[int, ...]], ...]]
    numbers: Callable[[Any, TensorSpec], Any] | None = None


def _row_major(spec: TensorSpec) -> tuple[tuple[str, DType, tuple[int, ...]], ...]:
    if isinstance(spec.dtype, DType):
        return (("data", spec.dtype, spec.bounds),)
    rows, columns = prod(spec.bounds[:-1]), spec.bounds[-1]
    return (("data", u8, (rows, columns // spec.dtype.block_size * spec.dtype.block_nbytes)),)


ROWS = Layout("rows", _row_major)


def dims(what: str, shape: object) -> tuple[Dim, ...]:
    """Returns a caller's shape as a tuple. ShapeError unless it is a sequence of integers >= 0 and Extents."""
    try:
        found = tuple(
            d if isinstance(d, Extent) else -1 if isinstance(d, bool) else index(d) for d in cast(Iterable[Any], shape)
        )
    except TypeError:
        found = (-1,)
    if any(not isinstance(d, Extent) and d < 0 for d in found):
        raise ShapeError(f"{what}: got the shape {shape!r}; wanted a list of integers, 0 or more, and Extents")
    return found


@dataclass(frozen=True)
class TensorSpec:
    """The shape (integers and Extents), dtype (an element type or a block format) and memory layout of a tensor."""

    shape: tuple[Dim, ...]
    dtype: DType | BlockFormat
    layout: Layout = ROWS

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """The shape with every Extent at its bound."""
        return tuple(bound(d) for d in self.shape)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The arrays inside this tensor, with their offsets."""
        parts, offset = [], 0
        for name, dtype, shape in self.layout.parts(self):
            part = Part(name, dtype, shape, offset)
            parts.append(part)
            offset = -(-(offset + part.nbytes) // ALIGNMENT) * ALIGNMENT
        return tuple(parts)

    def part(self, name: str) -> Part:
        """Returns the part with that name. ShapeError if the layout has none."""
        for part in self.parts:
            if part.name == name:
                return part
        raise ShapeError(f"a tensor in layout {self.layout.name} has no part {name!r}")

    @cached_property
    def nbytes(self) -> int:
        """The size in bytes with every Extent at its bound, without padding after the last part."""
        last = self.parts[-1]
        return last.offset_nbytes + last.nbytes

    @property
    def is_plain(self) -> bool:
        """Whether it is an ordinary row-major array."""
        return self.layout is ROWS and isinstance(self.dtype, DType)

    def __repr__(self) -> str:
        return f"TensorSpec({self})"

    def __str__(self) -> str:
        dims = ", ".join(f"{d.name}<={d.bound}" if isinstance(d, Extent) else str(d) for d in self.shape)
        suffix = "" if self.layout is ROWS else f" {self.layout.name}"
        return f"{self.dtype.name}[{dims}]{suffix}"


def expect_addressable(what: str, specs: Iterable[TensorSpec]) -> None:
    """ArrayMemoryError for a tensor that no memory can have."""
    for spec in specs:
        if spec.nbytes > MOST_NBYTES:
            raise ArrayMemoryError(f"{what}: got {spec} of {spec.nbytes} bytes; wanted at most {MOST_NBYTES}")
