"""Each option of a family is wrong on purpose, and shows in the logits of its tiny model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft.errors import ModelError
from camshaft.generate import language_model
from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models import checkpoint, rope_scaling
from camshaft.models.blocks import feed_forward, norms
from camshaft.models.config import ModelConfig
from camshaft.models.families import FAMILIES as ROWS
from tests.support.fixtures import TINY_MODELS
from tests.support.quick import quick_of
from tests.support.tiny_families import BROKEN, difference_of, row_of

# Their mutations are in the quick run.
QUICK = ("llama", "mistral", "qwen2-yarn", "qwen3")


# Without a rotation, and those whose parts other models of the quick run have too.
STILL = (
    *("falcon-mamba", "granitehybrid", "jamba", "mamba", "mamba2", "nemotron_h", "nemotron_h_moe"),
    *("kimi-linear", "rwkv6", "rwkv7"),
)


ROTATING = [name for name in TINY_MODELS if name not in (*STILL, "gpt2")]


OTHER_PAIRING = {"interleaved": "neox", "neox": "interleaved"}


@pytest.mark.parametrize("name", quick_of(ROTATING, QUICK))
def test_no_rotation_shows(name: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def still(context: int, dim: int, *_: object) -> np.ndarray:
        return np.repeat(np.array([[1.0, 0.0]], np.float32), dim // 2, axis=1).repeat(context, axis=0)

    breaking.setattr(rope_scaling, "rope_table", still)
    assert difference_of(name, tmp_path) > BROKEN


@pytest.mark.parametrize("name", quick_of(ROTATING, QUICK))
def test_swapped_pairing_shows(name: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    family = row_of(name)
    swapped = replace(ROWS[family], pairing=OTHER_PAIRING[ROWS[family].pairing])
    breaking.setitem(ROWS, family, swapped)
    assert difference_of(name, tmp_path) > BROKEN


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
    ("gemma3n", "norms_values", False),
    ("gemma3n", "score_scale", 0.0),
    ("gemma3n", "windows", False),
    ("gemma3n", "activation", "silu"),
    ("gemma3n", "qk_norm", ""),
    ("gemma3n", "window_rope", "same"),
    ("minicpm3", "scales", ""),
    ("minicpm3", "latent", False),
    ("plamo2", "qk_norm", "head"),
    ("plamo2", "norms", "pre"),
    ("kimi-linear", "rotates", True),
    ("kimi-linear", "latent", False),
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
    ("gemma3n", {"logit_softcap": 0.0}),
    ("gemma3n", {"embedding_scale": 1.0}),
    ("minicpm3", {"residual_scale": 1.0}),
    ("minicpm3", {"logit_scale": 1.0}),
    ("minicpm3", {"attention_scale": 0.5}),
    ("kimi-linear", {"attention_scale": 24**-0.5 * 2}),
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
    ("kimi-linear", {"score": "softmax"}),
    ("kimi-linear", {"shared_dim": 0}),
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "field", "wrong"), WRONG_ROWS)
def test_a_wrong_row_shows(name: str, field: str, wrong: object, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    row = ROWS[row_of(name)]
    assert getattr(row, field) != wrong
    breaking.setitem(ROWS, row_of(name), replace(row, **{field: wrong}))  # type: ignore[arg-type]
    try:
        difference = difference_of(name, tmp_path)
    except ModelError:  # the file has tensors that such a row does not read
        return
    assert difference > BROKEN


@pytest.mark.full
@pytest.mark.parametrize(("name", "wrong"), WRONG_CONFIGS)
def test_a_wrong_config_shows(name: str, wrong: dict[str, float], tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    read = language_model.read_config
    breaking.setattr(language_model, "read_config", lambda *given: replace(read(*given), **wrong))  # type: ignore[arg-type]
    assert difference_of(name, tmp_path) > BROKEN


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
    assert difference_of(name, tmp_path) > BROKEN


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["glm4moe", "ernie4_5-moe", "lfm2moe", "deepseek2-v3", "nemotron_h_moe", "kimi-linear"]
)
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
        assert difference_of(name, tmp_path) > BROKEN


@pytest.mark.full
def test_keys_of_another_layer_show(tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def changed(*given: Any) -> ModelConfig:
        config = read(*given)
        assert [options.shares for options in config.layers] == [-1, -1, -1, 1, 2]
        return replace(config, layers=(*config.layers[:3], replace(config.layers[3], shares=0), config.layers[4]))

    read = language_model.read_config
    breaking.setattr(language_model, "read_config", changed)
    assert difference_of("gemma4", tmp_path) > BROKEN


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["gemma2", "gemma3", "gemma3n", "gemma4", "olmo3", "phi3", "exaone4", "gpt-oss", "cohere2"]
)
@pytest.mark.parametrize("more", [-1, 1])
def test_a_window_off_by_one_shows(name: str, more: int, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def off(metadata: object, row: str, n: int) -> ModelConfig:
        config = read(metadata, row, n)  # type: ignore[arg-type]
        layers = tuple(replace(x, window=x.window + more if x.window else 0) for x in config.layers)
        return replace(config, layers=layers)

    read = language_model.read_config
    breaking.setattr(language_model, "read_config", off)
    assert difference_of(name, tmp_path) > BROKEN


@pytest.mark.parametrize("name", ["qwen2", "qwen2-yarn"])
@pytest.mark.parametrize("dropped", ["attn_q", "attn_k", "attn_v"])
def test_dropped_biases_show(name: str, dropped: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    linear = checkpoint.Checkpoint.linear

    def without(self: checkpoint.Checkpoint, x: Tensor, key: str, n: int, *, bias: bool = False) -> Tensor:
        return linear(self, x, key, n, bias=bias and not key.endswith(dropped))

    breaking.setattr(checkpoint.Checkpoint, "linear", without)
    assert difference_of(name, tmp_path) > BROKEN


@pytest.mark.parametrize("norm", ["attn_q_norm", "attn_k_norm"])
def test_dropped_head_norms_show(norm: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def of_ones(self: checkpoint.Checkpoint, name: str, n: int) -> Tensor:
        return self.graph.constant(name, np.ones(n, np.float32)) if norm in name else vector(self, name, n)

    vector = checkpoint.Checkpoint.vector
    breaking.setattr(checkpoint.Checkpoint, "vector", of_ones)
    assert difference_of("qwen3", tmp_path) > BROKEN


@pytest.mark.full
@pytest.mark.parametrize(("name", "wrong"), [("LIMIT", 100.0), ("ALPHA", 1.0)])
def test_wrong_constants_of_clamped_swiglu_show(
    name: str, wrong: float, tmp_path: Path, breaking: pytest.MonkeyPatch
) -> None:
    breaking.setattr(feed_forward, name, wrong)
    assert difference_of("gpt-oss", tmp_path) > BROKEN


@pytest.mark.full
@pytest.mark.parametrize("name", ["stablelm", "gptneox", "cohere2"])
def test_rms_norm_for_layer_norm_shows(name: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def of_squares(x: Tensor, w: Tensor, b: Tensor, *, eps: float, name: str) -> Tensor:
        return F.add(F.rms_norm(x, w, eps=eps), b, name=name)

    breaking.setattr(norms.F, "layer_norm", of_squares)
    assert difference_of(name, tmp_path) > BROKEN


@pytest.mark.parametrize("name", ["llama-linear", "llama-yarn", "qwen2-yarn", "llama3-rope"])
def test_ignored_rope_scaling_shows(name: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    breaking.setattr(rope_scaling, "read_scaling", lambda *_: rope_scaling.RopeScaling())
    assert difference_of(name, tmp_path) > BROKEN
