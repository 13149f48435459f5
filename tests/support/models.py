"""Models for tests: the default one where it is, the tiny ones as files, and tiny ones changed on purpose."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.support.fixtures import default_model, tiny_model


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
    reader = gguf.GGUFReader(name if isinstance(name, Path) else tiny_model(name, folder))
    arch = (keys or {}).get("general.architecture", reader.get_field("general.architecture").contents())
    path = folder / "changed.gguf"
    writer = gguf.GGUFWriter(path, arch)
    _copy_keys(reader, writer, dict(keys or {}), drop_keys)
    _copy_tensors(reader, writer, dict(tensors or {}), drop_tensors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_KINDS = {
    bool: gguf.GGUFValueType.BOOL,
    int: gguf.GGUFValueType.UINT32,
    float: gguf.GGUFValueType.FLOAT32,
    str: gguf.GGUFValueType.STRING,
}


def _copy_keys(
    reader: gguf.GGUFReader, writer: gguf.GGUFWriter, changes: dict[str, Any], drop: Collection[str]
) -> None:
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", *drop, *changes):
            continue
        sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type)
    for name, value in changes.items():
        if name != "general.architecture":
            if isinstance(value, list):
                sub_type = gguf.GGUFValueType.INT32 if type(value[0]) is int else _KINDS[type(value[0])]
                writer.add_key_value(name, value, gguf.GGUFValueType.ARRAY, sub_type)
                continue
            writer.add_key_value(name, value, _KINDS[type(value)])


def _copy_tensors(
    reader: gguf.GGUFReader, writer: gguf.GGUFWriter, changes: dict[str, Any], drop: Collection[str]
) -> None:
    given = {t.name: np.array(t.data) for t in reader.tensors if t.name not in drop} | changes
    for name, value in given.items():
        data, kind = value if isinstance(value, tuple) else (value, None)
        writer.add_tensor(name, data, raw_dtype=kind)
