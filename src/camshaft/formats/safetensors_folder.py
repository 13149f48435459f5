"""Folders in the layout of Hugging Face's hub: JSON files, and the tensors of one or more safetensors files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

from camshaft.errors import FormatError, reason_of
from camshaft.formats.mapped import path_for_messages, require_ordinary_file, shown
from camshaft.formats.safetensors import open_safetensors
from camshaft.formats.tensor import FileTensor

INDEX = "model.safetensors.index.json"
_MAX_JSON_NBYTES = 256_000_000  # a tokenizer.json of 260k tokens takes 33 MB


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file. Raises FormatError if the file is missing, too large, or not an object."""
    name = path_for_messages(path)
    require_ordinary_file(path)
    if path.stat().st_size > _MAX_JSON_NBYTES:
        raise FormatError(f"{name}: has {path.stat().st_size} bytes; wanted at most {_MAX_JSON_NBYTES}")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise FormatError(f"{name}: is not readable JSON: {shown(str(error), 120)}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{name}: holds {type(value).__name__}; wanted an object")
    return value


class SafetensorsFolder:
    """The tensors in a folder's `files`, by name. A context manager."""

    def __init__(self, path: Path) -> None:
        """Open the files. Raises FormatError for a missing or damaged one, and for an index that does not match them."""
        self.path = path_for_messages(path)
        self.files = _files(path)
        with ExitStack() as stack:
            opened = {name: stack.enter_context(open_safetensors(path / name)) for name in self.files}
            tensors: dict[str, FileTensor] = {}
            for file in opened.values():
                twice = next((name for name in file.tensors if name in tensors), None)
                if twice is not None:
                    raise FormatError(f"{self.path}: the tensor {shown(twice)} is in two files")
                tensors |= file.tensors
            _check_index(path, {name: set(file.tensors) for name, file in opened.items()})
            self._stack = stack.pop_all()
        self.tensors: Mapping[str, FileTensor] = MappingProxyType(tensors)

    @property
    def nbytes(self) -> int:
        """Total bytes of the safetensors files."""
        return sum(os.path.getsize(os.path.join(self.path, name)) for name in self.files)

    def close(self) -> None:
        """Close the files. Arrays returned before stay valid."""
        self._stack.close()

    def __enter__(self) -> SafetensorsFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _files(folder: Path) -> tuple[str, ...]:
    """The files of an index, or all .safetensors files."""
    if (folder / INDEX).exists():
        return tuple(sorted({*_weight_map(folder).values()}))
    try:
        found = tuple(sorted(p.name for p in folder.iterdir() if p.suffix == ".safetensors"))
    except OSError as error:
        raise FormatError(f"{path_for_messages(folder)}: cannot be read: {reason_of(error)}") from None
    if not found:
        raise FormatError(f"{path_for_messages(folder)}: has no .safetensors file; wanted a model's folder")
    return found


def _weight_map(folder: Path) -> dict[str, str]:
    path = folder / INDEX
    rows = read_json(path).get("weight_map")
    if not isinstance(rows, dict) or not rows:
        raise FormatError(f"{path_for_messages(path)}: weight_map is not an object; wanted the file of each tensor")
    for file in rows.values():
        if not isinstance(file, str) or not file.endswith(".safetensors") or Path(file).name != file or "\\" in file:
            raise FormatError(f"{path_for_messages(path)}: has the file {shown(str(file))}; wanted a .safetensors name")
    return rows


def _check_index(folder: Path, found: Mapping[str, set[str]]) -> None:
    if not (folder / INDEX).exists():
        return
    for name, file in _weight_map(folder).items():
        if name not in found[file]:
            raise FormatError(f"{path_for_messages(folder / file)}: lacks {shown(name)}, which the index puts there")
