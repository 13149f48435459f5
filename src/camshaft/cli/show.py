"""Print values for people (aligned columns, wrapped text, sizes) and for programs (JSON)."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any


def print_json(value: object) -> None:
    """Print `value`, which may contain dataclasses, as one JSON object on one line."""
    print(json.dumps(plain(value)))


def plain(value: object) -> Any:
    """Convert `value` to JSON types: dataclasses, mappings, sets, enums, paths. Raises TypeError for anything else."""
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no place in JSON: {value!r}")


def print_columns(rows: Sequence[Sequence[object]], *, right: frozenset[int] = frozenset()) -> None:
    """Print `rows` as aligned columns, two spaces apart; the columns in `right` are right-aligned."""
    texts = [[str(cell) for cell in row] for row in rows]
    if not texts:
        return
    widths = [max(len(row[i]) for row in texts) for i in range(len(texts[0]))]
    for row in texts:
        cells = [text.rjust(widths[i]) if i in right else text.ljust(widths[i]) for i, text in enumerate(row)]
        print("  ".join(cells).rstrip())


def print_tree(value: object, indent: int = 0) -> None:
    """Print nested mappings as indented `name  value` lines with long values wrapped, and lists of mappings as columns."""
    items = plain(value)
    width = max((len(name) for name, item in items.items() if not _is_nested(item)), default=0)
    for name, item in items.items():
        if not _is_nested(item):
            _print_wrapped(" " * indent + name.ljust(width) + "  ", _cell(item))
            continue
        print(" " * indent + name)
        if isinstance(item, dict):
            print_tree(item, indent + 2)
        else:
            titles = [title for title in item[0] if any(row[title] is not None for row in item)]
            rows = [[_cell(row[title]) for title in titles] for row in item]
            print_columns([[" " * indent + " ", *row] for row in (titles, *rows)])


def size(nbytes: int) -> str:
    """`nbytes` as text, such as "98.4 MB"."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.1f} {unit}"
    return f"{nbytes} bytes"


def _is_nested(item: Any) -> bool:
    """True for a non-empty mapping, or a list of mappings with the same keys."""
    if isinstance(item, list):
        return bool(item) and all(isinstance(row, dict) and row and row.keys() == item[0].keys() for row in item)
    return isinstance(item, dict) and bool(item)


def _print_wrapped(start: str, text: str) -> None:
    columns = max(shutil.get_terminal_size().columns, 60)
    wrapper = textwrap.TextWrapper(columns, start, " " * len(start), break_long_words=False, break_on_hyphens=False)
    print(wrapper.fill(text))


def _cell(item: Any) -> str:
    if item is None:
        return "unknown"
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, list):
        return " ".join(_cell(each) for each in item) if item else "none"
    if isinstance(item, dict):
        return ", ".join(f"{name} {_cell(each)}" for name, each in item.items()) if item else "none"
    return f"{item:.4g}" if isinstance(item, float) else str(item)
