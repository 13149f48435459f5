"""Write GGUF files atomically."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from camshaft.errors import FormatError
from camshaft.formats.bits import Bytes
from camshaft.formats.blocks import BlockFormat
from camshaft.formats.gguf.file import DEFAULT_ALIGNMENT
from camshaft.formats.gguf.values import ARRAY, NUMBERS, Metadata
from camshaft.formats.mapped import shown_value
from camshaft.store.files import atomic_file

_LARGEST = float(np.finfo(np.float32).max)
_VERSION, _UINT32, _FLOAT32, _STRING = 3, 4, 6, 8
# (type id, raw bytes) of a value
Raw: TypeAlias = tuple[int, bytes]


@dataclass(frozen=True)
class NewTensor:
    """A tensor to write; `parts` yields its bytes in order and is called when they are needed. The shape is row-major."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    parts: Callable[[], Iterable[Bytes]]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows. Raises FormatError if a row is not a multiple of the block size."""
        return math.prod(self.shape[:-1]) * self.format.row_nbytes(self.shape[-1] if self.shape else 1)


def unsigned(value: int) -> Raw:
    """A 32-bit unsigned integer as a value."""
    return _UINT32, struct.pack("<I", value)


def floating(value: float) -> Raw:
    """A 32-bit float as a value."""
    return _FLOAT32, struct.pack("<f", value)


def text(value: str) -> Raw:
    """A text as a value."""
    return _STRING, _text(value)


def encoded_value(value: Any) -> Raw:
    """A value in the type that files have for it: u32 (or i64), f32, bool, text, or an array of one of them or of i32.

    An ndarray keeps its dtype; it is one of the dtypes of NUMBERS. Raises FormatError for a number that none of them holds."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, bool):
        return _type_of(np.bool_), bytes([value])
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise FormatError(f"got the integer {shown_value(value)}; wanted one of 64 bits in a GGUF file")
        return unsigned(value) if 0 <= value < 1 << 32 else (_type_of(np.int64), struct.pack("<q", value))
    if isinstance(value, float):
        if _LARGEST < abs(value) < math.inf:
            raise FormatError(f"got the number {value:g}; wanted at most {_LARGEST:g} in a GGUF file")
        return floating(value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        head = struct.pack("<IQ", _STRING, len(value))
        return ARRAY, head + b"".join(map(_text, value))
    kinds = {bool: np.bool_, int: np.int32, float: np.float32}
    array = value if isinstance(value, np.ndarray) else np.array(value, kinds[type(value[0])])
    head = struct.pack("<IQ", _type_of(array.dtype), array.size)
    return ARRAY, head + array.astype(array.dtype.newbyteorder("<")).tobytes()


def _type_of(dtype: npt.DTypeLike) -> int:
    wanted = np.dtype(dtype).newbyteorder("<")
    return next(type_id for type_id, known in NUMBERS.items() if known == wanted)


def values_of(metadata: Metadata) -> dict[str, Raw]:
    """All values of a file, unchanged."""
    return {key: (metadata.type_id(key), metadata.raw(key)) for key in metadata}


def write_gguf(path: Path, values: Mapping[str, Raw], tensors: Iterable[NewTensor]) -> None:
    """Write a GGUF version 3 file; `path` is replaced only once it is complete. The alignment is taken from `values`.

    Raises StoreError if it cannot be written (full disk, missing folder). A failure leaves no file behind.
    """
    tensors = tuple(tensors)
    alignment = _alignment(values)
    head = _header(values, tensors, alignment)
    with atomic_file(path, durable=True, private=False) as file:
        file.write(head)
        for tensor in tensors:
            written = 0
            for part in tensor.parts():
                file.write(np.ascontiguousarray(part).data.cast("B"))
                written += part.nbytes
            assert written == tensor.nbytes, f"{tensor.name}: {written} bytes of {tensor.nbytes}"
            file.write(b"\0" * (-written % alignment))


def _alignment(values: Mapping[str, Raw]) -> int:
    return (
        int.from_bytes(values["general.alignment"][1], "little") if "general.alignment" in values else DEFAULT_ALIGNMENT
    )


def _header(values: Mapping[str, Raw], tensors: tuple[NewTensor, ...], alignment: int) -> bytes:
    head = bytearray(struct.pack("<4sIQQ", b"GGUF", _VERSION, len(tensors), len(values)))
    for key, (type_id, raw) in values.items():
        head += _text(key) + struct.pack("<I", type_id) + raw
    offset = 0
    for tensor in tensors:
        dims = tensor.shape[::-1]
        head += _text(tensor.name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, tensor.format.ggml_id, offset)
        offset += -(-tensor.nbytes // alignment) * alignment
    return bytes(head) + b"\0" * (-len(head) % alignment)


def _text(text: str) -> bytes:
    data = os.fsencode(text)
    return struct.pack("<Q", len(data)) + data
