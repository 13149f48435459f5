"""Checkpoints of a run: one safetensors file with the states of a step and what the data were, written atomically."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.errors import StoreError, TrainingError, reason_of
from camshaft.formats.safetensors import open_safetensors, write_safetensors
from camshaft.store.file_lock import NO_LOCKS, try_lock
from camshaft.store.files import naming, remove_unfinished

Array = np.ndarray[Any, Any]
_KIND = "camshaft training checkpoint 1"
_LOCK = "lock"  # where folders cannot be opened: on Windows
_NAME = re.compile(r"step-(\d{8,})\.safetensors")


def prepare(folder: Path) -> None:
    """Makes the folder and removes what killed processes left unfinished there. StoreError if it cannot be made."""
    with naming(folder, "the folder cannot be made"):
        folder.mkdir(parents=True, exist_ok=True)
    remove_unfinished(folder)


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Owns a folder, which is made, during the block. TrainingError while another run does; where a file system has no locks
    nothing is known of others. StoreError if the folder cannot be made."""
    prepare(folder)
    path, flags = (folder / _LOCK, os.O_RDWR | os.O_CREAT) if sys.platform == "win32" else (folder, os.O_RDONLY)
    with naming(path, "cannot be opened"):
        descriptor = os.open(path, flags, 0o600)
    try:
        try:
            is_mine = try_lock(descriptor)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise StoreError(f"{path}: cannot be locked: {reason_of(error)}") from error
            is_mine = True
        if not is_mine:
            raise TrainingError(f"{folder}: another run writes its checkpoints there; wanted another folder")
        yield
    finally:
        os.close(descriptor)


def save(folder: Path, number: int, states: Mapping[str, Array], data: str, keep: int) -> Path:
    """Writes the checkpoint of a step and removes all but the newest `keep`. StoreError if it cannot be written."""
    prepare(folder)
    path = folder / f"step-{number:08d}.safetensors"
    write_safetensors(path, states, {"kind": _KIND, "step": str(number), "data": data})
    for old in _found(folder)[:-keep]:
        with naming(old, "the old checkpoint cannot be removed"):
            old.unlink(missing_ok=True)
    return path


def newest(folder: Path) -> Path | None:
    """The checkpoint of the latest step in a folder, if there is one."""
    found = _found(folder)
    return found[-1] if found else None


def number_of(path: Path) -> int:
    """The step of a checkpoint, by its name."""
    return int(path.stem.partition("-")[2])


def load(path: Path, data: str) -> dict[str, Array]:
    """The states of a checkpoint. TrainingError for another kind of file and for other data, FormatError for a damaged one."""
    with open_safetensors(path) as file:
        if file.metadata.get("kind") != _KIND:
            raise TrainingError(f"{path}: is {file.metadata.get('kind', 'some other file')!r:.60}; wanted a {_KIND}")
        if file.metadata.get("data") != data:
            raise TrainingError(f"{path}: was trained on {file.metadata.get('data')!r:.160}; wanted {data!r:.160}")
        return {name: tensor.array() for name, tensor in file.tensors.items()}


def _found(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the oldest first."""
    with naming(folder, "the folder cannot be read"):
        names = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(names, key=number_of)
