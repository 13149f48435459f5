"""FileTensor: a tensor in an open GGUF or safetensors file, read on demand."""

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
    """A tensor's name, shape (row-major), format and size. `data`, `blocks`, `array` and `dequantize` read it; each raises
    FormatError if the file is closed or the format unsupported. `mapped` is the file and offset that `data` is a view of, if
    any."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    nbytes: int
    read: Callable[[], Bytes] = field(repr=False)
    path: str = field(repr=False)
    mapped: tuple[MappedFile, int] | None = field(default=None, repr=False, kw_only=True)

    @property
    def is_float_matrix(self) -> bool:
        """Whether it has rows and columns of floats, as the weights of a product that are not quantized."""
        return len(self.shape) > 1 and min(self.shape) > 1 and self.format.name in ("F16", "BF16", "F32", "F64")

    @property
    def is_mapped(self) -> bool:
        """Whether `data` returns a view of the mapped file rather than a copy."""
        return self.mapped is not None

    def data(self) -> Bytes:
        """The raw bytes: read-only uint8 [nbytes]; for GGUF a view of the mapped file."""
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
        """The elements of a plain format in its dtype, [*shape]. Raises FormatError for a quantized one."""
        data = self.data()
        if not self.format.is_plain or self.format.layout is None:
            raise FormatError(f"{self.path}: tensor {shown(self.name)} is {self.format.name}; wanted a plain dtype")
        return data.view(self.format.layout).reshape(self.shape)

    def dequantize(self) -> Floats:
        """The elements as float32 [*shape], newly allocated."""
        flat = self.data().reshape(-1, self.format.block_nbytes)
        return np.reshape(self.format.dequantize(flat), self.shape)
