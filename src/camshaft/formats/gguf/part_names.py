"""The names of the parts of a split model, NAME-00001-of-00003.gguf and so on."""

from __future__ import annotations

import os
import re
from pathlib import Path

_NAME = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


def part_names(name: str) -> tuple[str, ...]:
    """The names of all parts by the name of one; the name alone if it is not that of a part."""
    match = _NAME.fullmatch(name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]):
        return (name,)
    return tuple(f"{match[1]}-{i:05}-of-{match[3]}.gguf" for i in range(1, int(match[3]) + 1))


def part_paths(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The paths of all parts by the path of one; the path alone if it is not that of a part."""
    return tuple(Path(path).with_name(name) for name in part_names(Path(path).name))
