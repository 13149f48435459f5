"""GGUF metadata values: scan them without decoding, and decode them on demand."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from camshaft.errors import FormatError
from camshaft.formats.bits import Bytes
from camshaft.formats.mapped import Cursor, MappedFile, short_string_offsets, shown

STRING, ARRAY = 8, 9
_U64 = struct.Struct("<Q")

# Type id -> NumPy dtype of numbers.
NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}

Array: TypeAlias = "npt.NDArray[Any] | StringArray"
Value: TypeAlias = "bool | int | float | str | Array"


def decode_text(data: bytes, path: str, what: str) -> str:
    """Decode UTF-8. Raises FormatError, naming `what`."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise FormatError(f"{path}: {what} is not UTF-8: {data[:40]!r}") from None


class StringArray(Sequence[str]):
    """An array of strings in the file, decoded on demand. Raises FormatError for a string that is not UTF-8.

    `as_bytes` returns all strings undecoded, `list(...)` all decoded; both require the file to be open.
    """

    def __init__(self, file: MappedFile, key: str, position: int, nbytes: int, count: int) -> None:
        self._file, self._key = file, key
        self._position, self._nbytes, self._count = position, nbytes, count

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<StringArray {shown(self._key)} of {self._count}>"

    @cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        # The start of each string's bytes, and of those after the last; relative to the array's first byte.
        data, unpack = self._file.bytes(self._position, self._nbytes), _U64.unpack_from
        starts, position = [8], 0
        for _ in range(self._count):
            position += 8 + unpack(data, position)[0]
            starts.append(position + 8)
        return np.array(starts, np.int64)

    def as_bytes(self) -> list[bytes]:
        """The bytes of every string."""
        data, unpack = self._file.bytes(self._position, self._nbytes), _U64.unpack_from
        offsets = short_string_offsets(data, 0, self._count)
        if offsets is not None:
            return [data[offset + 8 : end] for offset, end in pairwise(offsets)]
        strings, position = [], 0
        for _ in range(self._count):
            start = position + 8
            position = start + unpack(data, position)[0]
            strings.append(data[start:position])
        return strings

    def _decode(self, data: bytes, index: int) -> str:
        return decode_text(data, self._file.path, f"string {index} of {shown(self._key)}")

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        i = range(self._count)[index]
        start, end = int(self._starts[i]), int(self._starts[i + 1]) - 8
        return self._decode(self._file.bytes(self._position + start, end - start), i)

    def _decoded(self) -> list[str] | None:
        """Decode all strings at once: keep one zero byte of each length field as separator, then split. None if a string is
        too long or contains a zero byte. Decoding 152k tokens one by one takes 50 ms."""
        data = self._file.bytes(self._position, self._nbytes)
        offsets = short_string_offsets(data, 0, self._count)
        if offsets is None:
            return None
        octets, starts = np.frombuffer(data, np.uint8), np.array(offsets[:-1], np.int64)
        mask = np.ones(octets.size, np.bool_)
        for i in range(7):
            mask[starts + i] = False
        joined = octets[mask].tobytes()
        return joined.decode("utf-8").split("\0")[1:] if joined.count(0) == self._count else None

    def __iter__(self) -> Iterator[str]:
        try:
            decoded = self._decoded()
        except UnicodeDecodeError:
            decoded = None
        if decoded is not None:
            return iter(decoded)
        strings = self.as_bytes()
        try:
            return iter([data.decode("utf-8") for data in strings])
        except UnicodeDecodeError:  # decode one by one, for an error that names the string
            return iter([self._decode(data, i) for i, data in enumerate(strings)])


@dataclass(frozen=True, slots=True)
class Entry:
    """The location of a value: its type, position and size in bytes."""

    type_id: int
    position: int
    nbytes: int


def scan_value(cursor: Cursor, key: str) -> Entry:
    """Skip a value (type id, then data), checking every length and decoding nothing."""
    type_id = cursor.u32(f"the type of {shown(key)}")
    start = cursor.position
    _skip_value(cursor, key, type_id)
    return Entry(type_id, start, cursor.position - start)


