"""Models for tests: the default one where it is, the tiny ones as files, and tiny ones changed on purpose."""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.errors import CamshaftError
from tests.support.compilers.stored import key_of, stored
from tests.support.fixtures import default_model, packed_model, tiny_model


def require_default_model() -> Path:
    """The default model's file. Where it is missing the test is skipped, and fails under CI."""
    path = default_model()
    if path is not None and path.is_file():
        return path
    message = "the default model is not there: run `camshaft pull`, or set CAMSHAFT_TEST_MODEL"
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(message)
    pytest.skip(message)


def changed_model(
    name: str | Path,
    folder: Path,
    *,
    keys: Mapping[str, Any] | None = None,
    drop_keys: Collection[str] = (),
    tensors: Mapping[str, np.ndarray | tuple[np.ndarray, gguf.GGMLQuantizationType]] | None = None,
    drop_tensors: Collection[str] = (),
) -> Path:
    """The tiny model `name`, or a file, written again into `folder` with other values of `keys` and tensors, and some left out.

    A changed key keeps its type where the value fits it. A tensor may be given as raw bytes [rows, bytes] with a block type.
    """
    found = _contents(name) if isinstance(name, Path) else _tiny_contents(name)
    arch = (keys or {}).get("general.architecture", found.architecture)
    path = folder / "changed.gguf"
    writer = gguf.GGUFWriter(path, arch)
    _copy_keys(found, writer, dict(keys or {}), drop_keys)
    _copy_tensors(found, writer, dict(tensors or {}), drop_tensors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@dataclass(frozen=True)
class _Contents:
    """A file's keys as the writer takes them, and its tensors."""

    architecture: str
    keys: tuple[tuple[str, Any, gguf.GGUFValueType, gguf.GGUFValueType | None], ...]
    tensors: Mapping[str, np.ndarray]


@functools.cache
def _tiny_contents(name: str) -> _Contents:
    """The package reads a tiny model in 60 ms, and a hundred tests change the same few: stored."""

    def made() -> bytes:
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows keeps a file that is mapped
            return pickle.dumps(_contents(tiny_model(name, Path(folder))))

    packed = hashlib.sha256(packed_model(name)).hexdigest()
    found: _Contents = pickle.loads(
        stored(key_of("contents", packed, version("gguf"), Path(__file__).read_text()), made)
    )
    return found


def _contents(path: Path) -> _Contents:
    reader = gguf.GGUFReader(path)
    rows = []
    for field in reader.fields.values():
        sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        rows.append((field.name, field.contents(), field.types[0], sub_type))
    architecture = reader.get_field("general.architecture").contents()
    return _Contents(architecture, tuple(rows), {t.name: np.array(t.data) for t in reader.tensors})


_KINDS = {
    bool: gguf.GGUFValueType.BOOL,
    int: gguf.GGUFValueType.UINT32,
    float: gguf.GGUFValueType.FLOAT32,
    str: gguf.GGUFValueType.STRING,
}


def _copy_keys(found: _Contents, writer: gguf.GGUFWriter, changes: dict[str, Any], drop: Collection[str]) -> None:
    for name, value, kind, sub_type in found.keys:
        if not name.startswith("GGUF.") and name not in ("general.architecture", *drop, *changes):
            writer.add_key_value(name, value, kind, sub_type)
    for name, value in changes.items():
        if name != "general.architecture":
            if isinstance(value, list):
                sub_type = gguf.GGUFValueType.INT32 if type(value[0]) is int else _KINDS[type(value[0])]
                writer.add_key_value(name, value, gguf.GGUFValueType.ARRAY, sub_type)
                continue
            writer.add_key_value(name, value, _KINDS[type(value)])


def _copy_tensors(found: _Contents, writer: gguf.GGUFWriter, changes: dict[str, Any], drop: Collection[str]) -> None:
    given = {name: data.copy() for name, data in found.tensors.items() if name not in drop} | changes
    for name, value in given.items():
        data, kind = value if isinstance(value, tuple) else (value, None)
        writer.add_tensor(name, data, raw_dtype=kind)


def refused(path: Path, kind: type[CamshaftError] | tuple[type[CamshaftError], ...], **options: Any) -> str:
    """The message with which a model is refused: one line."""
    with pytest.raises(kind) as caught:
        LanguageModel(path, **({"threads": 1, "context": 64, "sessions": 1} | options)).close()
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text
