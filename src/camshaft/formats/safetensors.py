"""Safetensors files: read through the safetensors library (extra 'safetensors'), written without it."""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from camshaft.dtypes import DType, boolean, complex64, u8, u16, u32, u64
from camshaft.errors import FormatError, MissingExtraError
from camshaft.formats.bits import Bytes, Floats, Records
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat, decode_plain
from camshaft.formats.mapped import path_for_messages, require_ordinary_file, shown
from camshaft.formats.tensor import FileTensor
from camshaft.store.files import atomic_file


def _complex(records: Records) -> Floats:
    raise FormatError(f"{records.dtype} has an imaginary part; wanted its array(), not float32")


def _plain(name: str, dtype: DType, decode: Callable[[Records], Floats]) -> BlockFormat:
    return BlockFormat(name, None, 1, dtype.nbytes, dtype, dtype.numpy.newbyteorder("<"), decode)


def _codes(name: str, number: type) -> BlockFormat:
    """8-bit floats: an array has their codes as u8, as minifloat_matmul takes them."""
    return _plain(name, u8, lambda records: records.view(number).astype(np.float32).reshape(-1, 1))


# Dtypes that GGUF lacks.
_MORE = {
    **{
        n: _plain(n, d, decode_plain)
        for n, d in (("BOOL", boolean), ("U8", u8), ("U16", u16), ("U32", u32), ("U64", u64))
    },
    "C64": _plain("C64", complex64, _complex),
    "F8_E5M2": _codes("F8_E5M2", ml_dtypes.float8_e5m2),
    "F8_E4M3": _codes("F8_E4M3", ml_dtypes.float8_e4m3fn),
    "F8_E5M2FNUZ": _codes("F8_E5M2FNUZ", ml_dtypes.float8_e5m2fnuz),
    "F8_E4M3FNUZ": _codes("F8_E4M3FNUZ", ml_dtypes.float8_e4m3fnuz),
    "F8_E8M0": _codes("F8_E8M0", ml_dtypes.float8_e8m0fnu),
}
# Dtypes that camshaft cannot decode: (elements, bytes) of the smallest unit.
_UNREAD = {"F6_E2M3": (4, 3), "F6_E3M2": (4, 3), "F4": (2, 1)}


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
            if self._handle.get_slice(name).get_dtype().startswith("F8"):
                values = _stored(self.path, name)  # the library has no NumPy dtype for them
            else:
                values = np.ascontiguousarray(self._handle.get_tensor(name)).reshape(-1).view(np.uint8)
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


def _stored(path: str, name: str) -> Bytes:
    """Reads a tensor's bytes; the library checked its offsets when it opened the file."""
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            first, last = json.loads(file.read(size))[name]["data_offsets"]
            file.seek(8 + size + first)
            values = np.frombuffer(bytearray(file.read(last - first)), np.uint8)
    except (OSError, ValueError, KeyError) as error:
        raise FormatError(f"{path}: tensor {shown(name)}: {error}") from error
    if len(values) != last - first:
        raise FormatError(f"{path}: tensor {shown(name)} has {len(values)} bytes; wanted {last - first}")
    return values


# Dtypes that are written, by NumPy's name.
_WRITTEN = {
    "float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16",
    "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
}  # fmt: skip


def write_safetensors(
    path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray[Any, Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes arrays by name and texts by key, atomically: the file is there whole or as it was before, even if power fails.

    Raises FormatError for a dtype that the format lacks, and StoreError if the file cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    first = 0
    for name, array in tensors.items():
        if array.dtype.name not in _WRITTEN:
            raise FormatError(f"{shown(str(path))}: {shown(name)} is {array.dtype}; wanted {', '.join(_WRITTEN)}")
        offsets = [first, first := first + array.nbytes]
        header[name] = {"dtype": _WRITTEN[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # readers map what follows, aligned
    with atomic_file(Path(path), durable=True, private=False) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            file.write(little.reshape(-1).view(np.uint8).data)


def _format(name: str) -> BlockFormat:
    if name in _MORE:
        return _MORE[name]
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
