"""Importance matrices: computed as by hand, written and read, used by quantize, and refused in one line where they do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner

from camshaft.cli.main import app
from camshaft.errors import CamshaftError, ContextError, FormatError, SettingError
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.formats.gguf.file import open_gguf
from camshaft.formats.importance import quantize_rows
from camshaft.generate.measures.importance import importance_matrix
from camshaft.models.files.chosen_formats import formats_of
from camshaft.models.files.imatrix import ImportanceMatrix, read_imatrix, write_imatrix
from camshaft.models.files.quantization_mix import MIXES
from camshaft.models.files.quantize import quantize
from camshaft.text.tokenizer import Tokenizer
from tests.support.fixtures import excerpt, tiny_model
from tests.support.models.sketches import sketch

CHUNK = 16


def _matrix(k: int = 4) -> ImportanceMatrix:
    sums = {"b.weight": np.arange(2.0 * k, dtype=np.float32).reshape(2, k), "a.weight": np.ones((1, k), np.float32)}
    counts = {"b.weight": np.array([4, 0], np.float32), "a.weight": np.array([2], np.float32)}
    return ImportanceMatrix(sums, counts, ("some text",), 3, 512)


def test_a_matrix_comes_back_from_its_file(tmp_path: Path) -> None:
    write_imatrix(tmp_path / "i.gguf", _matrix())
    back = read_imatrix(tmp_path / "i.gguf")
    assert (back.datasets, back.chunk_count, back.chunk_size) == (("some text",), 3, 512)
    for name, sums in _matrix().sums.items():
        np.testing.assert_array_equal(back.sums[name], sums)
        np.testing.assert_array_equal(back.counts[name], _matrix().counts[name])
    np.testing.assert_array_equal(back.importance("b.weight"), [[0, 0.25, 0.5, 0.75], [1, 1, 1, 1]])
    assert back.importance("c.weight") is None
    theirs = gguf.GGUFReader(tmp_path / "i.gguf")
    assert [t.name for t in theirs.tensors][:2] == ["a.weight.in_sum2", "a.weight.counts"]
    assert theirs.fields["general.type"].contents() == "imatrix"


def _embedding_squares(path: Path, n_chunks: int) -> np.ndarray:
    """The sums of squares of the first layer's normed inputs, by hand."""
    with open_gguf(path) as file:
        ids = Tokenizer.from_gguf(file.metadata).encode(excerpt())[: n_chunks * CHUNK]
        x = file.tensors["token_embd.weight"].dequantize()[ids].astype(np.float64)
        norm = file.tensors["blk.0.attn_norm.weight"].dequantize()
    x = x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + 1e-5) * norm
    made: np.ndarray = np.square(x).sum(axis=0)
    return made


def test_sums_are_those_of_the_inputs(tmp_path: Path) -> None:
    path = tiny_model("llama", tmp_path)
    seen: list[tuple[int, int]] = []
    found = importance_matrix(
        path, excerpt(), chunk=CHUNK, chunks=2, threads=1, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(0, 2), (1, 2), (2, 2)]
    for role in ("attn_q", "attn_k", "attn_v"):
        np.testing.assert_allclose(found.sums[f"blk.0.{role}.weight"][0], _embedding_squares(path, 2), rtol=1e-4)
    assert all(counts.tolist() == [2 * CHUNK] for counts in found.counts.values())
    with open_gguf(path) as file:
        matrices = {n for n, t in file.tensors.items() if n.startswith("blk.") and len(t.shape) == 2}
    assert {*found.sums} == matrices


@pytest.mark.full
def test_recurrent_layers_have_sums(tmp_path: Path) -> None:
    path = tiny_model("mamba2", tmp_path)
    found = importance_matrix(path, excerpt(), chunk=CHUNK, chunks=2, threads=1)
    np.testing.assert_allclose(found.sums["blk.0.ssm_in.weight"][0], _embedding_squares(path, 2), rtol=1e-4)
    assert {name.split(".")[2] for name in found.sums} == {"ssm_in", "ssm_out"}


