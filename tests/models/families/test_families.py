"""Tiny random models of every family against frozen logits of transformers, and files of other forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.formats.gguf.file import open_gguf
from camshaft.models.config import read_config
from camshaft.models.families import FAMILIES as ROWS
from tests.models.families.test_renamed_families import RENAMED
from tests.support.fixtures import TINY_MODELS, tiny_logits, tiny_model
from tests.support.models.files import changed_model
from tests.support.models.references.reference_models import compute_by_references
from tests.support.models.tiny_families import BROKEN, context_of, difference_of, row_of
from tests.support.quick import quick_of

TOLERANCE = 1e-3


SELDOM = (
    *("falcon-mamba", "granitehybrid", "jamba", "mamba", "mamba2", "nemotron_h_moe", "qwen35moe", "qwen3next"),
    *("gemma3n", "kimi-linear", "minicpm3", "olmo", "plamo2", "rwkv6", "rwkv7"),
    *("dots1", "gemma"),
    *("arcee", "bailingmoe2", "chatglm", "dbrx", "exaone", "hunyuan-moe", "internlm2"),
    *("mellum", "exaone-moe", "afmoe", "apertus", "deepseek32", "glm-dsa", "bloom"),
    *("deci", "llama4", "phimoe", "smallthinker"),
    *("minicpm", "minimax-m2", "nemotron", "orion", "phi2"),
    *("deepseek2-lite", "ernie4_5", "ernie4_5-moe", "gemma4-moe", "glm4", "hunyuan-dense", "lfm2moe"),
)


# Models whose rows show each value of each option that the rows of those left have, and experts of two kinds.
COMPILED = (
    *(
        "cohere2",
        "deepseek2-v3",
        "falcon",
        "falcon-h1",
        "gemma2",
        "gemma3",
        "gemma4",
        "glm4moe",
        "gpt-oss",
        "gpt2",
        "lfm2",
    ),
    *("llama", "mixtral", "nemotron_h", "olmo2", "phi3", "qwen2", "qwen2moe", "qwen35", "smollm3", "stablelm"),
)


def test_there_is_a_tiny_model_of_every_family() -> None:
    assert len(TINY_MODELS) == 88
    of_images = {"qwen2vl", "qwen3vl", "qwen3vlmoe"}  # tests/models/vision/test_vision.py
    rows = {name for name, row in ROWS.items() if not row.encoder}
    renamed = {row.family or name for name, row in RENAMED.items()}
    assert {row_of(name) for name in TINY_MODELS} | of_images | renamed == rows
    assert all(tiny_logits(name)[1].std(axis=0).mean() >= 1 for name in TINY_MODELS)


@pytest.mark.parametrize("name", quick_of(TINY_MODELS, COMPILED))
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    assert difference_of(name, tmp_path) < TOLERANCE


@pytest.mark.parametrize("name", [name for name in TINY_MODELS if name not in (*SELDOM, *COMPILED)])
def test_graphs_compute_the_logits_of_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_by_references(monkeypatch)
    assert difference_of(name, tmp_path) < TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize("chunk", [7, 1])
@pytest.mark.parametrize("name", TINY_MODELS)
def test_chunks_and_single_tokens_give_the_same(name: str, chunk: int, tmp_path: Path) -> None:
    assert difference_of(name, tmp_path, chunk=chunk) < TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_sequence_beside_another_says_the_same(name: str, tmp_path: Path) -> None:
    tokens, wanted = tiny_logits(name)
    with (
        LanguageModel(
            tiny_model(name, tmp_path), activations="f32", threads=1, context=context_of(tokens), sessions=2
        ) as lm,
        lm.session() as other,
        lm.session() as session,
    ):
        other.process(tokens[::-1])
        for i, token in enumerate(tokens):
            logits = session.process([token])
            other.process([tokens[-i]])
        assert np.abs(logits - wanted[-1]).max() < TOLERANCE


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_two_threads_agree_as_well(name: str, tmp_path: Path) -> None:
    assert difference_of(name, tmp_path, threads=2) < TOLERANCE


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_the_usual_mode_keeps_the_cache_in_16_bits_and_stays_close(name: str, tmp_path: Path) -> None:
    assert TOLERANCE / 100 < difference_of(name, tmp_path, activations="auto") < 0.05


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("gemma4", "blk.1.layer_output_scale.weight"),
        ("gemma4", "blk.1.post_norm.weight"),
        ("gemma4", "per_layer_proj_norm.weight"),
        ("gemma4", "rope_freqs.weight"),
        ("gemma4-moe", "blk.1.ffn_gate_inp.scale"),
        ("gemma4-moe", "blk.1.ffn_down_exps.scale"),
        ("gemma4-moe", "blk.1.pre_ffw_norm_2.weight"),
        ("gemma4-moe", "blk.1.post_ffw_norm_1.weight"),
        ("gemma4-moe", "blk.1.post_ffw_norm_2.weight"),
    ],
)
def test_each_scale_of_gemma_4_counts(name: str, tensor: str, tmp_path: Path) -> None:
    tokens, wanted = tiny_logits(name)
    with open_gguf(tiny_model(name, tmp_path)) as file:
        ones = {tensor: np.ones(file.tensors[tensor].shape, np.float32)}
    with LanguageModel(
        changed_model(name, tmp_path, tensors=ones), activations="f32", threads=1, context=64, sessions=1
    ) as lm:
        assert np.abs(lm.logits(tokens) - wanted).max() > BROKEN


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
    tokens, wanted = tiny_logits("deepseek2-v3")
    packed, plain, kind = {}, {}, gguf.GGMLQuantizationType.Q8_0
    with open_gguf(tiny_model("deepseek2-v3", tmp_path)) as file:
        for name in (name for name in file.tensors if "attn_k_b" in name or "attn_v_b" in name):
            data = gguf.quants.quantize(file.tensors[name].dequantize(), kind)
            packed[name], plain[name] = (data, kind), gguf.quants.dequantize(data, kind)
    found = []
    for tensors in (packed, plain):
        path = changed_model("deepseek2-v3", tmp_path, tensors=tensors)  # type: ignore[arg-type]
        with LanguageModel(path, activations="f32", threads=1, context=64, sessions=1) as lm:
            found.append(lm.logits(tokens))
    assert len(packed) == 6
    assert np.abs(found[0] - found[1]).max() < TOLERANCE
    assert np.abs(found[0] - wanted).max() > TOLERANCE


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


RECURRENT = [
    ("lfm2", "conv"),
    ("lfm2moe", "conv"),
    ("qwen35", "conv"),
    ("qwen35", "state"),
    ("qwen3next", "conv"),
    ("qwen3next", "state"),
    ("qwen35moe", "state"),
    ("mamba", "conv"),
    ("mamba", "state"),
    ("mamba2", "conv"),
    ("mamba2", "state"),
    ("granitehybrid", "conv"),
    ("granitehybrid", "state"),
    ("nemotron_h", "conv"),
    ("nemotron_h", "state"),
    ("nemotron_h_moe", "state"),
    ("falcon-h1", "conv"),
    ("falcon-h1", "state"),
    ("jamba", "conv"),
    ("jamba", "state"),
    ("plamo2", "conv"),
    ("plamo2", "state"),
    ("kimi-linear", "conv"),
    ("kimi-linear", "conv_2"),
    ("kimi-linear", "conv_3"),
    ("kimi-linear", "state"),
    ("rwkv6", "conv"),
    ("rwkv6", "conv_2"),
    ("rwkv6", "state"),
    ("rwkv7", "conv"),
    ("rwkv7", "conv_2"),
    ("rwkv7", "state"),
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "state"), RECURRENT)
def test_a_state_that_is_not_carried_on_shows(name: str, state: str, tmp_path: Path) -> None:
    tokens, wanted = tiny_logits(name)
    context = context_of(tokens)
    with LanguageModel(tiny_model(name, tmp_path), activations="f32", threads=1, context=context, sessions=1) as lm:
        for lost in (False, True):
            with lm.session() as session:
                session.process(tokens[:-1])
                for key, values in lm.plans.cache.states.items():
                    values[...] = 0 if lost and key.startswith(f"{state}.") else values[...]
                assert (np.abs(session.process(tokens[-1:]) - wanted[-1]).max() > BROKEN) == lost


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


# The biases of layers and norms of each family.
BIASES = [
    ("gpt-oss", ("attn_q", "attn_output", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")),
    ("starcoder2", ("attn_k", "attn_output", "attn_norm", "ffn_norm", "ffn_up", "ffn_down")),
    ("stablelm", ("attn_v", "attn_norm")),
    ("gpt2", ("attn_qkv", "attn_output", "ffn_up", "ffn_down")),
    ("gptneox", ("attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down")),
    ("falcon-two-norms", ("attn_norm", "attn_norm_2")),
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "part"), [(name, part) for name, parts in BIASES for part in parts])
def test_each_bias_counts(name: str, part: str, tmp_path: Path) -> None:
    tokens, wanted = tiny_logits(name)
    with open_gguf(tiny_model(name, tmp_path)) as file:
        zeros = {f"blk.0.{part}.bias": np.zeros(file.tensors[f"blk.0.{part}.bias"].shape, np.float32)}
    path = changed_model(name, tmp_path, tensors=zeros)
    with LanguageModel(path, activations="f32", threads=1, context=64, sessions=1) as lm:
        assert np.abs(lm.logits(tokens) - wanted).max() > BROKEN


@pytest.mark.full
def test_experts_in_mxfp4_give_what_their_numbers_give(tmp_path: Path) -> None:
    tokens, wanted = tiny_logits("gpt-oss")
    packed, plain = {}, {}
    with open_gguf(tiny_model("gpt-oss", tmp_path)) as file:
        for name, tensor in file.tensors.items():
            if name.endswith("_exps.weight"):
                kind = gguf.GGMLQuantizationType.MXFP4
                data = gguf.quants.quantize(tensor.dequantize(), kind)
                packed[name], plain[name] = (data, kind), gguf.quants.dequantize(data, kind)
    found = []
    for tensors in (packed, plain):
        path = changed_model("gpt-oss", tmp_path, tensors=tensors)  # type: ignore[arg-type]
        with LanguageModel(path, activations="f32", threads=1, context=64, sessions=1) as lm:
            found.append(lm.logits(tokens))
    assert len(packed) == 6
    assert np.abs(found[0] - found[1]).max() < TOLERANCE
    assert np.abs(found[0] - wanted).max() > BROKEN


@pytest.mark.parametrize("backend", ["scalar", "blas"])
@pytest.mark.parametrize("name", ["llama-tied", "qwen2"])
def test_every_backend_agrees(name: str, backend: str, tmp_path: Path) -> None:
    if backend == "blas":
        pytest.importorskip("scipy_openblas32", reason="the extra blas is not installed")
    tokens, _ = tiny_logits(name)
    path, logits = tiny_model(name, tmp_path), {}
    for each in ("simd", backend):
        with LanguageModel(path, backend=each, activations="f32", threads=1, context=64) as lm:
            assert lm.backend == each
            variants = {t.variant for t in lm.plans.prompt.bound.schedule.thunks if t.op == "matmul"}
            logits[each] = lm.logits(tokens)
    assert (variants == {"blas"}) == (backend == "blas")
    assert np.abs(logits["simd"] - logits[backend]).max() < 1e-4
