"""What the conversion changes in recurrent layers, on numbers small enough to follow."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.errors import ModelError
from camshaft.models.convert.architectures import ARCHITECTURES
from camshaft.models.convert.delta_rule import delta_changes, delta_keys, rotation_sections
from camshaft.models.convert.hub_config import HubConfig
from camshaft.models.convert.state_space import granite_hybrid_keys, mamba_keys, state_space_changes
from camshaft.models.convert.tensor_names import is_left_out, new_name
from camshaft.models.convert.tensors import parts

SIZES = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 1,
    "linear_value_head_dim": 1,
    "linear_conv_kernel_dim": 4,
    "hidden_size": 8,
    "num_attention_heads": 1,
}
DELTA = HubConfig(SIZES, "Qwen3_5ForCausalLM", "config.json")


def changed(name: str, values: np.ndarray, *, in_turn: bool) -> dict[str, np.ndarray]:
    return {new: change(values) for new, change in delta_changes(name, DELTA, in_turn=in_turn)}


def test_heads_of_values_take_turns() -> None:
    values = np.arange(4, dtype=np.float32)
    assert changed("ssm_dt.bias", values, in_turn=True)["ssm_dt.bias"].tolist() == [0, 2, 1, 3]
    assert changed("ssm_dt.bias", values, in_turn=False)["ssm_dt.bias"].tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(changed("ssm_a", values, in_turn=True)["ssm_a"], -np.exp([0.0, 2, 1, 3]), rtol=1e-6)
    rows = np.arange(8, dtype=np.float32)[:, None]  # two of q, two of k, four of v
    assert changed("attn_qkv.weight", rows, in_turn=True)["attn_qkv.weight"][:, 0].tolist() == [0, 1, 2, 3, 4, 6, 5, 7]
    assert changed("ssm_out.weight", values[None], in_turn=True)["ssm_out.weight"].tolist() == [[0, 2, 1, 3]]
    assert changed("attn_q.weight", rows, in_turn=True) == {}


def test_groups_of_one_tensor_come_apart() -> None:
    rows = np.array([10, 20, 30, 31, 40, 41, 11, 21, 32, 33, 42, 43], np.float32)[:, None]  # q, k, v v, z z; twice
    found = changed("attn_qkvz.weight", rows, in_turn=False)
    assert found["attn_qkv.weight"][:, 0].tolist() == [10, 11, 20, 21, 30, 31, 32, 33]
    assert found["attn_gate.weight"][:, 0].tolist() == [40, 41, 42, 43]


def test_sizes_of_recurrent_layers() -> None:
    assert delta_keys(DELTA)["ssm.inner_size"] == 4
    assert rotation_sections(DELTA) == {"rope.dimension_sections": [2, 1, 1, 0]}
    mamba = HubConfig({"hidden_size": 40, "conv_kernel": 4, "state_size": 16}, "MambaForCausalLM", "config.json")
    assert (mamba_keys(mamba)["ssm.time_step_rank"], mamba_keys(mamba)["ssm.inner_size"]) == (3, 80)
    given = {"layer_types": ["mamba"], "num_hidden_layers": 2, "num_key_value_heads": 1}
    for experts, message in (
        (4, "layer_types is not a list of a kind for each layer"),
        (0, "without experts is not converted"),
    ):
        with pytest.raises(ModelError, match=message):
            granite_hybrid_keys(HubConfig(given | {"num_local_experts": experts}, "x", "config.json"))


def test_decays_are_negative_and_by_heads_in_mamba_2() -> None:
    config = HubConfig({"n_groups": 2}, "Mamba2ForCausalLM", "config.json")
    values = np.zeros(4, np.float32)
    found = {
        name: change(values)
        for end in ("ssm_a", "ssm_d", "ssm_norm.weight")
        for name, change in state_space_changes(end, config, by_heads=True)
    }
    assert {name: array.shape for name, array in found.items()} == {
        "ssm_a": (4, 1),
        "ssm_d": (4, 1),
        "ssm_norm.weight": (2, 2),
    }
    assert (found["ssm_a"] == -1).all()


def test_names_of_parameters() -> None:
    cases = {
        "model.language_model.layers.3.linear_attn.A_log": ("qwen35", "blk.3.ssm_a"),
        "backbone.layers.0.mixer.dt_bias": ("mamba2", "blk.0.ssm_dt.bias"),
        "model.layers.1.mlp.gate.e_score_correction_bias": ("glm4moe", "blk.1.exp_probs_b.bias"),
        "model.layers.0.post_attention_layernorm.weight": ("glm4", "blk.0.ffn_norm.weight"),
        "transformer.h.0.ln_1.bias": ("gpt2", "blk.0.attn_norm.bias"),
    }
    for theirs, (architecture, ours) in cases.items():
        found = new_name(theirs, architecture)
        assert found is not None
        assert found.name + found.ending == ours
    assert new_name("model.layers.0.mystery.weight", "llama") is None
    assert is_left_out("mtp.layers.0.self_attn.q_proj.weight")
    assert is_left_out("model.visual.blocks.0.attn.qkv.weight")


def test_norms_of_qwen35_get_1_but_for_the_recurrent_layers_own() -> None:
    config = HubConfig(SIZES, "Qwen3_5ForCausalLM", "config.json")
    shapes = {"model.layers.0.input_layernorm.weight": (8,), "model.layers.0.linear_attn.norm.weight": (1,)}
    made = {
        part.name: part.made(lambda name: np.zeros(8, np.float32))
        for part in parts(config, ARCHITECTURES[config.architecture], shapes)
    }
    assert (made["blk.0.attn_norm.weight"] == 1).all()
    assert (made["blk.0.ssm_norm.weight"] == 0).all()
