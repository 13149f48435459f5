"""Read safetensors files through the safetensors library (extra 'safetensors')."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from camshaft.errors import FormatError, MissingExtraError
from camshaft.formats.bits import Bytes
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat
from camshaft.formats.mapped import path_for_messages, require_ordinary_file, shown
from camshaft.formats.tensor import FileTensor

# Dtypes that camshaft cannot decode: (elements, bytes) of the smallest unit.
_UNREAD = {
    "BOOL": (1, 1),
    "U8": (1, 1),
    "U16": (1, 2),
    "U32": (1, 4),
    "U64": (1, 8),
    "C64": (1, 8),
    "F8_E5M2": (1, 1),
    "F8_E4M3": (1, 1),
    "F8_E5M2FNUZ": (1, 1),
    "F8_E4M3FNUZ": (1, 1),
    "F8_E8M0": (1, 1),
    "F6_E2M3": (4, 3),
    "F6_E3M2": (4, 3),
    "F4": (2, 1),
}


class SafetensorsFile:
    """An open safetensors file: `path`, `metadata` (text by key), `tensors` by name. A context manager."""

    def __init__(self, path: str, handle: Any) -> None:
        self.path = path
        self._handle: Any = handle
        self.metadata: Mapping[str, str] = MappingProxyType(dict(handle.metadata() or {}))
        names: list[str] = list(handle.keys())
        self.tensors: Mapping[str, FileTensor] = MappingProxyType({name: self._tensor(name) for name in names})

    def _tensor(self, name: str) -> FileTensor:
        part = self._handle.get_slice(name)
        shape, row = tuple(part.get_shape()), _format(part.get_dtype())
        nbytes = math.prod(shape) * row.block_nbytes // row.block_size
        return FileTensor(name, shape, row, nbytes, self._reader(name), self.path)

    def _reader(self, name: str) -> Callable[[], Bytes]:
        def read() -> Bytes:
            if self._handle is None:
                raise FormatError(f"{self.path}: the file was closed; wanted it open while its tensors are read")
            values: Bytes = np.ascontiguousarray(self._handle.get_tensor(name)).reshape(-1).view(np.uint8)
            values.flags.writeable = False
            return values

        return read

    def close(self) -> None:
        """Close the file. Arrays returned before stay valid."""
        if self._handle is not None:
            self._handle.__exit__(None, None, None)
        self._handle = None

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _format(name: str) -> BlockFormat:
    row = BLOCK_FORMATS.get(name)
    return row if row is not None and row.is_plain else BlockFormat(name, None, *_UNREAD.get(name, (1, 1)))


def open_safetensors(path: str | os.PathLike[str]) -> SafetensorsFile:
    """Open a safetensors file. Tensors are read on demand.

    Raises MissingExtraError without the library, FormatError for a missing or damaged file. A tensor of an unsupported dtype
    raises only when its data is read.
    """
    try:
        library = importlib.import_module("safetensors")
    except ImportError:
        raise MissingExtraError("safetensors", "safetensors", "reading a safetensors file") from None
    require_ordinary_file(path)
    name = path_for_messages(path)
    try:
        handle = library.safe_open(os.fspath(path), framework="np")
    except (library.SafetensorError, OSError) as error:
        raise FormatError(f"{name}: is not a readable safetensors file: {shown(str(error), 160)}") from error
    return SafetensorsFile(name, handle.__enter__())
