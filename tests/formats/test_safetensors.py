"""safetensors files through their library, with the interface of GGUF tensors."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from camshaft.errors import FormatError, MissingExtraError
from camshaft.formats.safetensors import open_safetensors

pytest.importorskip("safetensors")


def write(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> Path:
    header: dict[str, object] = {"__metadata__": {"made": "for a test"}}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + len(data)]}
        position += len(data)
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(data for _, _, data in tensors.values()))
    return path


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("F32", "<f4"), ("F64", "<f8"), ("F16", "<f2"), ("BF16", ml_dtypes.bfloat16), ("I8", "i1"), ("I64", "<i8")],
)
def test_plain_types(tmp_path: Path, name: str, dtype: object) -> None:
    values = (np.arange(6).reshape(2, 3) - 2).astype(dtype)
    with open_safetensors(write(tmp_path / "m", {"w": (name, [2, 3], values.tobytes())})) as file:
        tensor = file.tensors["w"]
        assert (tensor.shape, tensor.format.name, tensor.nbytes) == ((2, 3), name, values.nbytes)
        assert tensor.data().tobytes() == values.tobytes()
        assert not tensor.data().flags.writeable
        assert tensor.array().dtype == np.dtype(dtype)
        assert np.array_equal(tensor.dequantize(), values.astype(np.float32))
        assert file.metadata == {"made": "for a test"}


def test_a_scalar(tmp_path: Path) -> None:
    with open_safetensors(write(tmp_path / "m", {"s": ("F32", [], np.float32(3).tobytes())})) as file:
        assert file.tensors["s"].dequantize() == np.float32(3)


def test_a_type_not_read_yet_matters_only_when_it_is_used(tmp_path: Path) -> None:
    with open_safetensors(write(tmp_path / "m", {"f8": ("F8_E4M3", [4], bytes(4))})) as file:
        assert file.tensors["f8"].nbytes == 4
        with pytest.raises(FormatError, match="tensor 'f8': F8_E4M3 is a block type camshaft does not read yet"):
            file.tensors["f8"].dequantize()


def test_a_closed_file_is_named(tmp_path: Path) -> None:
    file = open_safetensors(write(tmp_path / "m", {"w": ("F32", [1], bytes(4))}))
    file.close()
    file.close()
    with pytest.raises(FormatError, match="the file was closed"):
        file.tensors["w"].data()


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, struct.pack("<Q", 2) + b"{}" + b"extra", b"GGUF"])
def test_damaged_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(FormatError, match="is not a readable safetensors file") as caught:
        open_safetensors(tmp_path / "bad")
    assert str(caught.value).startswith(str(tmp_path / "bad"))
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="there is no such file"):
        open_safetensors(tmp_path / "none")
    with pytest.raises(FormatError, match="is a folder"):
        open_safetensors(tmp_path)


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'camshaft\[safetensors\]'"):
        open_safetensors(tmp_path / "m")
