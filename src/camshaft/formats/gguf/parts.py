"""Models split over several GGUF files, NAME-00001-of-00003.gguf and so on: found, checked and read as one.

Each part says its number (split.no, from 0), that of all parts (split.count) and of all their tensors (split.tensors.count). The
first has the metadata.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from camshaft.errors import FormatError
from camshaft.formats.gguf.file import GGUFFile, GGUFTensor
from camshaft.formats.gguf.part_names import part_paths
from camshaft.formats.gguf.values import Metadata
from camshaft.formats.mapped import path_for_messages, shown, shown_value

_KEYS = ("split.no", "split.count", "split.tensors.count")

PathText: TypeAlias = "str | os.PathLike[str]"
Open: TypeAlias = Callable[[PathText], GGUFFile]


@dataclass(frozen=True)
class Split:
    """A part's number, from 0, the number of parts, and that of all their tensors (-1: the file does not say)."""

    number: int
    count: int
    n_tensors: int


def split_of(file: GGUFFile) -> Split | None:
    """Returns a file's split metadata, or None if it is not split. FormatError for inconsistent values."""
    if "split.count" not in file.metadata:
        return None
    count = _whole_number(file, "split.count", least=0)
    if count <= 1:
        return None
    n_tensors = _whole_number(file, "split.tensors.count", least=-1, default=-1)
    split = Split(_whole_number(file, "split.no", least=0), count, n_tensors)
    if split.number >= split.count:
        raise FormatError(f"{file.path}: split.no is {split.number} of {split.count} parts; wanted a smaller one")
    return split


def _whole_number(file: GGUFFile, key: str, least: int, default: int | None = None) -> int:
    value = file.metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise FormatError(f"{file.path}: the value of '{key}' is {shown_value(value)}; wanted a whole number")
    return value


def joined(path: PathText, open_one: Open, open_first: Open | None = None) -> GGUFFile:
    """The file at `path`, or, if it is a part, all parts as one file.

    `open_one` opens a file by its path, and `open_first` that with the metadata. FormatError for a missing or foreign part."""
    open_first = open_first or open_one
    with ExitStack() as stack:
        file = stack.enter_context(open_first(path))
        split = split_of(file)
        if split is None:
            stack.pop_all()
            return file
        parts = []
        for number, one in enumerate(_paths(Path(path), file.path, split)):
            opener = open_one if number else open_first
            is_open = number == split.number
            parts.append(file if is_open else stack.enter_context(_present(one, number, split, opener)))
            _check(parts[number], number, split, file.path)
        tensors = dict(_all_tensors(parts))
        if split.n_tensors not in (-1, len(tensors)):
            raise FormatError(
                f"{file.path}: its {split.count} parts have {len(tensors)} tensors; wanted {split.n_tensors}"
            )
        stack.pop_all()
        first = parts[0]
        entries = {key: entry for key, entry in first.metadata.entries.items() if key not in _KEYS}
        metadata = Metadata(first.mapped, entries)
        return GGUFFile(first.mapped, first.version, metadata, tensors, first.header_nbytes, tuple(parts))


def _paths(path: Path, shown_path: str, split: Split) -> list[Path]:
    what = f"{shown_path}: is part {split.number + 1} of {split.count} of a split model"
    wanted = f"-{split.number + 1:05}-of-{split.count:05}.gguf"
    paths = part_paths(path)
    if len(paths) != split.count or not path.name.endswith(wanted):
        raise FormatError(f"{what}; wanted a name that ends with {wanted}, and the other parts beside it")
    return list(paths)


def _present(path: Path, number: int, split: Split, open_one: Open) -> GGUFFile:
    if not path.exists():
        raise FormatError(
            f"{path_for_messages(path)}: is missing; it is part {number + 1} of {split.count} of the model"
        )
    return open_one(path)


def _check(part: GGUFFile, number: int, split: Split, asked: str) -> None:
    """Raise FormatError unless a file is that part of the same model."""
    found = split_of(part)
    if found is None:
        raise FormatError(f"{part.path}: is a whole file; wanted part {number + 1} of {split.count} of {asked}")
    if (found.number, found.count, found.n_tensors) != (number, split.count, split.n_tensors):
        what = f"part {found.number + 1} of {found.count} with {found.n_tensors} tensors in all"
        wanted = f"part {number + 1} of {split.count} with {split.n_tensors}"
        raise FormatError(f"{part.path}: is {what}; wanted {wanted}, as {asked} says")


def _all_tensors(parts: list[GGUFFile]) -> Iterator[tuple[str, GGUFTensor]]:
    seen: set[str] = set()
    for part in parts:
        for name, tensor in part.tensors.items():
            if name in seen:
                raise FormatError(f"{part.path}: has the tensor {shown(name)}, as another part of the model")
            seen.add(name)
            yield name, tensor
