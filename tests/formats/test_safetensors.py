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
    [
        *(("F32", "<f4"), ("F64", "<f8"), ("F16", "<f2"), ("BF16", ml_dtypes.bfloat16), ("I8", "i1"), ("I64", "<i8")),
        *(("BOOL", "?"), ("U8", "u1"), ("U16", "<u2"), ("U32", "<u4"), ("U64", "<u8")),
    ],
)
def test_plain_types(tmp_path: Path, name: str, dtype: object) -> None:
    values = np.arange(6).reshape(2, 3).astype(dtype)
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


def test_8_bit_floats_are_codes_and_numbers_and_complex_numbers_an_array(tmp_path: Path) -> None:
    kinds = {
        "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
        "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz, "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    }  # fmt: skip
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128)
    z = np.array([1 + 2j, -3j], np.complex64)
    tensors = {name: (name, [2, 128], codes.tobytes()) for name in kinds}
    with open_safetensors(write(tmp_path / "m", {"z": ("C64", [2], z.tobytes()), **tensors})) as file:
        for name, dtype in kinds.items():
            np.testing.assert_array_equal(file.tensors[name].array(), codes)
            np.testing.assert_array_equal(file.tensors[name].dequantize(), codes.view(dtype).astype(np.float32))
        np.testing.assert_array_equal(file.tensors["z"].array(), z)
        with pytest.raises(FormatError, match="complex64 has an imaginary part"):
            file.tensors["z"].dequantize()


def test_a_type_not_read_yet_matters_only_when_it_is_used(tmp_path: Path) -> None:
    with open_safetensors(write(tmp_path / "m", {"f4": ("F4", [4], bytes(2))})) as file:
        assert file.tensors["f4"].nbytes == 2
        with pytest.raises(FormatError, match="tensor 'f4': F4 is a block type camshaft does not read yet"):
            file.tensors["f4"].dequantize()


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
