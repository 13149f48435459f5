"""The folder of the cache with a model's packed weights, and whether they are kept there."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from camshaft.formats.gguf.file import GGUFFile
from camshaft.plan.memory.weight_cache import WeightCache, is_supported
from camshaft.settings import setting
from camshaft.store.digest import digest_of
from camshaft.store.files import atomic_file, private_folder, read_regular

_DIGITS = 16
_PATH = "path"  # in each folder: the path of the model's file


def packed_folder(file: GGUFFile) -> tuple[Path, str]:
    """The folder of a model's packed weights, made if it is missing, and the identity of its files.

    Folders of the file's earlier states, and of files that are gone, are removed. Raises StoreError if the folder cannot be used.
    """
    folder, identity = _place(file)
    private_folder(folder.parent)
    private_folder(folder)
    with atomic_file(folder / _PATH) as path:
        path.write(os.fsencode(os.path.realpath(file.path)))
    start = folder.name.partition("-")[0]
    for other in folder.parent.iterdir():
        if other != folder and (other.name.startswith(f"{start}-") or _is_orphan(other)):
            with suppress(OSError):  # another process removes it too
                shutil.rmtree(other)
    return folder, identity


def weight_cache(file: GGUFFile) -> WeightCache | None:
    """Where a model's packed weights are kept for the next start; None if they are not."""
    if not setting("keep_weights") or not is_supported():
        return None
    return WeightCache(_place(file)[0], lambda: packed_folder(file)[0])


def _place(file: GGUFFile) -> tuple[Path, str]:
    parts = [part.mapped for part in file.parts] or [file.mapped]
    identity = digest_of([(part.path, *part.identity) for part in parts])
    start = digest_of(os.path.realpath(file.path))[:_DIGITS]
    root: Path = setting("cache_dir")
    return root.absolute() / "packed" / f"{start}-{identity[:_DIGITS]}", identity


def _is_orphan(folder: Path) -> bool:
    try:
        return not os.path.exists(os.fsdecode(read_regular(folder / _PATH)))
    except (OSError, ValueError):  # being made or removed, or no folder of ours
        return False
