"""Valid GGUF files: metadata, tensors, and lazy reading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf_files import ARRAY, STRING, U32, info, key, raw_gguf, text, u32, u64, write_model

from camshaft.errors import FormatError
from camshaft.formats.gguf import values as gguf_values
from camshaft.formats.gguf.file import open_gguf


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    return tmp_path / "m.gguf", write_model(tmp_path / "m.gguf")


def save(folder: Path, data: bytes) -> Path:
    (folder / "raw.gguf").write_bytes(data)
    return folder / "raw.gguf"


def test_scalars_have_their_python_types(model) -> None:
    with open_gguf(model[0]) as file:
        values = {k.removeprefix("test."): v for k, v in file.metadata.items()}
    assert file.version == 3
    assert values["general.name"] == "a name, ünïcode"
    numbers = [values[n] for n in ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64", "yes")]
    assert numbers == [200, -3, 60000, -30000, 4_000_000_000, -2_000_000_000, 2**63 + 1, -(2**62), 0.5, 0.1, True]
    assert [type(n) for n in numbers] == [int] * 8 + [float] * 2 + [bool]


def test_arrays_outlive_the_file_and_cannot_be_written(model) -> None:
    with open_gguf(model[0]) as file:
        floats, ints, flags = (file.metadata[f"test.{n}"] for n in ("floats", "ints", "flags"))
    assert (floats.dtype, floats.tolist()) == (np.float32, [0.5, -1.5, 3.0])
    assert (ints.dtype, ints.tolist()) == (np.int32, [1, -2, 3])
    assert (flags.dtype, flags.tolist()) == (np.bool_, [True, False])
    assert not floats.flags.writeable


def test_string_arrays_are_sequences(model) -> None:
    with open_gguf(model[0]) as file:
        tokens = file.metadata["tokenizer.ggml.tokens"]
        assert list(tokens) == ["<s>", "ü", "", "日本", "end"]
        assert (len(tokens), tokens[1], tokens[-1], tokens[1:4:2]) == (5, "ü", "end", ["ü", "日本"])
        assert tokens.as_bytes()[3] == "日本".encode()
        assert tokens.index("end") == 4
        with pytest.raises(IndexError):
            tokens[5]


@pytest.mark.parametrize("alignment", [None, 1, 8, 4096])
def test_tensors(tmp_path: Path, alignment: int | None) -> None:
    wanted = write_model(tmp_path / "m.gguf", alignment=alignment)
    with open_gguf(tmp_path / "m.gguf") as file:
        assert list(file.tensors) == list(wanted)
        for name, values in wanted.items():
            tensor = file.tensors[name]
            assert tensor.shape == values.shape
            assert tensor.offset % (alignment or 32) == 0
            assert np.array_equal(tensor.dequantize(), values)
        packed = file.tensors["packed"]
        assert (packed.format.name, packed.nbytes) == ("Q4_1", 3 * 3 * 20)
        assert packed.blocks().shape == (3, 3, 20)


def test_plain_tensors_have_an_array_in_their_own_dtype(model) -> None:
    path, wanted = model
    with open_gguf(path) as file:
        half, ints = file.tensors["half"].array(), file.tensors["ints"].array()
        with pytest.raises(FormatError, match="'packed' is Q4_1; wanted a plain dtype"):
            file.tensors["packed"].array()
    assert (half.dtype, half.shape) == (np.float16, (5, 64))
    assert np.array_equal(half.astype(np.float32), wanted["half"])
    assert ints.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_data_is_a_read_only_view_that_outlives_close(model) -> None:
    path, wanted = model
    file = open_gguf(path)
    data = file.tensors["plain"].data()
    file.close()
    file.close()
    assert (data.dtype, data.flags.writeable, data.flags.owndata) == (np.uint8, False, False)
    assert np.array_equal(data.view(np.float32).reshape(5, 64), wanted["plain"])
    with pytest.raises(FormatError, match="the file was closed"):
        file.tensors["plain"].data()
    with pytest.raises(FormatError, match="the file was closed"):
        file.metadata["general.name"]


def test_nothing_is_decoded_at_open(model, monkeypatch) -> None:
    calls: list[str] = []
    decode, numbers = gguf_values.decode_text, gguf_values._numbers

    def counted_text(data: bytes, path: str, what: str) -> str:
        calls.append(what)
        return decode(data, path, what)

    def counted_numbers(cursor, name: str, type_id: int, count: int):
        calls.append(name)
        return numbers(cursor, name, type_id, count)

    monkeypatch.setattr(gguf_values, "decode_text", counted_text)
    monkeypatch.setattr(gguf_values, "_numbers", counted_numbers)
    with open_gguf(model[0]) as file:
        assert len(file.metadata) > 15
        assert calls == []
        file.metadata["tokenizer.ggml.tokens"]
        assert calls == []
        assert file.metadata["general.name"] == file.metadata["general.name"]
        assert calls == ["the value of 'general.name'"]
        assert file.metadata["tokenizer.ggml.tokens"][1] == "ü"
        assert calls[1:] == ["string 1 of 'tokenizer.ggml.tokens'"]


def test_a_large_vocabulary_is_read_whole(tmp_path: Path) -> None:
    words = [f"w{i}é" for i in range(20_000)]
    value = u32(STRING) + u64(len(words)) + b"".join(map(text, words))
    with open_gguf(save(tmp_path, raw_gguf([key("tokens", ARRAY, value)]))) as file:
        assert list(file.metadata["tokens"]) == words


def test_version_2_and_a_file_without_anything(tmp_path: Path) -> None:
    with open_gguf(save(tmp_path, raw_gguf(version=2))) as file:
        assert (file.version, dict(file.metadata), dict(file.tensors)) == (2, {}, {})


def test_a_scalar_tensor_has_no_dimensions(tmp_path: Path) -> None:
    path = save(tmp_path, raw_gguf(infos=[info("s", ())], data=np.float32(2.5).tobytes()))
    with open_gguf(path) as file:
        assert file.tensors["s"].shape == ()
        assert file.tensors["s"].dequantize() == np.float32(2.5)
        assert file.tensors["s"].blocks().shape == (1, 4)


def test_a_type_not_read_yet_matters_only_when_it_is_used(tmp_path: Path) -> None:
    infos = [info("good", (8,)), info("bad", (256,), 41, 32)]
    with open_gguf(save(tmp_path, raw_gguf(infos=infos, data=bytes(32 + 36)))) as file:
        assert file.tensors["good"].dequantize().tolist() == [0.0] * 8
        assert file.tensors["bad"].format.name == "Q1_0"
        for use in ("data", "dequantize", "array", "blocks"):
            with pytest.raises(FormatError, match="tensor 'bad': Q1_0 is a block type camshaft does not read yet"):
                getattr(file.tensors["bad"], use)()


def test_a_text_that_is_not_utf8_is_named_when_it_is_used(tmp_path: Path) -> None:
    strings = u32(STRING) + u64(2) + text("fine") + text(b"\xff\xfe")
    path = save(tmp_path, raw_gguf([key("bad", STRING, text(b"\xff")), key("list", ARRAY, strings)]))
    with open_gguf(path) as file:
        with pytest.raises(FormatError, match="the value of 'bad' is not UTF-8"):
            file.metadata["bad"]
        with pytest.raises(FormatError, match="string 1 of 'list' is not UTF-8"):
            list(file.metadata["list"])
        assert file.metadata["list"][0] == "fine"
        assert file.metadata["list"].as_bytes() == [b"fine", b"\xff\xfe"]


@pytest.mark.parametrize("strings", [[], [""], ["a", "", "Ġé日"], ["a", "b\0c", ""], ["x" * 300, "y"], ["\0"]])
def test_all_strings_of_an_array(tmp_path: Path, strings: list[str]) -> None:
    """Decoded in one go, but for those with zeros or of 256 bytes and more."""
    values = u32(STRING) + u64(len(strings)) + b"".join(text(string) for string in strings)
    with open_gguf(save(tmp_path, raw_gguf([key("list", ARRAY, values)]))) as file:
        assert list(file.metadata["list"]) == strings
        assert len(file.metadata["list"]) == len(strings)


def test_one_part_of_one_is_no_split_file(tmp_path: Path) -> None:
    with open_gguf(save(tmp_path, raw_gguf([key("split.count", U32, u32(1))]))) as file:
        assert file.metadata["split.count"] == 1