def test_experts_count_the_tokens_that_chose_them(tmp_path: Path) -> None:
    found = importance_matrix(tiny_model("qwen3moe", tmp_path), excerpt(), chunk=CHUNK, chunks=1, threads=1)
    up, down = (found.counts[f"blk.0.ffn_{name}_exps.weight"] for name in ("up", "down"))
    assert up.shape == (4,)
    assert up.sum() == 2 * CHUNK  # of four experts each token chooses two
    np.testing.assert_array_equal(up, down)
    assert found.sums["blk.0.ffn_down_exps.weight"].shape == (4, 32)
    every = found.sums["blk.0.ffn_gate_inp.weight"][0]
    np.testing.assert_allclose(found.sums["blk.0.ffn_up_exps.weight"].sum(axis=0), 2 * every, rtol=1e-4)


def test_texts_and_models_that_cannot_be(tmp_path: Path) -> None:
    path = tiny_model("llama", tmp_path)
    cases: list[tuple[Any, dict[str, Any], type[CamshaftError], str]] = [
        ("short", {}, ContextError, "wanted at least a chunk of 512"),
        ("x", {"chunk": 4}, SettingError, "chunk=4; wanted 16"),
        ("x", {"chunks": 0}, SettingError, "chunks=0; wanted 1"),
        ("x", {"chunk": 1 << 20}, ContextError, "was trained on 512"),
    ]
    for text, options, kind, words in cases:
        with pytest.raises(kind, match=words):
            importance_matrix(path, text, **options)


def _importance_of(path: Path) -> ImportanceMatrix:
    rng = np.random.default_rng(0)
    with open_gguf(path) as file:
        shapes = {n: t.shape for n, t in file.tensors.items() if n.startswith("blk.") and len(t.shape) > 1}
    sums = {
        n: (rng.standard_normal((*s[:-2], s[-1])) ** 2).reshape(-1, s[-1]).astype(np.float32) for n, s in shapes.items()
    }
    return ImportanceMatrix(sums, {n: np.ones(len(s), np.float32) for n, s in sums.items()}, ("text",), 2, 512)


@pytest.mark.parametrize("family", ["llama", "qwen3moe"])
def test_quantize_weighs_errors_by_the_matrix(family: str, tmp_path: Path) -> None:
    path, row = tiny_model(family, tmp_path), BLOCK_FORMATS["Q4_0"]
    matrix = _importance_of(path)
    quantize(path, tmp_path / "out.gguf", "Q4_0", importance=matrix, threads=2)
    with open_gguf(path) as source, open_gguf(tmp_path / "out.gguf") as file:
        for name in (n for n in matrix.sums if file.tensors[n].format is row):
            values = source.tensors[name].dequantize().reshape(len(matrix.sums[name]), -1, matrix.sums[name].shape[1])
            wanted = [quantize_rows(row, v, q) for v, q in zip(values, matrix.sums[name], strict=True)]
            np.testing.assert_array_equal(file.tensors[name].data(), np.concatenate(wanted).reshape(-1))
        assert file.metadata["quantize.imatrix.entries_count"] == len(matrix.sums)
        assert file.metadata["quantize.imatrix.dataset"] == "text"


def test_a_matrix_changes_the_mix_as_in_llama_cpp(tmp_path: Path) -> None:
    path = sketch("wide", tmp_path)

    def first_layers(mix: str, has_importance: bool) -> list[str]:
        with open_gguf(path) as file:
            formats = formats_of(file, MIXES[mix], has_importance=has_importance)
        return [formats[f"blk.{i}.ffn_down.weight"].name for i in range(2)]

    assert [first_layers("Q4_0", given) for given in (False, True)] == [["Q4_0", "Q4_0"], ["Q4_1", "Q4_0"]]
    assert [first_layers("Q5_0", given) for given in (False, True)] == [["Q5_0", "Q5_0"], ["Q5_1", "Q5_0"]]
    assert [first_layers("IQ4_NL", given) for given in (False, True)] == [["Q5_K", "IQ4_NL"], ["IQ4_NL", "IQ4_NL"]]


