"""Sizes of memory as people write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) *([KMG]i?B|B|)")


def is_size(value: object) -> bool:
    """Whether a value is a size such as "8 GiB", or a number of bytes."""
    return isinstance(value, int | str) and _SIZE.fullmatch(str(value)) is not None


def nbytes_of(size: int | str) -> int:
    """The bytes of what `is_size`."""
    found = _SIZE.fullmatch(str(size))
    assert found is not None
    return int(float(found[1]) * _UNITS[found[2]])
