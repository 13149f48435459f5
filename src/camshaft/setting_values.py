"""What texts of the environment stand for: readers of words, numbers, sizes, files."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from os import stat as stat_of
from pathlib import Path


class Refused(Exception):
    """What was wanted instead of a value; settings.py makes a SettingError of it."""


def words(text: str) -> str:
    """Any text."""
    return text


def whole(low: int, high: int) -> Callable[[str], int]:
    """A whole number from `low` to `high`."""

    def read(text: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise Refused(f"a whole number from {low} to {high}")
        return int(text)

    return read


def one_of(*choices: str) -> Callable[[str], str]:
    """One of some words."""

    def read(text: str) -> str:
        if text not in choices:
            raise Refused(f"{', '.join(choices[:-1])} or {choices[-1]}")
        return text

    return read


def switch(text: str) -> bool:
    """0 or 1."""
    if text not in ("0", "1"):
        raise Refused("0 or 1")
    return text == "1"


def folder(text: str) -> Path:
    """A folder, or what can become one; one look, since every kernel that is loaded asks for the settings."""
    try:
        if not stat.S_ISDIR(stat_of(text).st_mode):
            raise Refused("a folder")
    except OSError:
        pass  # not there yet, or not to be looked at: who makes it says so
    return Path(text)


_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
LEAST_CACHE_NBYTES = 16 << 20  # one model's kernels take 0.5 MB, one object up to some hundred kB


def size(text: str) -> int:
    """Bytes, such as 512M."""
    parts = re.fullmatch("([0-9]{1,12})([KMGT]?)", text)
    nbytes = int(parts[1]) * _UNITS.get(parts[2], 1) if parts else 0
    if not LEAST_CACHE_NBYTES <= nbytes <= 1 << 60:
        raise Refused(f"a size from {LEAST_CACHE_NBYTES >> 20}M up, such as 512M or 2G")
    return nbytes


def existing_folder(text: str) -> Path:
    """A folder that is there."""
    if not Path(text).is_dir():
        raise Refused("a folder that is there")
    return Path(text)


def file(text: str) -> Path:
    """A file that is there or can be made."""
    if Path(text).is_dir() or not Path(text).absolute().parent.is_dir():
        raise Refused("a file in a folder that is there")
    return Path(text)