def test_patterns_give_tensors_a_type_of_their_own(tmp_path: Path) -> None:
    path = sketch("wide", tmp_path)
    types = [(r"blk\.0\.attn_v", "f16"), ("attn_v", "Q8_0"), ("^token_embd", "Q6_K")]
    quantize(path, tmp_path / "out.gguf", "Q4_0", tensor_types=types)
    with open_gguf(tmp_path / "out.gguf") as file:
        names = {n: file.tensors[f"{n}.weight"].format.name for n in ("blk.0.attn_v", "blk.1.attn_v", "token_embd")}
        assert names == {"blk.0.attn_v": "F16", "blk.1.attn_v": "Q8_0", "token_embd": "Q6_K"}
        assert file.tensors["blk.1.attn_q.weight"].format.name == "Q4_0"
    for pattern, name, words in (
        ("attn_x", "Q8_0", "no matrix has a name like 'attn_x'"),
        ("(", "Q8_0", r"'\(' is not a regular expression"),
        ("attn_v", "Q9", "no format 'Q9' to write 'attn_v' in; wanted one of F32"),
        ("attn_v", "IQ2_S", "no format 'IQ2_S'"),
        ("norm", "Q8_0", "no matrix has a name like 'norm'"),
    ):
        with pytest.raises(FormatError, match=words):
            quantize(path, tmp_path / "no.gguf", "Q4_0", tensor_types=[(pattern, name)])
    with pytest.raises(FormatError, match="has rows of 96; Q4_K wants a multiple of 256"):
        quantize(sketch("narrow", tmp_path), tmp_path / "no.gguf", "Q4_0", tensor_types=[("attn_q", "Q4_K")])


def test_a_matrix_of_another_model_is_refused(tmp_path: Path) -> None:
    path = tiny_model("llama", tmp_path)
    with pytest.raises(FormatError, match="the importance matrix has none of its tensors"):
        quantize(path, tmp_path / "no.gguf", "Q4_0", importance=_matrix())
    matrix = _importance_of(path)
    short = replace(matrix, sums={n: s[:, :-1] for n, s in matrix.sums.items()})
    with pytest.raises(FormatError, match=r"is \[64, 64\], its importance \[1, 63\]; wanted \[1, 64\]"):
        quantize(path, tmp_path / "no.gguf", "Q4_0", importance=short)


def test_damaged_matrices_are_one_line(tmp_path: Path) -> None:
    path, good = tmp_path / "i.gguf", _matrix()
    cases: list[tuple[ImportanceMatrix, str]] = [
        (replace(good, sums={"a.weight": np.array([[np.nan, 1]], np.float32)}), "not a finite number of 0 or more"),
        (replace(good, sums={"a.weight": np.array([[-1, 1]], np.float32)}), "not a finite number of 0 or more"),
        (replace(good, sums={"b.weight": np.ones((1, 3), np.float32)}), "has 3 sums and 2 counts"),
        (replace(good, sums={}), r"has no tensor NAME\.in_sum2"),
    ]
    for matrix, words in cases:
        write_imatrix(path, matrix)
        with pytest.raises(FormatError, match=words):
            read_imatrix(path)
    with pytest.raises(FormatError, match="wanted an importance matrix"):
        read_imatrix(tiny_model("llama", tmp_path))


def test_the_commands(tmp_path: Path) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, arguments)

    path, text, out = tiny_model("llama", tmp_path), tmp_path / "text.txt", tmp_path / "i.gguf"
    text.write_text(excerpt())
    made = json.loads(run("imatrix", str(path), str(text), str(out), "--chunk", "16", "--chunks", "1", "--json").stdout)
    assert (made["entries"], made["chunks"]) == (14, 1)
    result = run(
        "quantize", str(path), str(tmp_path / "q.gguf"), "Q4_0", "--imatrix", str(out), "--tensor-type", "attn_v=F16"
    )
    assert result.exit_code == 0, result.stderr
    assert "2 F16" in result.stdout
    for arguments, words in (
        (("imatrix", str(path), str(text), str(out)), "exists already; --force replaces it"),
        (("imatrix", str(path), str(tmp_path / "none.txt"), str(tmp_path / "j.gguf")), "none.txt: cannot be read"),
        (("quantize", str(path), str(tmp_path / "r.gguf"), "Q4_0", "--tensor-type", "attn_v"), "wanted PATTERN=TYPE"),
    ):
        refused = run(*arguments)
        assert (refused.exit_code, words in refused.stderr) == (2, True), refused.stderr
