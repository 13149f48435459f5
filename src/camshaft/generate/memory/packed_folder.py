"""The cache folder that keeps a model's packed weights, and the setting that turns it off."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from camshaft.formats.gguf.file import GGUFFile
from camshaft.plan.memory.weight_cache import WeightCache, is_supported
from camshaft.settings import setting
from camshaft.store.files import atomic_file, digest_of, naming, private_folder, read_regular

_DIGITS = 16
_PATH = "path"  # in each folder: the path of the model's file


def packed_folder(file: GGUFFile) -> tuple[Path, str]:
    """The folder of a model's packed weights, made if it is missing, and the identity of its files.

    Folders of the file's earlier states, and of files that are gone, are removed. Raises StoreError if the folder cannot be used.
    """
    folder, identity = _place(file)
    _make(folder, file)
    return folder, identity


def weight_cache(file: GGUFFile) -> WeightCache | None:
    """Where a model's packed weights are kept for the next start; None if they are not."""
    if not setting("keep_weights") or not is_supported():
        return None
    folder, _ = _place(file)
    return WeightCache(folder, lambda: _make(folder, file))


def _make(folder: Path, file: GGUFFile) -> None:
    private_folder(folder.parent)
    private_folder(folder)
    with atomic_file(folder / _PATH) as path:
        path.write(os.fsencode(file.mapped.real_path))
    start = folder.name.partition("-")[0]
    with naming(folder.parent, "the folder cannot be read"):
        others = list(folder.parent.iterdir())
    for other in others:
        if other != folder and (other.name.startswith(f"{start}-") or _is_orphan(other)):
            with suppress(OSError):  # another process removes it too
                shutil.rmtree(other)


def _place(file: GGUFFile) -> tuple[Path, str]:
    parts = [part.mapped for part in file.parts] or [file.mapped]
    identity = digest_of([(part.real_path, *part.identity) for part in parts])
    start = digest_of(file.mapped.real_path)[:_DIGITS]
    root: Path = setting("cache_dir")
    return root.absolute() / "packed" / f"{start}-{identity[:_DIGITS]}", identity


def _is_orphan(folder: Path) -> bool:
    try:
        return not os.path.exists(os.fsdecode(read_regular(folder / _PATH)))
    except (OSError, ValueError):  # being made or removed, or no folder of ours
        return False
