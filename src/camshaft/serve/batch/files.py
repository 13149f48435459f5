"""The files of a batch: lines of requests, and a file of results that a later run continues.

The id of a result is a digest of its line's number and text. By it a later run finds which lines are answered, also those
without a custom_id, and notices if a file of results belongs to other requests.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from camshaft.errors import SettingError, reason_of, shortened
from camshaft.serve.requests.respond import compact
from camshaft.store.file_lock import NO_LOCKS, try_lock

_HEAD = b'{"id":"batch_req_'
_DIGEST_NBYTES = 12
_RESULT = re.compile(re.escape(_HEAD) + rb'([0-9a-f]{%d})",.*\}\r?\n' % (2 * _DIGEST_NBYTES), re.DOTALL)
_PART_NBYTES = 1 << 20
_LOCKED_AT = 1 << 40


@dataclass(frozen=True)
class Line:
    """A line of the request file. `text` is None if it is too long."""

    number: int
    key: bytes
    text: bytes | None


def read_lines(source: Path, most_nbytes: int) -> Iterator[Line]:
    """Yields the lines of a file that are not blank, one in memory at a time. Raises SettingError."""
    with _opened(source) as file:
        number = 0
        while part := file.readline(most_nbytes + 1):
            number += 1
            digest = blake2b(number.to_bytes(8, "little"), digest_size=_DIGEST_NBYTES)
            is_whole = part.endswith(b"\n") or len(part) <= most_nbytes
            text = part.strip() if is_whole else None
            if text is None:
                _skip_line(file, digest, part)
            elif text:
                digest.update(text)
            if text != b"":
                yield Line(number, digest.digest(), text)


def _skip_line(file: BinaryIO, digest: Any, part: bytes) -> None:
    while part:
        digest.update(part)
        part = b"" if part.endswith(b"\n") else file.readline(_PART_NBYTES)


def _opened(source: Path) -> BinaryIO:
    try:
        file = open(source, "rb")  # noqa: SIM115 - the caller closes it
    except OSError as error:
        raise SettingError(f"{source}: cannot be read: {reason_of(error)}") from None
    if not _is_regular(file):  # it is read twice: to count its lines, and to answer them
        file.close()
        raise SettingError(f"{source}: is not a regular file; wanted one that can be read twice")
    return file


def _is_regular(file: FileIO | BinaryIO) -> bool:
    """Whether a file is regular: not a pipe, nor a device such as /dev/full, which never ends."""
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def check_paths(source: Path, target: Path) -> None:
    """Raise SettingError if the requests cannot be read, or the results would go into the same file."""
    _opened(source).close()
    if target.exists() and os.path.samefile(source, target):
        raise SettingError(f"{source}: is the file of requests and of results; wanted two files")


class Results:
    """The file of results, locked while it is open. A context manager.

    done: the keys of the lines that have a result. A partial last line, left by a killed run, is removed."""

    def __init__(self, path: Path) -> None:
        """Raises SettingError if the file cannot be written, another process writes it, or it has other lines."""
        self._path = path
        try:
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - __exit__ closes it
        except OSError as error:
            raise SettingError(f"{path}: cannot be written: {reason_of(error)}") from None
        try:
            if not _is_regular(self._file):
                raise SettingError(f"{path}: is not a regular file; a later run could not continue it")
            self._lock()
            self.done = self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Results:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def _lock(self) -> None:
        try:
            self._file.seek(_LOCKED_AT)  # on Windows, the locked byte lies outside the data
            if not try_lock(self._file.fileno()):
                raise SettingError(f"{self._path}: another process writes it")
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise

    def _read(self) -> set[bytes]:
        done: set[bytes] = set()
        end, is_torn = 0, False
        with open(self._path, "rb") as file:
            for number, line in enumerate(_result_lines(file), 1):
                found = _RESULT.fullmatch(line)
                if found is not None:
                    done.add(bytes.fromhex(found[1].decode()))
                    end += len(line)
                    continue
                is_torn = not line.endswith(b"\n") and line[: len(_HEAD)] == _HEAD[: len(line)]
                if not is_torn:
                    start = shortened(line[:200].decode("utf-8", "replace"), 60)
                    raise SettingError(f"{self._path}: line {number} is not a result of a batch: {start}")
        if is_torn:
            self._file.truncate(end)
        return done

    def check_source(self, source: Path, most_nbytes: int) -> int:
        """Returns the number of request lines. Raises SettingError if there are results of other requests."""
        n, others = 0, set(self.done)
        for line in read_lines(source, most_nbytes):
            n += 1
            others.discard(line.key)
        if others:
            message = f"{len(others)} of its {len(self.done)} results answer other requests than those of {source}"
            raise SettingError(f"{self._path}: {message}; name a new file")
        return n

    def write(self, key: bytes, custom_id: str | None, response: dict[str, Any] | None, error: Any) -> None:
        """Append a result."""
        self.append(result_line(key, custom_id, response, error))

    def append(self, result: bytes) -> None:
        """Append a line of `result_line`. Raises SettingError, perhaps after a part of the line was written."""
        left = memoryview(result)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:  # a full disk
            raise SettingError(f"{self._path}: a result cannot be written: {reason_of(error)}") from None


def _result_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; of one that is not a result, a part, since other files may have lines of any length."""
    while line := file.readline(_PART_NBYTES):
        while line.startswith(_HEAD) and not line.endswith(b"\n") and (part := file.readline(_PART_NBYTES)):
            line += part
        yield line


def result_line(key: bytes, custom_id: str | None, response: dict[str, Any] | None, error: Any) -> bytes:
    """The line of a result."""
    row = {"id": f"batch_req_{key.hex()}", "custom_id": custom_id, "response": response, "error": error}
    return compact(row) + b"\n"
