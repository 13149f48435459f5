"""Tiny random models of every family against frozen logits of transformers, and the effect of removing parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.errors import ModelError
from camshaft.formats.gguf.file import open_gguf
from camshaft.generate import language_model
from camshaft.generate.stored.plan_cache import PlanCache
from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models import checkpoint, rope_scaling
from camshaft.models.blocks import feed_forward, norms
from camshaft.models.config import ModelConfig, read_config
from camshaft.models.families import FAMILIES as ROWS
from tests.support.fixtures import TINY_MODELS, tiny_logits, tiny_model
from tests.support.models import changed_model
from tests.support.quick import quick_of

TOLERANCE = 1e-3
BROKEN = 1e-2
# A tiny model's row, where it is not its own name up to the first dash.
ROW_OF = {
    "llama3": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "falcon-mamba": "mamba",
    "olmo3": "olmo2",
    "seed": "seed_oss",
    "gpt": "gpt-oss",
    "command": "command-r",
    "hunyuan": "hunyuan-dense",
    "falcon-h1": "falcon-h1",
    "ernie4_5-moe": "ernie4_5-moe",
}
# Their mutations are in the quick run.
QUICK = ("llama", "mistral", "qwen2-yarn", "qwen3")
# Without a rotation, and those whose parts other models of the quick run have too.
STILL = ("falcon-mamba", "granitehybrid", "jamba", "mamba", "mamba2", "nemotron_h", "nemotron_h_moe")
SELDOM = (
    *("falcon-mamba", "granitehybrid", "jamba", "mamba", "mamba2", "nemotron_h_moe", "qwen35moe", "qwen3next"),
    *("deepseek2-lite", "ernie4_5", "ernie4_5-moe", "gemma4-moe", "glm4", "hunyuan-dense", "lfm2moe"),
)
ROTATING = [name for name in TINY_MODELS if name not in (*STILL, "gpt2")]
OTHER_PAIRING = {"interleaved": "neox", "neox": "interleaved"}


def row_of(name: str) -> str:
    first = name.split("-")[0]
    return ROW_OF.get(name, ROW_OF.get(first, first))


def _context(tokens: list[int]) -> int:
    """Room for two sequences one after the other."""
    return 64 if len(tokens) <= 32 else 160


def _difference(name: str, folder: Path, *, chunk: int | None = None, **options: object) -> float:
    """The greatest difference from transformers, over all logits of the frozen tokens."""
    tokens, wanted = tiny_logits(name)
    given = {"activations": "f32", "threads": 1, "context": _context(tokens), "sessions": 1} | options
    with LanguageModel(tiny_model(name, folder), **given) as lm:  # type: ignore[arg-type]
        logits = lm.logits(tokens, chunk=chunk)
    assert logits.shape == wanted.shape
    return float(np.abs(logits - wanted).max())


def test_there_is_a_tiny_model_of_every_family() -> None:
    assert len(TINY_MODELS) == 56
    assert {row_of(name) for name in TINY_MODELS} == {name for name, row in ROWS.items() if not row.encoder}
    assert all(tiny_logits(name)[1].std(axis=0).mean() >= 1 for name in TINY_MODELS)


@pytest.mark.parametrize("name", quick_of(TINY_MODELS, [name for name in TINY_MODELS if name not in SELDOM]))
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    assert _difference(name, tmp_path) < TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize("chunk", [7, 1])
@pytest.mark.parametrize("name", TINY_MODELS)
def test_chunks_and_single_tokens_give_the_same(name: str, chunk: int, tmp_path: Path) -> None:
    assert _difference(name, tmp_path, chunk=chunk) < TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_sequence_beside_another_says_the_same(name: str, tmp_path: Path) -> None:
    tokens, wanted = tiny_logits(name)
    with (
        LanguageModel(
            tiny_model(name, tmp_path), activations="f32", threads=1, context=_context(tokens), sessions=2
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
    assert _difference(name, tmp_path, threads=2) < TOLERANCE


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_the_usual_mode_keeps_the_cache_in_16_bits_and_stays_close(name: str, tmp_path: Path) -> None:
    assert TOLERANCE / 100 < _difference(name, tmp_path, activations="auto") < 0.05


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """For what is broken on purpose: such plans are not cached, since the key of a cached plan does not cover patches."""
    for name in ("get", "add"):
        monkeypatch.setattr(PlanCache, name, lambda *_: None)
    return monkeypatch


@pytest.mark.parametrize("name", quick_of(ROTATING, QUICK))
def test_no_rotation_shows(name: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def still(context: int, dim: int, *_: object) -> np.ndarray:
        return np.repeat(np.array([[1.0, 0.0]], np.float32), dim // 2, axis=1).repeat(context, axis=0)

    breaking.setattr(rope_scaling, "rope_table", still)
    assert _difference(name, tmp_path) > BROKEN


@pytest.mark.parametrize("name", quick_of(ROTATING, QUICK))
def test_swapped_pairing_shows(name: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    family = row_of(name)
    swapped = replace(ROWS[family], pairing=OTHER_PAIRING[ROWS[family].pairing])
    breaking.setitem(ROWS, family, swapped)
    assert _difference(name, tmp_path) > BROKEN


# What a family's row says, changed: the tiny model, the field, and a wrong value.
WRONG_ROWS = [
    ("gemma2", "norms", "pre"),
    ("gemma2", "activation", "silu"),
    ("gemma2", "embedding_scale", ""),
    ("gemma2", "windows", False),
    ("gemma3", "full_every", 3),
    ("gemma3", "window_rope", "same"),
    ("gemma3", "window_theta", 1e6),
    ("gemma3", "qk_norm", ""),
    ("olmo2", "qk_norm", ""),
    ("olmo3", "window_rope", "same"),
    ("olmo3", "full_every", 0),
    ("exaone4", "rotates_windows_only", False),
    ("phi3", "windows", False),
    ("smollm3", "unrotated_every", 0),
    ("seed-oss", "biases", ""),
    ("starcoder2", "activation", "silu"),
    ("stablelm", "biases", ""),
    ("gpt2", "learned_positions", False),
    ("gptneox", "activation", "silu"),
    ("falcon", "activation", "silu"),
    ("command-r", "multiplies_logits", False),
    ("cohere2", "rotates_windows_only", False),
    ("cohere2", "windows", False),
    ("cohere2", "full_every", 3),
    ("gpt-oss", "sinks", False),
    ("gpt-oss", "windows", False),
    ("gpt-oss", "full_every", 0),
    ("gpt-oss", "activation", "silu"),
    ("gpt-oss", "yarn_truncates", True),
    ("gpt-oss", "normalizes_experts", False),
    ("qwen2moe", "normalizes_experts", True),
    ("qwen3moe", "normalizes_experts", False),
    ("olmoe", "normalizes_experts", True),
    ("mixtral", "normalizes_experts", False),
    ("lfm2", "qk_norm", ""),
    ("granitehybrid", "rotates_if_finetuned", False),
    ("qwen35", "tiled_heads", False),
    ("qwen35moe", "tiled_heads", False),
    ("qwen3next", "tiled_heads", True),
    ("qwen3next", "normalizes_experts", False),
    ("glm4", "norms", "pre"),
    ("glm4", "biases", ""),
    ("glm4moe", "biases", ""),
    ("glm4moe", "ffn_norm", "attn_norm"),
    ("hunyuan-dense", "norms_rotated", False),
    ("hunyuan-dense", "qk_norm", ""),
    ("ernie4_5-moe", "normalizes_experts", False),
    ("lfm2moe", "normalizes_experts", False),
    ("nemotron_h", "activation", "gelu"),
    ("nemotron_h", "rotates", True),
    ("nemotron_h_moe", "expert_score", "softmax"),
    ("nemotron_h_moe", "rotates", True),
    ("jamba", "rotates", True),
    ("jamba", "normalizes_experts", True),
    ("gemma4", "norms_values", False),
    ("gemma4", "score_scale", 0.0),
    ("gemma4", "windows", False),
    ("gemma4", "per_layer", False),
    ("gemma4", "activation", "silu"),
    ("gemma4-moe", "dense_beside_experts", False),
]
# What the file says, changed: fields of ModelConfig.
WRONG_CONFIGS = [
    ("gemma2", {"attention_softcap": 0.0}),
    ("gemma2", {"logit_softcap": 0.0}),
    ("granite", {"attention_scale": 8**-0.5}),
    ("granite", {"residual_scale": 1.0}),
    ("granite", {"embedding_scale": 1.0}),
    ("granitemoe", {"logit_scale": 1.0}),
    ("granitehybrid", {"attention_scale": 8**-0.5}),
    ("gptneox", {"parallel": False}),
    ("mistral3", {"temperature_scale": 0.0}),
    ("mistral3", {"temperature_context": 9}),
    ("deepseek2-lite", {"attention_scale": 40**-0.5}),
    ("deepseek2-v3", {"attention_scale": 40**-0.5}),
    ("gemma4", {"logit_softcap": 0.0}),
    ("gemma4", {"window_theta": 10000.0}),
    ("gemma4-moe", {"embedding_scale": 1.0}),
]
# The same of their mixture of experts.
WRONG_EXPERTS = [
    ("glm4moe", {"score": "softmax"}),
    ("glm4moe", {"normalizes": False}),
    ("glm4moe", {"scale": 1.0}),
    ("glm4moe", {"n_used": 3}),
    ("glm4moe", {"shared_dim": 0}),
    ("ernie4_5-moe", {"score": "sigmoid"}),
    ("ernie4_5-moe", {"shared_dim": 0}),
    ("lfm2moe", {"n_used": 1}),
    ("lfm2moe", {"score": "softmax"}),
    ("deepseek2-lite", {"score": "sigmoid"}),
    ("deepseek2-lite", {"groups": 1, "top_groups": 1}),
    ("deepseek2-lite", {"normalizes": True}),
    ("deepseek2-lite", {"scale": 1.0}),
    ("deepseek2-v3", {"score": "softmax"}),
    ("deepseek2-v3", {"top_groups": 3}),
    ("deepseek2-v3", {"normalizes": False}),
    ("gemma4-moe", {"n_used": 1}),
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "field", "wrong"), WRONG_ROWS)
def test_a_wrong_row_shows(name: str, field: str, wrong: object, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    row = ROWS[row_of(name)]
    assert getattr(row, field) != wrong
    breaking.setitem(ROWS, row_of(name), replace(row, **{field: wrong}))  # type: ignore[arg-type]
    try:
        difference = _difference(name, tmp_path)
    except ModelError:  # the file has tensors that such a row does not read
        return
    assert difference > BROKEN


@pytest.mark.full
@pytest.mark.parametrize(("name", "wrong"), WRONG_CONFIGS)
def test_a_wrong_config_shows(name: str, wrong: dict[str, float], tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    read = language_model.read_config
    breaking.setattr(language_model, "read_config", lambda *given: replace(read(*given), **wrong))  # type: ignore[arg-type]
    assert _difference(name, tmp_path) > BROKEN


@pytest.mark.full
@pytest.mark.parametrize(("name", "wrong"), WRONG_EXPERTS)
def test_a_wrong_mixture_of_experts_shows(
    name: str, wrong: dict[str, Any], tmp_path: Path, breaking: pytest.MonkeyPatch
) -> None:
    def changed(*given: Any) -> ModelConfig:
        config = read(*given)
        assert config.experts is not None
        return replace(config, experts=replace(config.experts, **wrong))

    read = language_model.read_config
    breaking.setattr(language_model, "read_config", changed)
    assert _difference(name, tmp_path) > BROKEN


@pytest.mark.full
@pytest.mark.parametrize("name", ["glm4moe", "ernie4_5-moe", "lfm2moe", "deepseek2-v3", "nemotron_h_moe"])
def test_the_bias_of_the_choice_counts_and_is_no_weight(
    name: str, tmp_path: Path, breaking: pytest.MonkeyPatch
) -> None:
    def without(scores: Tensor, *bias: Tensor, **options: Any) -> Any:
        assert bias
        return route(scores, **options)

    def as_weight(scores: Tensor, *bias: Tensor, **options: Any) -> Any:
        return route(F.add(scores, bias[0]), **options)

    route = F.moe_route
    for wrong in (without, as_weight):
        breaking.setattr(feed_forward.F, "moe_route", wrong)
        assert _difference(name, tmp_path) > BROKEN


@pytest.mark.full
def test_keys_of_another_layer_show(tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def changed(*given: Any) -> ModelConfig:
        config = read(*given)
        assert [options.shares for options in config.layers] == [-1, -1, -1, 1, 2]
        return replace(config, layers=(*config.layers[:3], replace(config.layers[3], shares=0), config.layers[4]))

    read = language_model.read_config
    breaking.setattr(language_model, "read_config", changed)
    assert _difference("gemma4", tmp_path) > BROKEN


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
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "state"), RECURRENT)
def test_a_state_that_is_not_carried_on_shows(name: str, state: str, tmp_path: Path) -> None:
    tokens, wanted = tiny_logits(name)
    context = _context(tokens)
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


@pytest.mark.full
@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gemma4", "olmo3", "phi3", "exaone4", "gpt-oss", "cohere2"])
@pytest.mark.parametrize("more", [-1, 1])
def test_a_window_off_by_one_shows(name: str, more: int, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def off(metadata: object, row: str, n: int) -> ModelConfig:
        config = read(metadata, row, n)  # type: ignore[arg-type]
        layers = tuple(replace(x, window=x.window + more if x.window else 0) for x in config.layers)
        return replace(config, layers=layers)

    read = language_model.read_config
    breaking.setattr(language_model, "read_config", off)
    assert _difference(name, tmp_path) > BROKEN


@pytest.mark.parametrize("name", ["qwen2", "qwen2-yarn"])
@pytest.mark.parametrize("dropped", ["attn_q", "attn_k", "attn_v"])
def test_dropped_biases_show(name: str, dropped: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    linear = checkpoint.Checkpoint.linear

    def without(self: checkpoint.Checkpoint, x: Tensor, key: str, n: int, *, bias: bool = False) -> Tensor:
        return linear(self, x, key, n, bias=bias and not key.endswith(dropped))

    breaking.setattr(checkpoint.Checkpoint, "linear", without)
    assert _difference(name, tmp_path) > BROKEN


@pytest.mark.parametrize("norm", ["attn_q_norm", "attn_k_norm"])
def test_dropped_head_norms_show(norm: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def of_ones(self: checkpoint.Checkpoint, name: str, n: int) -> Tensor:
        return self.graph.constant(name, np.ones(n, np.float32)) if norm in name else vector(self, name, n)

    vector = checkpoint.Checkpoint.vector
    breaking.setattr(checkpoint.Checkpoint, "vector", of_ones)
    assert _difference("qwen3", tmp_path) > BROKEN


@pytest.mark.full
@pytest.mark.parametrize(("name", "wrong"), [("LIMIT", 100.0), ("ALPHA", 1.0)])
def test_wrong_constants_of_clamped_swiglu_show(
    name: str, wrong: float, tmp_path: Path, breaking: pytest.MonkeyPatch
) -> None:
    breaking.setattr(feed_forward, name, wrong)
    assert _difference("gpt-oss", tmp_path) > BROKEN


@pytest.mark.full
@pytest.mark.parametrize("name", ["stablelm", "gptneox", "cohere2"])
def test_rms_norm_for_layer_norm_shows(name: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def of_squares(x: Tensor, w: Tensor, b: Tensor, *, eps: float, name: str) -> Tensor:
        return F.add(F.rms_norm(x, w, eps=eps), b, name=name)

    breaking.setattr(norms.F, "layer_norm", of_squares)
    assert _difference(name, tmp_path) > BROKEN


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


@pytest.mark.parametrize("name", ["llama-linear", "llama-yarn", "qwen2-yarn", "llama3-rope"])
def test_ignored_rope_scaling_shows(name: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    breaking.setattr(rope_scaling, "read_scaling", lambda *_: rope_scaling.RopeScaling())
    assert _difference(name, tmp_path) > BROKEN


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
