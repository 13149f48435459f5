"""Parse the texts of environment variables: words, numbers, sizes, paths."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

# emit/target.py lists the features of each level.
CPU_LEVELS = (
    *("sse4", "avx2", "avx-vnni", "avx512", "avx512-vnni", "avx512-bf16", "amx"),
    *("neon", "neon-dotprod", "neon-i8mm", "neon-bf16"),
)


class Refused(Exception):
    """Raised for an invalid value; the message says what was wanted. settings.py turns it into a SettingError."""


def words(text: str) -> str:
    """Any text."""
    return text


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return a parser for integers from `low` to `high`."""

    def read(text: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise Refused(f"an integer from {low} to {high}")
        return int(text)

    return read


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts one of `choices`."""

    def read(text: str) -> str:
        if text not in choices:
            raise Refused(f"{', '.join(choices[:-1])} or {choices[-1]}")
        return text

    return read


def switch(text: str) -> bool:
    """Parse 0 or 1."""
    if text not in ("0", "1"):
        raise Refused("0 or 1")
    return text == "1"


def folder(text: str) -> Path:
    """Parse the path of a folder that exists or can be created. A single stat: every kernel load reads the settings."""
    try:
        if not stat.S_ISDIR(os.stat(text).st_mode):
            raise Refused("a folder")
    except OSError:
        pass  # missing or unreadable: creating it reports the error
    return Path(text)


_UNITS = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
LEAST_CACHE_NBYTES = 16 * 10**6  # one model's kernels take 0.5 MB


def size(text: str) -> int:
    """Parse a size in bytes, such as 512M."""
    parts = re.fullmatch("([0-9]{1,12})([KMGT]?)", text)
    nbytes = int(parts[1]) * _UNITS.get(parts[2], 1) if parts else 0
    if not LEAST_CACHE_NBYTES <= nbytes <= 1 << 60:
        raise Refused(f"a size from {LEAST_CACHE_NBYTES // 10**6}M up, such as 512M or 2G")
    return nbytes


def existing_folder(text: str) -> Path:
    """Parse the path of an existing folder."""
    if not Path(text).is_dir():
        raise Refused("an existing folder")
    return Path(text)


def file(text: str) -> Path:
    """Parse the path of a file that exists or can be created."""
    if Path(text).is_dir() or not Path(text).absolute().parent.is_dir():
        raise Refused("a file in an existing folder")
    return Path(text)
