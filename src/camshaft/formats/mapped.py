"""MappedFile: a memory-mapped file, and Cursor: a bounds-checked reader over it."""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import numpy as np

from camshaft.errors import FormatError, reason_of
from camshaft.formats.bits import Bytes

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


def shown(text: str, limit: int = 80) -> str:
    """Text from a file for an error message: quoted, escaped, cut to `limit` characters."""
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


def shown_value(value: object, limit: int = 80) -> str:
    """A metadata value for an error message: in one line, escaped, cut to `limit` characters; an array as a list."""
    if isinstance(value, np.ndarray):
        value = value[:limit].tolist() if value.ndim else value.item()
    elif isinstance(value, Sequence) and not isinstance(value, str | list | tuple):
        return f"an array of {len(value)} texts"  # still in the file
    return shown(value, limit) if isinstance(value, str) else " ".join(repr(value).split())[:limit]


def path_for_messages(path: str | os.PathLike[str]) -> str:
    """The path, quoted and escaped if it has characters that would break a line."""
    name = os.fspath(path)
    return name if name.isprintable() else repr(name)


def require_ordinary_file(path: str | os.PathLike[str]) -> None:
    """Raise FormatError unless the path is a regular file (opening a pipe or device could block)."""
    name = path_for_messages(path)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise FormatError(f"{name}: there is no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise FormatError(f"{name}: cannot be read: {reason_of(error)}") from error
    if not stat.S_ISREG(mode):
        raise FormatError(f"{name}: is {'a folder' if stat.S_ISDIR(mode) else 'not a regular file'}; wanted a file")


def _map(path: str | os.PathLike[str]) -> tuple[mmap.mmap, os.stat_result]:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if not status.st_size:
            raise FormatError(f"{path_for_messages(path)}: the file is empty")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), status


class MappedFile:
    """The bytes of one file, read-only. `path` is escaped for messages; `real_path` is absolute and without links."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Map the file. Raises FormatError if it is missing, unreadable, empty or not a regular file."""
        if not isinstance(path, (str, os.PathLike)):
            raise FormatError(f"got the path {path!r:.80}; wanted the path of a file")
        self.path = path_for_messages(path)
        require_ordinary_file(path)
        self.real_path = os.path.realpath(path)
        self._map: mmap.mmap | None
        try:
            self._map, status = _map(path)
        except OSError as error:
            raise FormatError(f"{self.path}: cannot be read: {reason_of(error)}") from error
        self.size = len(self._map)
        # Changes with the contents: device, inode, size and time of the last change.
        self.identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    @property
    def closed(self) -> bool:
        return self._map is None

    @property
    def is_whole(self) -> bool:
        """Whether the file still has the mapped size: reading past the end of a truncated file kills the process."""
        return self.mapping().size() == self.size

    def close(self) -> None:
        """Close the file. Arrays returned before stay valid; the last one ends the mapping."""
        self._map = None

    def mapping(self) -> mmap.mmap:
        """The mmap object. Raises FormatError once closed."""
        if self._map is None:
            raise FormatError(f"{self.path}: the file was closed; wanted it open while its tensors are read")
        return self._map

    def bytes(self, offset: int, nbytes: int) -> bytes:
        """Copy a range. The caller has checked that it is in the file."""
        return self.mapping()[offset : offset + nbytes]

    def view(self, offset: int, nbytes: int) -> Bytes:
        """A range as read-only uint8 [nbytes] without a copy. The caller has checked that it is in the file."""
        return np.frombuffer(self.mapping(), np.uint8, nbytes, offset)

    def prefetch(self, offset: int, nbytes: int) -> None:
        """Advise the operating system to read a range soon, if supported."""
        self._advise("MADV_WILLNEED", offset, nbytes)

    def release(self, offset: int, nbytes: int) -> None:
        """Advise the operating system to drop a range's pages, if supported; later reads load them from the file again."""
        self._advise("MADV_DONTNEED", offset, nbytes)

    def _advise(self, advice: str, offset: int, nbytes: int) -> None:
        start, end = offset // mmap.PAGESIZE * mmap.PAGESIZE, min(offset + nbytes, self.size)
        if self._map is not None and hasattr(mmap, advice) and end > start:
            with suppress(OSError):  # not supported by the file system
                self._map.madvise(getattr(mmap, advice), start, end - start)