def _skip_value(cursor: Cursor, key: str, type_id: int) -> None:
    if type_id in NUMBERS:
        cursor.skip(NUMBERS[type_id].itemsize, f"the value of {shown(key)}")
    elif type_id == STRING:
        cursor.skip(cursor.u64(f"the length of {shown(key)}"), f"the value of {shown(key)}")
    elif type_id == ARRAY:
        _skip_array(cursor, key)
    else:
        cursor.fail(f"{shown(key)} has the value type {type_id}; wanted 0 to {max(NUMBERS)}")


def _skip_array(cursor: Cursor, key: str) -> None:
    item_type, what = cursor.u32(f"the item type of {shown(key)}"), f"the number of items of {shown(key)}"
    if item_type in NUMBERS:
        cursor.skip(cursor.count(what, NUMBERS[item_type].itemsize) * NUMBERS[item_type].itemsize, shown(key))
    elif item_type == STRING:
        cursor.skip_strings(cursor.count(what, 8), shown(key))
    elif item_type == ARRAY:
        cursor.fail(f"{shown(key)} is an array of arrays; wanted an array of numbers, booleans or strings")
    else:
        cursor.fail(f"{shown(key)} has items of the type {item_type}; wanted 0 to {max(NUMBERS)}")


class Metadata(Mapping[str, Value]):
    """The keys and values of a GGUF file. A value is decoded on first access and cached: numbers as bool, int or float, strings
    as str, number arrays as read-only ndarrays, string arrays as StringArray.

    Raises FormatError for a string that is not UTF-8, a boolean other than 0 and 1, and after the file is closed.
    """

    def __init__(self, file: MappedFile, entries: Mapping[str, Entry]) -> None:
        self._file, self._entries = file, entries
        self._values: dict[str, Value] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __getitem__(self, key: str) -> Value:
        if key not in self._values:
            entry = self._entries[key]
            cursor = Cursor(self._file)
            cursor.position = entry.position
            strings = self._strings(cursor, key, entry)
            self._values[key] = _decode(cursor, key, entry.type_id) if strings is None else strings
        return self._values[key]

    def _strings(self, cursor: Cursor, key: str, entry: Entry) -> StringArray | None:
        """A top-level array of strings, whose size is known from the scan; None for any other value."""
        if entry.type_id != ARRAY or entry.nbytes < 12 or cursor.u32(key) != STRING:
            cursor.position = entry.position
            return None
        count = cursor.u64(key)
        return StringArray(self._file, key, cursor.position, entry.nbytes - 12, count)

    def type_id(self, key: str) -> int:
        """The type id of a value (8 string, 9 array, else a key of NUMBERS)."""
        return self._entries[key].type_id

    def raw(self, key: str, most: int | None = None) -> bytes:
        """A value's raw bytes without its type id, at most `most` of them."""
        entry = self._entries[key]
        return self._file.bytes(entry.position, entry.nbytes if most is None else min(most, entry.nbytes))

    def view(self, key: str) -> Bytes:
        """A value's raw bytes as read-only uint8, without a copy."""
        entry = self._entries[key]
        return self._file.view(entry.position, entry.nbytes)

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The location of each value."""
        return self._entries


def _decode(cursor: Cursor, key: str, type_id: int) -> Value:
    if type_id == ARRAY:
        return _decode_array(cursor, key)
    if type_id == STRING:
        nbytes, start = cursor.u64(key), cursor.position
        cursor.skip(nbytes, key)
        return decode_text(cursor.file.bytes(start, nbytes), cursor.file.path, f"the value of {shown(key)}")
    value: bool | int | float = _numbers(cursor, key, type_id, 1)[0].item()
    return value


def _decode_array(cursor: Cursor, key: str) -> Array:
    item_type, count = cursor.u32(key), cursor.u64(key)
    return _numbers(cursor, key, item_type, count)


def _numbers(cursor: Cursor, key: str, type_id: int, count: int) -> npt.NDArray[Any]:
    dtype, start = NUMBERS[type_id], cursor.position
    cursor.skip(count * dtype.itemsize, key)
    raw = cursor.file.bytes(start, count * dtype.itemsize)  # a copy: aligned, and it outlives the file
    if dtype.kind == "b" and raw.strip(b"\0\1"):
        cursor.fail(f"{shown(key)} holds a boolean that is neither 0 nor 1")
    return np.frombuffer(raw, dtype)
