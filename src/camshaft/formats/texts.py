"""Read a text file, or the lines of a stream, as UTF-8 whatever the locale is."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import BinaryIO

from camshaft.errors import SettingError, reason_of


def read_text(path: str | os.PathLike[str]) -> str:
    """A text file. Raises SettingError for one that cannot be read or is not UTF-8."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise SettingError(f"{os.fspath(path)}: cannot be read: {reason_of(error)}") from None
    return _text(data, os.fspath(path))


def read_lines(stream: BinaryIO, name: str) -> list[str]:
    """The lines of a stream without their ends. Raises SettingError unless they are UTF-8, whatever the locale is."""
    return [line.removesuffix("\n") for line in io.StringIO(_text(stream.read(), name))]


def _text(data: bytes, name: str) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingError(f"{name}: is not UTF-8: byte {error.start} is wrong") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
