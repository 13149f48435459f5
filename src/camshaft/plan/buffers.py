"""Buffers of a plan and their parts: what thunks use."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

from camshaft.backends.device import HOST
from camshaft.errors import PlanError


class Lifetime(enum.Enum):
    """How long a buffer's bytes matter. Only TEMP is planned into the arena."""

    CONSTANT = "constant"
    STATE = "state"
    IO = "io"
    TEMP = "temp"


@dataclass(frozen=True, eq=False, slots=True)
class Buffer:
    """An allocation, compared by identity. `alignment` is a power of two in bytes; `space` is HOST for process memory, else a
    device's name."""

    name: str
    nbytes: int
    lifetime: Lifetime
    alignment: int = 64
    space: str = HOST

    def __post_init__(self) -> None:
        if self.nbytes < 0:
            raise PlanError(f"buffer {self.name!r} got nbytes {self.nbytes}; wanted 0 or more")
        if self.alignment < 1 or self.alignment & (self.alignment - 1):
            raise PlanError(f"buffer {self.name!r} got alignment {self.alignment}; wanted a power of two")

    def slice(self, offset: int = 0, nbytes: int | None = None) -> BufferSlice:
        """Bytes [offset, offset + nbytes) of this buffer; all that follows `offset` when nbytes is None."""
        return BufferSlice(self, offset, self.nbytes - offset if nbytes is None else nbytes)


@dataclass(frozen=True, slots=True)
class BufferSlice:
    """Bytes [offset, offset + nbytes) of a buffer. Raises PlanError if out of bounds."""

    buffer: Buffer
    offset: int
    nbytes: int

    def __post_init__(self) -> None:
        if self.offset < 0 or self.nbytes < 0 or self.end > self.buffer.nbytes:
            raise PlanError(
                f"slice [{self.offset}, {self.end}) of buffer {self.buffer.name!r}; it has {self.buffer.nbytes} bytes"
            )

    @property
    def end(self) -> int:
        return self.offset + self.nbytes

    def slice(self, offset: int = 0, nbytes: int | None = None) -> BufferSlice:
        """Bytes [offset, offset + nbytes) of this slice; all that follows `offset` when nbytes is None."""
        return BufferSlice(self.buffer, self.offset + offset, self.nbytes - offset if nbytes is None else nbytes)

    def contains(self, other: BufferSlice) -> bool:
        """Whether this slice contains every byte of `other`."""
        return self.buffer is other.buffer and self.offset <= other.offset and other.end <= self.end

    def overlaps(self, other: BufferSlice) -> bool:
        """Whether the slices share a byte of one buffer (two arena buffers may still share memory)."""
        return self.buffer is other.buffer and max(self.offset, other.offset) < min(self.end, other.end)


@dataclass(frozen=True, slots=True)
class BufferUse:
    """A thunk's access to a slice. A thunk that reads and writes the same bytes has two uses."""

    slice: BufferSlice
    access: Literal["read", "write"]
