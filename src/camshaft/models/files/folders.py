"""Folders in Hugging Face's layout, opened as models: each is converted once, to a file in the cache."""

from __future__ import annotations

import hashlib
import os
import warnings
from contextlib import suppress
from pathlib import Path

from camshaft.errors import ModelError, reason_of
from camshaft.formats.mapped import path_for_messages
from camshaft.models.files.fetch import Progress
from camshaft.settings import settings
from camshaft.store.files import digest_of, private_folder
from camshaft.store.process_lock import locked
from camshaft.version import __version__

_ENDS = (".json", ".jinja", ".safetensors", "tokenizer.model")
_SAMPLE_NBYTES = 1 << 16  # of each file, at its beginning (of tensors: names, shapes), middle and end
_OF_FOLDER, _OF_CONTENT = 16, 32  # digits of a file's name


def is_model_folder(path: Path) -> bool:
    """Whether a folder has a config.json and tensors."""
    return (path / "config.json").is_file() and any(path.glob("*.safetensors"))


def converted_folder(folder: Path, progress: Progress | None = None) -> Path:
    """The GGUF file of a folder's model, in the weights' own types; made on first use, with a warning that says so where there is
    no `progress`. What an earlier state of the folder gave is deleted.

    Raises ModelError, FormatError, StoreError as `convert`."""
    target = _target(folder)
    if target.is_file():
        return target
    private_folder(target.parent)
    with locked(target.parent / "lock"):
        if not target.is_file():  # another process has not made it meanwhile
            _convert(folder, target, progress)
    return target


def _convert(folder: Path, target: Path, progress: Progress | None) -> None:
    from camshaft.models.convert.convert import convert  # which imports tokenizers; a later start does not need it

    name = path_for_messages(folder)
    if progress is None:
        warnings.warn(f"{name} is converted to GGUF, once: {path_for_messages(target)}", stacklevel=4)
    convert(folder, target, progress=progress or (lambda done, total: None))
    for old in target.parent.glob(f"{target.name[:_OF_FOLDER]}-*.gguf"):
        if old != target:
            with suppress(OSError):
                old.unlink()


def _target(folder: Path) -> Path:
    """The file's path: its name has the digests of the folder's path and of its content."""
    where = digest_of(os.path.realpath(folder))[:_OF_FOLDER]
    files = sorted(path for path in folder.iterdir() if path.name.endswith(_ENDS) and path.is_file())
    facts = digest_of(__version__, [_facts(path) for path in files])[:_OF_CONTENT]
    return settings().cache_dir / "models" / "converted" / f"{where}-{facts}.gguf"


def _facts(path: Path) -> list[str | int]:
    """A file's name, size, time of change, and the digest of parts of it."""
    found = hashlib.sha256()
    try:
        status = path.stat()
        with path.open("rb") as file:
            for at in (0, status.st_size // 2, max(0, status.st_size - _SAMPLE_NBYTES)):
                file.seek(at)
                found.update(file.read(_SAMPLE_NBYTES))
    except OSError as error:
        raise ModelError(f"{path_for_messages(path)} cannot be read: {reason_of(error)}") from error
    return [path.name, status.st_size, status.st_mtime_ns, found.hexdigest()]