def short_string_offsets(data: mmap.mmap | bytes, position: int, n_strings: int) -> list[int] | None:
    """The offsets of consecutive strings (u64 length, bytes) from `position` on, and the end of the last one. None unless all
    lie in `data` and are shorter than 256 bytes.

    Fast path for vocabularies: reading only the low byte of each length takes 50 ns per string, unpacking it takes 130.
    """
    offsets = []
    try:
        for _ in range(n_strings):
            offsets.append(position)
            position += 8 + data[position]
    except IndexError:
        return None
    if position > len(data):
        return None
    octets, lengths = np.frombuffer(data, np.uint8), np.array(offsets, np.int64)
    if any(octets[lengths + i].any() for i in range(1, 8)):
        return None
    offsets.append(position)
    return offsets


_CHUNK = 1 << 13  # strings; their offsets take 0.3 MB


def end_of_short_strings(data: mmap.mmap | bytes, position: int, n_strings: int) -> int | None:
    """The end of consecutive strings, by `short_string_offsets` a chunk at a time; None where that returns None."""
    for done in range(0, n_strings, _CHUNK):
        offsets = short_string_offsets(data, position, min(_CHUNK, n_strings - done))
        if offsets is None:
            return None
        position = offsets[-1]
    return position


class Cursor:
    """Reads numbers and strings sequentially. Raises FormatError, naming the item, before reading past the end of the file, or
    past its first `limit_nbytes`."""

    def __init__(self, file: MappedFile, limit_nbytes: int | None = None) -> None:
        self.file = file
        self.position = 0
        self.size = file.size if limit_nbytes is None else min(file.size, limit_nbytes)
        self._data = file.mapping()

    @property
    def remaining(self) -> int:
        return self.size - self.position

    def fail(self, message: str) -> NoReturn:
        raise FormatError(f"{self.file.path}: {message}")

    def require(self, nbytes: int, what: str) -> None:
        """Raise FormatError unless nbytes remain."""
        if nbytes > self.remaining:
            self._refuse_past_limit(what, self.position + nbytes)
            self.fail(f"truncated: {what} wants {nbytes} bytes at {self.position}, the file has {self.remaining} left")

    def _refuse_past_limit(self, what: str, end: int) -> None:
        """Raise FormatError, naming the limit, if bytes up to `end` are in the file but past the limit."""
        if self.size < end <= self.file.size:
            self.fail(f"{what} ends at byte {end}; wanted a header of at most {self.size / 1e6:.0f} MB")

    def skip(self, nbytes: int, what: str) -> None:
        self.require(nbytes, what)
        self.position += nbytes

    def _number(self, row: struct.Struct, what: str) -> int:
        self.require(row.size, what)
        (value,) = row.unpack_from(self._data, self.position)
        self.position += row.size
        return int(value)

    def u32(self, what: str) -> int:
        return self._number(_U32, what)

    def u64(self, what: str) -> int:
        return self._number(_U64, what)

    def count(self, what: str, item_nbytes: int, limit: int | None = None) -> int:
        """Read a u64 count of items of at least item_nbytes each. Raises FormatError if they cannot fit into the file."""
        n_items = self.u64(what)
        if n_items * item_nbytes > self.remaining:
            self.fail(f"{what} is {n_items}; the {self.remaining} bytes that follow cannot hold so many")
        if limit is not None and n_items > limit:
            self.fail(f"{what} is {n_items}; wanted at most {limit}")
        return n_items

    def name(self, what: str, limit: int) -> str:
        """Read a length and a UTF-8 string of 1 to `limit` bytes."""
        nbytes = self.u64(f"the length of {what}")
        if not 1 <= nbytes <= limit:
            self.fail(f"{what} is {nbytes} bytes long; wanted 1 to {limit}")
        start = self.position
        self.skip(nbytes, what)
        try:
            return self._data[start : self.position].decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} at byte {start} is not UTF-8: {self._data[start : min(self.position, start + 40)]!r}")

    def skip_strings(self, n_strings: int, what: str) -> None:
        """Skip strings (u64 length, bytes) without decoding them."""
        end = end_of_short_strings(self._data, self.position, n_strings)
        if end is not None and end <= self.size:
            self.position = end
            return
        unpack, data, position = _U64.unpack_from, self._data, self.position
        try:
            for _ in range(n_strings):
                position += 8 + unpack(data, position)[0]
        except (struct.error, OverflowError):
            self.fail(f"truncated: a string of {what} would end past the file's {self.file.size} bytes")
        self._refuse_past_limit(what, position)
        if position > self.size:
            self.fail(f"truncated: the last string of {what} would end at {position} of {self.file.size} bytes")
        self.position = position
