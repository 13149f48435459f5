"""`camshaft show`: what a file holds, as text and as JSON, with its control characters escaped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from camshaft.cli.commands.model_files.show import escaped_line
from camshaft.errors import FormatError
from camshaft.formats.gguf.file import open_gguf
from camshaft.formats.safetensors import write_safetensors
from camshaft.formats.safetensors_folder import INDEX, SafetensorsFolder
from camshaft.models.files.contents import contents
from tests.support.fixtures import tiny_model


def test_a_model_is_shown_with_its_values_cut(cli: Any, tmp_path: Path) -> None:
    path = tiny_model("llama", tmp_path)
    result = cli("show", str(path))
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["family", "llama"] in lines
    assert ["blk.0.attn_q.weight", "64", "x", "64", "F32", "16.4", "kB"] in lines
    assert any(line[:2] == ["tokenizer.ggml.tokens", "273"] and line[-1] == "..." for line in lines)
    assert result.stdout.rstrip().endswith("{% endif %}")


def test_json_has_every_tensor_and_totals_that_add_up(cli: Any, tmp_path: Path) -> None:
    path = tiny_model("qwen3moe", tmp_path)
    shown = json.loads(cli("show", str(path), "--json").stdout)
    with open_gguf(path) as file:
        assert [t["name"] for t in shown["tensors"]] == list(file.tensors)
        assert sum(t["nbytes"] for t in shown["totals"]) == sum(t.nbytes for t in file.tensors.values())
        assert {row["key"] for row in shown["metadata"]} == {*file.metadata} - {"tokenizer.chat_template"}
    assert shown["runs"]
    assert shown["family"] == "qwen3moe"
    assert shown["chat_template"]
    assert shown["tokenizer"]["special"] == [["bos", 1, "<|im_start|>"], ["eos", 2, "<|im_end|>"]]
    tokens = next(row for row in shown["metadata"] if row["key"] == "tokenizer.ggml.tokens")
    assert (tokens["n_items"], len(tokens["value"])) == (shown["tokenizer"]["n_tokens"], 8)


def test_control_characters_of_a_file_never_reach_the_output(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "evil.gguf"
    writer = gguf.GGUFWriter(path, "evil\x1b[2J")
    writer.add_name("two\nlines\x1b]0;title\x07\u202e")
    writer.add_chat_template("{{ x }}\n\x1b[31m")
    writer.add_key_value("some.nan", float("nan"), gguf.GGUFValueType.FLOAT32)
    writer.add_tensor("\x1b[1mname", np.zeros(3, np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    result = cli("show", str(path))
    assert result.exit_code == 0
    assert not any(c in result.stdout for c in "\x1b\x07\u202e")
    assert r"two\nlines\x1b]0;title\x07\u202e" in result.stdout
    assert "(camshaft lacks it)" in result.stdout
    values = json.loads(cli("show", str(path), "--json").stdout, parse_constant=pytest.fail)
    assert next(row for row in values["metadata"] if row["key"] == "some.nan")["value"] == "nan"


def test_a_long_text_is_cut() -> None:
    assert escaped_line("a\tb" + "c" * 500, limit=10) == "a\\tbcccc..."


def _folder(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama", "rope_scaling": {"factor": Infinity}}')
    (path / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}}}')
    (path / "chat_template.jinja").write_text("{{ messages }}")
    parts = {"a.safetensors": {"x": np.zeros((2, 3), np.float32)}, "b.safetensors": {"y": np.zeros(4, np.float16)}}
    for name, tensors in parts.items():
        write_safetensors(path / name, tensors)
    (path / INDEX).write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))
    return path


def test_a_folder_of_safetensors_files_is_shown(cli: Any, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "model")
    found = contents(folder)
    assert [(t.name, t.format, t.shape) for t in found.tensors] == [("x", "F32", (2, 3)), ("y", "F16", (4,))]
    assert found.tokenizer is not None
    assert found.tokenizer.n_tokens == 2
    assert found.chat_template == "{{ messages }}"
    assert cli("show", str(folder), "--json").exit_code == cli("show", str(folder / "a.safetensors")).exit_code == 0


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({"weight_map": {"x": "../a.safetensors"}}, "wanted a .safetensors name"),
        ({"weight_map": {"x": "a.safetensors", "z": "b.safetensors"}}, "lacks 'z'"),
        ({"weight_map": {"x": "c.safetensors"}}, "there is no such file"),
        ({"weight_map": []}, "is not an object"),
        ([1], "holds list"),
    ],
)
def test_an_index_that_lies_is_refused(index: Any, words: str, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "model")
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(FormatError, match=words):
        SafetensorsFolder(folder)


def test_a_folder_without_a_config_is_one_line(cli: Any, tmp_path: Path) -> None:
    result = cli("show", str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "has no config.json" in result.stderr
