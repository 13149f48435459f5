"""Families whose rows are others' or near them: their tiny models beside transformers and llama.cpp, and folders of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.errors import ModelError
from camshaft.formats.gguf.file import open_gguf
from camshaft.models.convert.convert import convert
from tests.support.fixtures import tiny_logits
from tests.support.models.files import changed_model
from tests.support.models.hub_folders import hub_folder
from tests.support.models.references.reference_models import compute_by_references
from tests.support.models.renamed_families import GROK_SCALES, RENAMED, renamed
from tests.support.quick import quick_of

GELU = 1e-2  # llama.cpp's is a table in 16 bits


def logits_of(path: Path, tokens: list[int], **options: Any) -> np.ndarray:
    given = {"activations": "f32", "threads": 1, "context": 160, "sessions": 1}
    with LanguageModel(path, **given) as lm:  # type: ignore[arg-type]
        return lm.logits(tokens, **options)


@pytest.mark.parametrize("family", quick_of(["xverse", "starcoder", "qwen", "codeshell"], ["xverse", "codeshell"]))
def test_rows_that_are_others_give_transformers_logits(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_by_references(monkeypatch)
    tokens, wanted = tiny_logits(RENAMED[family].base)
    assert np.abs(logits_of(renamed(family, tmp_path), tokens) - wanted).max() < 1e-3


@pytest.mark.oracle
def test_starcoder_with_one_head_of_keys_is_as_in_llama_cpp(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from scripts.oracles import llama

    whole, tensors = renamed("starcoder", tmp_path), {}
    with open_gguf(whole) as file:
        dim, heads = (int(file.metadata[f"starcoder.{key}"]) for key in ("embedding_length", "attention.head_count"))
        rows = [*range(dim + dim // heads), *range(2 * dim, 2 * dim + dim // heads)]
        for name, tensor in file.tensors.items():
            if ".attn_qkv." in name:
                tensors[name] = tensor.dequantize()[rows]
    folder = tmp_path / "one"
    folder.mkdir()
    path = changed_model(whole, folder, keys={"starcoder.attention.head_count_kv": 1}, tensors=tensors)
    tokens = tiny_logits("gpt2")[0]
    assert np.abs(logits_of(path, tokens) - llama.logits(path, tokens, exact=True)).max() < GELU


@pytest.mark.oracle
@pytest.mark.parametrize("family", RENAMED)
def test_logits_are_those_of_llama_cpp(family: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from scripts.oracles import llama

    tokens, path = tiny_logits(RENAMED[family].base)[0], renamed(family, tmp_path)
    wanted = llama.logits(path, tokens, exact=True)
    assert wanted.std(axis=0).mean() > 0.5
    tolerance = GELU if family in ("starcoder", "codeshell", "grok", "grok-2") else 1e-4
    for chunk in (None, 7, 1):
        assert np.abs(logits_of(path, tokens, chunk=chunk) - wanted).max() < tolerance


def test_another_share_of_extrapolation_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    folder.mkdir()
    key = "grok.rope.scaling.yarn_ext_factor"
    path = changed_model(renamed("grok-2", tmp_path), folder, keys={key: 0.5})
    with pytest.raises(ModelError, match=f"the key '{key}' is 0.5; wanted 1"):
        logits_of(path, [1, 2])


@pytest.mark.full
@pytest.mark.parametrize("key", [*GROK_SCALES, "rope.scaling.factor"])
def test_each_number_of_grok_counts(key: str, tmp_path: Path) -> None:
    tokens, path, folder = tiny_logits("mixtral")[0], renamed("grok-2", tmp_path), tmp_path / "changed"
    folder.mkdir()
    other = changed_model(path, folder, keys={f"grok.{key}": 1.5})
    assert np.abs(logits_of(other, tokens) - logits_of(path, tokens)).max() > 1e-2


@pytest.mark.full
def test_a_session_goes_back_where_layers_run_several_times(tmp_path: Path) -> None:
    path, tokens = renamed("nanbeige", tmp_path), tiny_logits("llama")[0]
    with LanguageModel(path, activations="f32", threads=1, context=64, sessions=2) as lm, lm.session() as session:
        wanted = lm.logits(tokens)
        session.process(tokens)
        session.rewind(9)
        assert np.abs(session.process(tokens[9:]) - wanted[-1]).max() < 1e-4
        assert lm.config.n_layers == 6
    plain = renamed_without_loops(tmp_path)
    assert np.abs(logits_of(plain, tokens) - wanted).max() > 0.1


def renamed_without_loops(folder: Path) -> Path:
    """The same layers, run once."""
    once = folder / "once"
    once.mkdir()
    return changed_model(folder / "changed.gguf", once, keys={"nanbeige.num_loops": 1})


def test_a_folder_of_nanbeige_runs_its_layers_as_often(tmp_path: Path) -> None:
    tokens, wanted = tiny_logits("llama")[0], logits_of(renamed("nanbeige", tmp_path), tiny_logits("llama")[0])
    folder, _ = hub_folder("llama", tmp_path)
    _say(folder, architectures=["NanbeigeForCausalLM"], num_loops=3)
    convert(folder, tmp_path / "out.gguf", "F32")
    assert np.abs(logits_of(tmp_path / "out.gguf", tokens) - wanted).max() < 1e-5
    _say(folder, skip_loop_final_norm="no")
    with pytest.raises(ModelError, match="skip_loop_final_norm is 'no'; wanted true or false"):
        convert(folder, tmp_path / "other.gguf", "F32")


def test_a_folder_of_pangu_keeps_its_biases(tmp_path: Path) -> None:
    rng, sizes = np.random.default_rng(0), {"q": 64, "k": 32, "v": 32, "o": 64}
    biases = {part: rng.standard_normal(n).astype(np.float32) for part, n in sizes.items()}
    added = {f"model.layers.1.self_attn.{part}_proj.bias": values for part, values in biases.items()}
    added |= {f"model.layers.0.self_attn.{part}_proj.bias": np.zeros(n, np.float32) for part, n in sizes.items()}
    folder, _ = hub_folder("llama", tmp_path, change=lambda tensors: tensors | added)
    _say(folder, architectures=["PanguEmbeddedForCausalLM"])
    convert(folder, tmp_path / "out.gguf", "F32")
    with open_gguf(tmp_path / "out.gguf") as file:
        for part, name in {"q": "q", "k": "k", "v": "v", "o": "output"}.items():
            np.testing.assert_array_equal(file.tensors[f"blk.1.attn_{name}.bias"].dequantize(), biases[part])
    tokens, plain = tiny_logits("llama")
    none = {
        f"blk.1.attn_{part}.bias": np.zeros(n, np.float32) for part, n in {**sizes, "output": 64}.items() if part != "o"
    }
    without = changed_model(tmp_path / "out.gguf", tmp_path, tensors=none)
    assert np.abs(logits_of(tmp_path / "out.gguf", tokens) - plain).max() > 0.1
    assert np.abs(logits_of(without, tokens) - plain).max() < 1e-3


def _say(folder: Path, **values: Any) -> None:
    """Other values in config.json."""
    old = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(old | values), "utf-8")
