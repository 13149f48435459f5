"""Texts that a user gives are UTF-8, whatever the locale is; others are errors in one line."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from camshaft.errors import SettingError
from camshaft.formats.texts import read_lines, read_text


def test_lines_end_as_on_any_system(tmp_path: Path) -> None:
    data = "ä\r\n\nb\rc".encode()
    assert read_lines(io.BytesIO(data), "stdin") == ["ä", "", "b", "c"]
    assert read_lines(io.BytesIO(data + b"\n"), "stdin") == ["ä", "", "b", "c"]
    assert read_lines(io.BytesIO(), "stdin") == []
    (tmp_path / "a.txt").write_bytes(data)
    assert read_text(tmp_path / "a.txt") == "ä\n\nb\nc"


def test_what_is_no_utf8_or_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc \xff")
    with pytest.raises(SettingError, match=r"a\.txt: is not UTF-8: byte 4 is wrong"):
        read_text(tmp_path / "a.txt")
    with pytest.raises(SettingError, match=r"stdin: is not UTF-8: byte 0 is wrong"):
        read_lines(io.BytesIO(b"\xff\xfea\0"), "stdin")
    with pytest.raises(SettingError, match=r"none: cannot be read: no such file"):
        read_text(tmp_path / "none")
