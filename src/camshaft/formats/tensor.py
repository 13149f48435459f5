"""FileTensor: one tensor of an open file, whatever the file's kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from camshaft.errors import FormatError
from camshaft.formats.bits import Bytes, Floats
from camshaft.formats.blocks import BlockFormat
from camshaft.formats.mapped import MappedFile, shown


@dataclass(frozen=True, eq=False)
class FileTensor:
    """A tensor's name, shape (NumPy order: the last axis is contiguous), format and bytes. Nothing is read before
    `data`, `blocks`, `array` or `dequantize` is called; each raises FormatError when the file was closed or the format
    is one camshaft does not read yet. `mapped`: the file that `data` is a view of, and where it begins there."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    nbytes: int
    read: Callable[[], Bytes] = field(repr=False)
    path: str = field(repr=False)
    mapped: tuple[MappedFile, int] | None = field(default=None, repr=False, kw_only=True)

    @property
    def is_mapped(self) -> bool:
        """Whether `data` gives the mapped file itself, not a copy."""
        return self.mapped is not None

    def data(self) -> Bytes:
        """The bytes as they lie in the file: read-only uint8 [nbytes], for GGUF a view of the mapped file."""
        try:
            self.format.require_readable()
        except FormatError as error:
            raise FormatError(f"{self.path}: tensor {shown(self.name)}: {error}") from None
        return self.read()

    def blocks(self) -> Bytes:
        """The bytes as blocks: uint8 [*shape[:-1], blocks per row, block_nbytes]."""
        last = self.shape[-1] if self.shape else 1
        return self.data().reshape(*self.shape[:-1], last // self.format.block_size, self.format.block_nbytes)

    def array(self) -> npt.NDArray[Any]:
        """The elements of a plain format in their own dtype, [*shape]; FormatError for a quantized one."""
        data = self.data()
        if not self.format.is_plain or self.format.layout is None:
            raise FormatError(f"{self.path}: tensor {shown(self.name)} is {self.format.name}; wanted a plain dtype")
        return data.view(self.format.layout).reshape(self.shape)

    def dequantize(self) -> Floats:
        """The elements as float32 [*shape], newly allocated."""
        flat = self.data().reshape(-1, self.format.block_nbytes)
        return np.reshape(self.format.dequantize(flat), self.shape)
