"""Files of other forms of a family: older ones, with joined or quantized tensors, without keys, with layers that are not run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.formats.gguf.file import open_gguf
from camshaft.models.config import read_config
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.models.files import changed_model
from tests.support.models.tiny_families import BROKEN, TOLERANCE


def _quantized(model: str, is_quantized: Callable[[str], bool], form: str, folder: Path) -> float:
    """How far six tensors in a block format take the logits from transformers'; as numbers they give the same logits."""
    tokens, wanted = tiny_logits(model)
    packed, plain, kind = {}, {}, gguf.GGMLQuantizationType[form]
    with open_gguf(tiny_model(model, folder)) as file:
        for name in filter(is_quantized, file.tensors):
            data = gguf.quants.quantize(file.tensors[name].dequantize(), kind)
            packed[name], plain[name] = (data, kind), gguf.quants.dequantize(data, kind)
    found = []
    for tensors in (packed, plain):
        path = changed_model(model, folder, tensors=tensors)  # type: ignore[arg-type]
        with LanguageModel(path, activations="f32", threads=1, context=64, sessions=1) as lm:
            found.append(lm.logits(tokens))
    assert len(packed) == 6
    assert np.abs(found[0] - found[1]).max() < TOLERANCE
    return float(np.abs(found[0] - wanted).max())


def _of_older_file(name: str, folder: Path) -> Path:
    """The model with one tensor for the keys and values of latents, and the sizes of heads in place of the cache's."""
    tensors, dropped = {}, []
    with open_gguf(tiny_model(name, folder)) as file:
        for layer in range(3):
            names = [f"blk.{layer}.attn_{part}_b.weight" for part in "kv"]
            keys, values = (file.tensors[part].dequantize() for part in names)
            joined = np.concatenate([keys.swapaxes(1, 2), values], axis=1)
            tensors[f"blk.{layer}.attn_kv_b.weight"] = joined.reshape(-1, keys.shape[1])
            dropped += names
    keys = {"key_length": 40, "value_length": 10, "head_count_kv": 4}
    return changed_model(
        name,
        folder,
        keys={f"deepseek2.attention.{key}": value for key, value in keys.items()},
        drop_keys=[f"deepseek2.attention.{part}_length_mla" for part in ("key", "value")],
        tensors=tensors,
        drop_tensors=dropped,
    )


@pytest.mark.full
@pytest.mark.parametrize("name", ["deepseek2-lite", "deepseek2-v3"])
def test_older_files_have_keys_and_values_of_latents_as_one_tensor(name: str, tmp_path: Path) -> None:
    tokens, wanted = tiny_logits(name)
    path = _of_older_file(name, tmp_path)
    for _ in range(2):  # then from the plan cache
        with LanguageModel(path, activations="f32", threads=1, context=64, sessions=1) as lm:
            assert np.abs(lm.logits(tokens) - wanted).max() < TOLERANCE


@pytest.mark.full
def test_quantized_latents_give_what_their_numbers_give(tmp_path: Path) -> None:
    names = ("attn_k_b", "attn_v_b")
    difference = _quantized("deepseek2-v3", lambda name: any(n in name for n in names), "Q8_0", tmp_path)
    assert difference > TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize(
    ("layers", "vocabulary", "score"), [(47, 154880, "sigmoid"), (46, 154880, "softmax"), (47, 154881, "softmax")]
)
def test_first_files_of_glm_flash_choose_by_sigmoid(layers: int, vocabulary: int, score: str, tmp_path: Path) -> None:
    with open_gguf(tiny_model("deepseek2-v3", tmp_path)) as file:
        metadata = dict(file.metadata) | {"deepseek2.block_count": layers}
    del metadata["deepseek2.expert_gating_func"]
    experts = read_config(metadata, "deepseek2", vocabulary).experts
    assert experts is not None
    assert experts.score == score


@pytest.mark.full
@pytest.mark.parametrize("name", ["glm4moe", "lfm2moe"])
def test_files_without_a_gating_function_have_that_of_their_family(name: str, tmp_path: Path) -> None:
    tokens, wanted = tiny_logits(name)
    path = changed_model(name, tmp_path, drop_keys=[f"{name}.expert_gating_func"])
    with LanguageModel(path, activations="f32", threads=1, context=64, sessions=1) as lm:
        assert np.abs(lm.logits(tokens) - wanted).max() < TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize("name", ["glm4moe", "ernie4_5-moe"])
def test_gate_and_up_of_experts_may_be_one_tensor(name: str, tmp_path: Path) -> None:
    tensors, dropped = {}, []
    with open_gguf(tiny_model(name, tmp_path)) as file:
        for layer in (n for n in range(4) if f"blk.{n}.ffn_up_exps.weight" in file.tensors):
            names = [f"blk.{layer}.ffn_{part}_exps.weight" for part in ("gate", "up")]
            parts = [file.tensors[part].dequantize() for part in names]
            tensors[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)
            dropped += names
    tokens, wanted = tiny_logits(name)
    path = changed_model(name, tmp_path, tensors=tensors, drop_tensors=dropped)
    assert len(dropped) == 4
    with LanguageModel(path, activations="f32", threads=1, context=64, sessions=1) as lm:
        assert np.abs(lm.logits(tokens) - wanted).max() < TOLERANCE


@pytest.mark.full
def test_older_files_have_all_projections_as_one_tensor(tmp_path: Path) -> None:
    tensors, dropped = {}, []
    with open_gguf(tiny_model("qwen3next", tmp_path)) as file:
        for layer in (0, 1, 2, 4):
            names = [f"blk.{layer}.{name}.weight" for name in ("attn_qkv", "attn_gate")]
            rows = np.concatenate([file.tensors[name].dequantize() for name in names])
            parts = (part.reshape(2, -1, rows.shape[1]) for part in np.split(rows, (32, 64, 128)))
            tensors[f"blk.{layer}.ssm_in.weight"] = np.concatenate(list(parts), axis=1).reshape(rows.shape)
            dropped += names
    tokens, wanted = tiny_logits("qwen3next")
    path = changed_model("qwen3next", tmp_path, tensors=tensors, drop_tensors=dropped)
    with LanguageModel(path, activations="f32", threads=1, context=160, sessions=1) as lm:
        assert np.abs(lm.logits(tokens) - wanted).max() < TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("qwen35", {"block_count": 6, "attention.recurrent_layers": [True, True, True, False, True]}),
        ("glm4moe", {"block_count": 4}),
    ],
)
def test_layers_that_predict_later_tokens_are_not_run(name: str, keys: dict[str, Any], tmp_path: Path) -> None:
    keys = {**keys, "nextn_predict_layers": 1}
    tokens, wanted = tiny_logits(name)
    path = changed_model(name, tmp_path, keys={f"{name}.{key}": value for key, value in keys.items()})
    with LanguageModel(path, activations="f32", threads=1, context=160, sessions=1) as lm:
        assert np.abs(lm.logits(tokens) - wanted).max() < TOLERANCE


@pytest.mark.full
def test_experts_in_mxfp4_give_what_their_numbers_give(tmp_path: Path) -> None:
    assert _quantized("gpt-oss", lambda name: name.endswith("_exps.weight"), "MXFP4", tmp_path) > BROKEN
