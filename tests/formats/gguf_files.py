"""GGUF files for tests: valid ones by the `gguf` package, invalid ones byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from camshaft.errors import FormatError
from camshaft.formats.gguf.file import open_gguf

U8, U16, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 2, 4, 6, 7, 8, 9, 10


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return u64(len(data)) + data


def key(name: str | bytes, type_id: int, value: bytes) -> bytes:
    return text(name) + u32(type_id) + value


def info(name: str, dims: tuple[int, ...] = (32,), type_id: int = 0, offset: int = 0) -> bytes:
    """A tensor's description; dims in the file's order, the contiguous one first."""
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(type_id) + u64(offset)


def raw_gguf(
    keys: list[bytes] | None = None,
    infos: list[bytes] | None = None,
    data: bytes = b"",
    *,
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file from its pieces; the counts may lie."""
    keys, infos = keys or [], infos or []
    counts = u64(len(infos) if n_tensors is None else n_tensors) + u64(len(keys) if n_keys is None else n_keys)
    head = b"GGUF" + u32(version) + counts + b"".join(keys) + b"".join(infos)
    return head + b"\0" * (-len(head) % alignment) + data


def write_model(path: Path, *, alignment: int | None = None) -> dict[str, np.ndarray]:
    """A small file with every kind of value and four tensors; the tensors' values in float32 by name."""
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_name("a name, ünïcode")
    writer.add_uint8("test.u8", 200)
    writer.add_int8("test.i8", -3)
    writer.add_uint16("test.u16", 60000)
    writer.add_int16("test.i16", -30000)
    writer.add_uint32("test.u32", 4_000_000_000)
    writer.add_int32("test.i32", -2_000_000_000)
    writer.add_uint64("test.u64", 2**63 + 1)
    writer.add_int64("test.i64", -(2**62))
    writer.add_float32("test.f32", 0.5)
    writer.add_float64("test.f64", 0.1)
    writer.add_bool("test.yes", True)
    writer.add_array("test.floats", [0.5, -1.5, 3.0])
    writer.add_array("test.ints", [1, -2, 3])
    writer.add_array("test.flags", [True, False])
    writer.add_token_list(["<s>", "ü", "", "日本", "end"])
    plain = rng.standard_normal((5, 64)).astype(np.float32)
    quantized = gguf.quants.quantize(rng.standard_normal((3, 96)).astype(np.float32), GGMLQuantizationType.Q4_1)
    wanted = {"plain": plain, "half": plain.astype(np.float16).astype(np.float32), "ints": np.arange(6.0).reshape(3, 2)}
    writer.add_tensor("plain", plain)
    writer.add_tensor("half", plain.astype(np.float16))
    writer.add_tensor("ints", np.arange(6, dtype=np.int32).reshape(3, 2))
    writer.add_tensor("packed", quantized, raw_dtype=GGMLQuantizationType.Q4_1)
    wanted["packed"] = gguf.quants.dequantize(quantized, GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {name: values.astype(np.float32) for name, values in wanted.items()}


def refused(path: Path) -> str:
    """The one line that a file is refused with."""
    with pytest.raises(FormatError) as caught:
        open_gguf(path)
    message = str(caught.value)
    assert message.startswith(str(path)), message
    assert "\n" not in message
    assert len(message) < len(str(path)) + 300
    return message
