"""Adapters written as PEFT folders are those of the GGUF file: read back, run and merged they say the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel, train
from camshaft.errors import FormatError, MissingExtraError, StoreError
from camshaft.models.adapters.peft_names import NAMINGS, module_name
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.models.files import changed_model
from tests.support.quick import full
from tests.train.by_references import by_references  # noqa: F401 - a fixture
from tests.train.tuning.test_lora import drawn, logits

pytest.importorskip("safetensors")
OPTIONS: dict[str, Any] = {"activations": "f32", "threads": 1, "context": 64, "sessions": 1}


def saved(base: Path, *paths: Path, **options: Any) -> dict[str, dict[str, np.ndarray]]:
    """The drawn matrices of an adapter that is written to each path."""
    with train.LoraModel(base, train.LoraConfig(**{"rank": 4, "alpha": 6.0, **options})) as model:
        adapters = drawn(model)
        for path in paths:
            train.save_adapter(path, model, adapters)
    return adapters


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "adapter_config.json").read_text("utf-8"))


@pytest.mark.parametrize("name", ["llama", "qwen2", "phi3", "gpt2", "gptneox", "falcon", "falcon-two-norms", "cohere2"])
def test_a_folder_is_read_back_as_the_file_is(name: str, tmp_path: Path) -> None:
    base, folder, file = tiny_model(name, tmp_path), tmp_path / "peft", tmp_path / "adapter.gguf"
    saved(base, folder, file)
    ours, theirs = train.load_adapter(file), train.load_adapter(folder, base)
    assert (theirs.scales, theirs.architecture) == (ours.scales, ours.architecture)
    for matrix, pair in ours.matrices.items():
        for part in "ab":
            np.testing.assert_array_equal(theirs.matrices[matrix][part], pair[part])
    with train.LoraModel(base, train.LoraConfig(alpha=6.0)) as model:  # and to a file again
        train.save_adapter(tmp_path / "again.gguf", model, theirs.matrices)
    again = train.load_adapter(tmp_path / "again.gguf")
    assert again.scales == ours.scales
    assert all(np.array_equal(again.matrices[n][p], ours.matrices[n][p]) for n in ours.matrices for p in "ab")


def test_a_folder_gives_the_logits_of_the_file(tmp_path: Path) -> None:
    base, folder, file = tiny_model("llama", tmp_path), tmp_path / "peft", tmp_path / "adapter.gguf"
    saved(base, folder, file)
    tokens = tiny_logits("llama")[0]
    with LanguageModel(base, **OPTIONS) as lm:
        plain = np.array(lm.logits(tokens))
        lm.use_adapters([file])
        wanted = np.array(lm.logits(tokens))
        lm.use_adapters([(folder, 1.0)])
        np.testing.assert_array_equal(lm.logits(tokens), wanted)
        lm.use_adapters([(folder, 0.5), (file, 0.5)])
        np.testing.assert_allclose(lm.logits(tokens), wanted, atol=1e-4)
    assert np.abs(wanted - plain).max() > 0.1
    for _ in range(2):  # kernels that the last set was the first to check make the first one compile
        with LanguageModel(base, adapters=[folder], **OPTIONS) as lm:
            np.testing.assert_array_equal(lm.logits(tokens), wanted)
            origin = lm.plans.origins["prompt"]
    assert origin == "cached"
    train.merge(base, file, tmp_path / "a.gguf")
    train.merge(base, folder, tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


@pytest.mark.parametrize("name", [full("llama"), "qwen2", "gpt2", full("gptneox")])
def test_dora_says_the_same_trained_run_and_merged(name: str, tmp_path: Path) -> None:
    """With biases, rows in another order and matrices that PEFT has the other way round; half of it is half of its change."""
    base, folder, tokens = tiny_model(name, tmp_path), tmp_path / "peft", tiny_logits(name)[0]
    with train.LoraModel(base, train.LoraConfig(rank=4, dora=True)) as model:
        adapters = drawn(model)
        wanted, plain = logits(model, adapters, tokens), logits(model, {}, tokens)
        np.testing.assert_allclose(logits(model, model.adapters(), tokens), plain, atol=1e-4)
        del adapters["blk.0.attn_output"], adapters["blk.1.attn_output"]  # others of the name have none
        wanted = logits(model, adapters, tokens)
        train.save_adapter(folder, model, adapters)
        with pytest.raises(
            FormatError, match=r"a.gguf: GGUF adapters hold no magnitudes of DoRA; wanted the name of a"
        ):
            train.save_adapter(tmp_path / "a.gguf", model, adapters)
    assert (config_of(folder)["use_dora"], np.abs(wanted - plain).max() > 0.1) == (True, True)
    read = train.load_adapter(folder, base).matrices
    assert all(np.array_equal(read[n][part], a) for n, parts in adapters.items() for part, a in parts.items())
    train.merge(base, folder, tmp_path / "merged.gguf")
    with train.LoraModel(tmp_path / "merged.gguf") as model:
        np.testing.assert_allclose(logits(model, {}, tokens), wanted, atol=1e-4)
    if name == "qwen2":
        with LanguageModel(base, adapters=[(folder, 0.25), (folder, 0.75)], **OPTIONS) as lm:
            np.testing.assert_allclose(lm.logits(tokens), wanted, atol=1e-3)


def test_what_the_configuration_says(tmp_path: Path) -> None:
    base = changed_model("gpt2", tmp_path, keys={"general.source.repo_url": "https://huggingface.co/some/model"})
    saved(base, tmp_path / "all")
    found = config_of(tmp_path / "all")
    assert (found["peft_type"], found["r"], found["lora_alpha"], found["use_rslora"]) == ("LORA", 4, 6, False)
    assert (found["base_model_name_or_path"], found["fan_in_fan_out"]) == ("some/model", True)
    assert found["target_modules"] == ["c_attn", "c_fc", "c_proj"]
    saved(base, tmp_path / "some", targets=("attn_output",))  # mlp.c_proj ends in c_proj too
    assert config_of(tmp_path / "some")["target_modules"] == [f"transformer.h.{i}.attn.c_proj" for i in range(2)]
    with train.LoraModel(tiny_model("llama", tmp_path), train.LoraConfig(targets=("attn_v",), alpha=2.5)) as model:
        adapters = model.adapters()
        adapters["blk.1.attn_v"] = {part: np.ones((m.shape[0], 3) if part == "b" else (3, m.shape[1]), np.float32)
                                    for part, m in adapters["blk.1.attn_v"].items()}  # fmt: skip
        train.save_adapter(tmp_path / "ranks", model, adapters)
    found = config_of(tmp_path / "ranks")
    assert (found["base_model_name_or_path"], found["r"], found["lora_alpha"]) == (None, 8, 2.5)
    assert found["rank_pattern"] == {"model.layers.1.self_attn.v_proj": 3}
    read = train.load_adapter(tmp_path / "ranks", tmp_path / "llama.gguf")
    assert read.scales == {"blk.0.attn_v": 2.5 / 8, "blk.1.attn_v": 2.5 / 3}


@pytest.mark.usefixtures("by_references")
def test_fine_tuning_writes_a_folder(tmp_path: Path) -> None:
    base, data, out = tiny_model("llama", tmp_path), tmp_path / "data.jsonl", tmp_path / "tuned"
    data.write_text('{"text": "one two three"}\n' * 4, "utf-8")
    given = train.FinetuneOptions(steps=1, batch=2)
    train.finetune(base, data, out, options=given, folder=tmp_path / "steps")
    assert {path.name for path in out.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert train.load_adapter(out, base).matrices
    with pytest.raises(StoreError, match="tuned: exists already; force=True replaces it"):
        train.finetune(base, data, out, options=given)
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(StoreError, match="is a file; wanted a folder for a PEFT adapter"):
        train.finetune(base, data, tmp_path / "a", options=given, force=True)
    (tmp_path / "a.gguf").mkdir()
    with pytest.raises(StoreError, match="is a folder; wanted the path of a GGUF file"):
        train.finetune(base, data, tmp_path / "a.gguf", options=given, force=True)


def test_families_without_names_are_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(NAMINGS, "qwen2")
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "one two three"}\n', "utf-8")
    with pytest.raises(FormatError, match="PEFT adapters of 'qwen2' are not supported; wanted a model of llama"):
        train.finetune(tiny_model("qwen2", tmp_path), data, tmp_path / "out")
    assert module_name(NAMINGS["llama"], "blk.0.ffn_gate_inp") is None


def test_reading_needs_the_model_and_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, folder = tiny_model("llama", tmp_path), tmp_path / "peft"
    saved(base, folder)
    with pytest.raises(FormatError, match="peft: is a folder; wanted a GGUF adapter, or its model too"):
        train.load_adapter(folder)
    other = changed_model("llama", tmp_path, keys={"llama.rope.freq_base": 999.0})
    with pytest.raises(FormatError, match="peft: is of another model; wanted the one that it was trained on"):
        LanguageModel(other, adapters=[folder])
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'camshaft\[safetensors\]'"):
        LanguageModel(base, adapters=[folder])
