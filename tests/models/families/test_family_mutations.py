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
from camshaft.models.blocks import feed_forward, layer
from camshaft.models.config import ModelConfig
from camshaft.models.families import FAMILIES as ROWS
from tests.support.fixtures import TINY_MODELS
from tests.support.models.references.reference_models import compute_by_references
from tests.support.models.tiny_families import BROKEN, difference_of, row_of
from tests.support.models.wrong_families import WRONG_CONFIGS, WRONG_EXPERTS, WRONG_ROWS
from tests.support.quick import quick_of


@pytest.fixture(autouse=True)
def by_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong is in the graphs, which no kernel need compute."""
    compute_by_references(monkeypatch)


# Their mutations are in the quick run.
QUICK = ("llama", "mistral", "qwen2-yarn", "qwen3")


# Without a rotation, and those whose parts other models of the quick run have too.
STILL = (
    *("falcon-mamba", "granitehybrid", "jamba", "mamba", "mamba2", "nemotron_h", "nemotron_h_moe"),
    *("kimi-linear", "rwkv6", "rwkv7"),
)


ROTATING = [name for name in TINY_MODELS if name not in (*STILL, "gpt2", "bloom")]


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
    "name",
    [
        "glm4moe",
        "ernie4_5-moe",
        "lfm2moe",
        "deepseek2-v3",
        "nemotron_h_moe",
        "kimi-linear",
        "dots1",
        "minimax-m2",
        "exaone-moe",
        "afmoe",
    ],
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
    "name",
    [
        "gemma2",
        "gemma3",
        "gemma3n",
        "gemma4",
        "olmo3",
        "phi3",
        "exaone4",
        "gpt-oss",
        "cohere2",
        "smallthinker",
        "mellum",
        "exaone-moe",
        "afmoe",
    ],
)
@pytest.mark.parametrize("more", [-1, 1])
def test_a_window_off_by_one_shows(name: str, more: int, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def off(*given: Any) -> ModelConfig:
        config = read(*given)
        layers = tuple(replace(x, window=x.window + more if x.window else 0) for x in config.layers)
        return replace(config, layers=layers)

    read = language_model.read_config
    breaking.setattr(language_model, "read_config", off)
    assert difference_of(name, tmp_path) > BROKEN


@pytest.mark.full
@pytest.mark.parametrize("chunk", [0, 6, 8])
def test_other_parts_of_the_context_show(chunk: int, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def other(*given: Any) -> ModelConfig:
        config = read(*given)
        assert [x.chunk for x in config.layers if x.window] == [7] * 3
        sizes = {"window": chunk or 7, "chunk": chunk}
        return replace(config, layers=tuple(replace(x, **sizes) if x.window else x for x in config.layers))

    read = language_model.read_config
    breaking.setattr(language_model, "read_config", other)
    assert difference_of("llama4", tmp_path) > BROKEN


@pytest.mark.full
def test_another_range_of_scores_that_count_shows(tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    breaking.setattr(feed_forward, "JITTER", 0.02)
    assert difference_of("phimoe", tmp_path) > BROKEN


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

    breaking.setattr(layer.F, "layer_norm", of_squares)
    assert difference_of(name, tmp_path) > BROKEN


@pytest.mark.parametrize("name", ["llama-linear", "llama-yarn", "qwen2-yarn", "llama3-rope"])
def test_ignored_rope_scaling_shows(name: str, tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    breaking.setattr(rope_scaling, "read_scaling", lambda *_: rope_scaling.RopeScaling())
    assert difference_of(name, tmp_path) > BROKEN
