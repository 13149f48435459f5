"""GGUF files with impossible options of their family are refused in one line that names the key or the tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from camshaft.errors import FormatError, ModelError
from tests.support.models.files import changed_model, refused


@pytest.mark.parametrize("value", [[0.5], [float("nan"), 0.5], [1, 2], 1e30, "half", None])
def test_numbers_of_activations_that_make_no_sense_are_named(value: Any, tmp_path: Path) -> None:
    changes = {"drop_keys": ["xielu.beta"]} if value is None else {"keys": {"xielu.beta": value}}
    text = refused(changed_model("apertus", tmp_path, **changes), ModelError)
    assert "the key 'xielu.beta'" in text
    assert "wanted 2 numbers" in text


WRONG_OPTIONS = [
    ("gemma3", {"attention.sliding_window": -1.0}, "an integer of 0 or more"),
    ("smallthinker", {"attention.sliding_window": 0.5}, "is 0.5; wanted an integer of 0 or more"),
    ("smallthinker", {"attention.sliding_window": 2**32 - 1}, "is 4294967295; wanted at most 2147483647"),
    ("gemma3", {"attention.sliding_window_pattern": 1.5}, "an integer of 0 or more or 7 booleans"),
    ("gemma3", {"attention.sliding_window_pattern": "all"}, "an integer of 0 or more or 7 booleans"),
    (
        "gemma3",
        {"attention.sliding_window_pattern": [True] * 8},
        "is [True, True, True, True, True, True, True, True]; wanted",
    ),
    ("gemma3", {"rope.freq_base_swa": 0.0}, "a number above 0"),
    ("gemma2", {"attn_logit_softcapping": -5.0}, "a number of 0 or more"),
    ("gemma2", {"attention.value_length": 8}, "is 8; wanted 16, the length of keys"),
    ("gemma2", {"attention.value_length": ["a", "b"]}, "is an array of 2 texts; wanted a number"),
    ("gemma4", {"attention.value_length_swa": 16}, "is 16; wanted 8, the length of keys in layers with a window"),
    ("granite", {"logit_scale": 0.0}, "a number above 0"),
    ("gpt-oss", {"expert_count": 5}, "'blk.0.ffn_gate_inp.weight' has shape [4, 32]; wanted [5, 32]"),
    ("mistral3", {"attention.temperature_scale": -0.5}, "a number of 0 or more"),
    ("mistral3", {"rope.scaling.original_context_length": 0}, "an integer of 1 or more"),
    ("mistral3", {"rope.scaling.yarn_log_multiplier": -1.0}, "a number of 0 or more"),
    ("gpt2", {"attention.layer_norm_epsilon": 0.0}, "a number above 0"),
    ("gpt2", {"context_length": 511}, "'position_embd.weight' has shape [512, 32]; wanted [511, 32]"),
    ("gptneox", {"use_parallel_residual": 1}, "wanted true or false"),
    ("gpt-oss", {"use_parallel_residual": "maybe"}, "wanted true or false"),
    ("qwen3moe", {"expert_used_count": 9}, "at most the 4 experts"),
    ("qwen3moe", {"expert_count": 5}, "'blk.0.ffn_gate_inp.weight' has shape [4, 64]; wanted [5, 64]"),
    ("qwen3moe", {"expert_feed_forward_length": 8}, "wanted [4, 8, 64]"),
    ("glm4moe", {"expert_gating_func": 9}, "'glm4moe.expert_gating_func' is 9; wanted 1 (softmax), 2 (sigmoid) or 3"),
    ("glm4moe", {"expert_gating_func": "softmax"}, "wanted a number"),
    ("glm4moe", {"expert_weights_norm": 3}, "wanted true or false"),
    ("glm4moe", {"expert_weights_scale": -1.0}, "wanted a number of 0 or more"),
    ("glm4moe", {"leading_dense_block_count": 0}, "'blk.0.ffn_gate_inp.weight'"),
    ("glm4moe", {"leading_dense_block_count": 3}, "'blk.1.ffn_gate.weight'"),
    ("glm4moe", {"expert_shared_count": 3}, "'blk.1.ffn_up_shexp.weight' has shape [32, 32]; wanted [48, 32]"),
    ("glm4moe", {"expert_group_count": 4}, "wanted groups of 2 or more that share the 6 experts equally"),
    ("glm4moe", {"expert_group_count": 6}, "wanted groups of 2 or more that share the 6 experts equally"),
    ("glm4moe", {"expert_group_count": 3}, "no key 'glm4moe.expert_group_used_count'"),
    ("glm4moe", {"expert_group_count": 3, "expert_group_used_count": 4}, "wanted at most the 3 groups"),
    ("ernie4_5-moe", {"interleave_moe_layer_step": 0}, "wanted an integer of 1 or more"),
    ("ernie4_5-moe", {"interleave_moe_layer_step": 1}, "'blk.2.ffn_gate_inp.weight'"),
    ("deepseek2-v3", {"attention.kv_lora_rank": 0}, "wanted an integer of 1 or more"),
    (
        "deepseek2-v3",
        {"attention.kv_lora_rank": 33},
        "'blk.0.attn_k_b.weight' has shape [4, 32, 32]; wanted [4, 33, 32]",
    ),
    ("deepseek2-v3", {"attention.q_lora_rank": 23}, "'blk.0.attn_q_a.weight'"),
    (
        "deepseek2-v3",
        {"attention.key_length_mla": 8},
        "'deepseek2.rope.dimension_count' is 8; wanted an even number below 8",
    ),
    ("deepseek2-v3", {"attention.value_length_mla": "ten"}, "wanted a number"),
    ("deepseek2-v3", {"attention.value_length_mla": 11}, "'blk.0.attn_v_b.weight' has shape [4, 10, 32]"),
    ("deepseek2-v3", {"rope.dimension_count": 7}, "wanted an even number below 40"),
    ("deepseek2-v3", {"rope.scaling.yarn_log_multiplier": -1.0}, "wanted a number of 0 or more"),
    (
        "nemotron_h",
        {"feed_forward_length": [0, 48]},
        "'nemotron_h.feed_forward_length' is [0, 48]; wanted an integer, or 5",
    ),
    ("nemotron_h", {"feed_forward_length": [0, 48, 0, 0, 32]}, "5 of which each is 0 or the same"),
    ("nemotron_h", {"feed_forward_length": 48}, "'blk.0.ffn_up.weight'"),
    ("nemotron_h", {"feed_forward_length": [0, 0, 0, 0, 48]}, "'blk.1.ssm_in.weight'"),
    ("nemotron_h", {"attention.head_count_kv": [0, 0, 0, 0, 0]}, "wanted a multiple of the key-value heads"),
    ("nemotron_h_moe", {"moe_latent_size": 8}, "'blk.1.ffn_latent_down.weight' has shape [16, 32]; wanted [8, 32]"),
    ("nemotron_h_moe", {"moe_latent_size": "no"}, "wanted a number"),
    ("nemotron_h_moe", {"expert_feed_forward_length": [0, 24, 0, 0]}, "wanted a number"),
    ("falcon-h1", {"ssm.group_count": 3}, "'falcon-h1.ssm.time_step_rank' is 4; wanted a multiple"),
    ("falcon-h1", {"attention.head_count_kv": 3}, "wanted a multiple of the key-value heads"),
    ("jamba", {"ssm.time_step_rank": 5}, "'blk.0.ssm_x.weight'"),
    ("gemma4", {"attention.shared_kv_layers": 4}, "'gemma4.attention.shared_kv_layers' is 4; wanted earlier layers"),
    ("gemma4", {"attention.shared_kv_layers": 2**31 - 1}, "wanted earlier layers"),
    ("gemma4", {"attention.shared_kv_layers": -1.0}, "wanted an integer of 0 or more"),
    ("qwen3moe", {"expert_count": 4.5}, "is 4.5; wanted an integer of 0 or more"),
    (
        "gemma4",
        {"attention.key_length_swa": 16, "attention.value_length_swa": 16},
        "'blk.0.attn_q.weight' has shape [32, 32]; wanted [64, 32]",
    ),
    (
        "gemma4",
        {"attention.key_length": 8, "attention.value_length": 8},
        "rope.dimension_count is 16; wanted an even number up to 8",
    ),
    ("gemma4", {"rope.dimension_count_swa": 7}, "rope.dimension_count_swa is 7; wanted an even number up to 8"),
    ("gemma4", {"feed_forward_length": [32, 32, 64, 64, 64]}, "'blk.2.ffn_gate.weight'"),
    ("gemma4", {"feed_forward_length": [32, 32]}, "is [32, 32]; wanted an integer, or 5"),
    (
        "gemma4",
        {"embedding_length_per_layer_input": 9},
        "'per_layer_token_embd.weight' has shape [96, 40]; wanted [96, 45]",
    ),
    ("gemma4", {"attention.sliding_window_pattern": [True]}, "5 booleans"),
    ("lfm2", {"shortconv.l_cache": 1}, "'lfm2.shortconv.l_cache' is 1; wanted 2 to 64"),
    ("lfm2", {"shortconv.l_cache": 2**30}, "wanted 2 to 64"),
    ("lfm2", {"shortconv.l_cache": 4}, "'blk.0.shortconv.conv.weight' has shape [32, 3]; wanted [32, 4]"),
    ("lfm2", {"attention.head_count_kv": [0, 0, 0, 0]}, "wanted a multiple of the key-value heads"),
    ("lfm2", {"attention.head_count_kv": [0, 2, 0]}, "4 of which each is 0 or the same"),
    ("lfm2", {"attention.head_count_kv": [0, 2, 0, 0, 0]}, "is [0, 2, 0, 0, 0]; wanted an integer, or 4"),
    ("lfm2", {"attention.head_count_kv": [0, 2, 1, 0]}, "4 of which each is 0 or the same"),
    ("lfm2", {"attention.head_count_kv": [0, -2, 0, 0]}, "4 of which each is 0 or the same"),
    ("lfm2", {"attention.head_count_kv": [True, False, True, True]}, "4 of which each is 0 or the same"),
    ("lfm2", {"attention.head_count_kv": "two"}, "wanted a number"),
    ("lfm2", {"attention.head_count_kv": 2}, "'blk.0.attn_q.weight'"),
    ("qwen35", {"full_attention_interval": 0}, "wanted an integer of 1 or more"),
    ("qwen35", {"full_attention_interval": 3}, "'blk.2.attn_q.weight'"),
    ("qwen35", {"attention.recurrent_layers": [True, False]}, "wanted 5 booleans"),
    ("qwen35", {"attention.recurrent_layers": 3}, "wanted 5 booleans"),
    ("qwen35", {"attention.recurrent_layers": [True] * 6}, "wanted 5 booleans"),
    ("qwen35", {"nextn_predict_layers": 5}, "less than the 5 layers"),
    ("qwen35", {"nextn_predict_layers": 0.5}, "is 0.5; wanted an integer of 0 or more"),
    ("qwen35", {"ssm.time_step_rank": 3}, "a multiple of 'qwen35.ssm.time_step_rank', 3"),
    ("qwen35", {"ssm.group_count": 3}, "a multiple of 'qwen35.ssm.group_count', 3"),
    ("qwen35", {"ssm.time_step_rank": 2**31 - 1}, "wanted at most 65536"),
    ("qwen35", {"ssm.state_size": 2**30}, "'blk.0.attn_qkv.weight'"),
    ("qwen35", {"ssm.conv_kernel": 3}, "'blk.0.ssm_conv1d.weight' has shape [128, 4]; wanted [128, 3]"),
    ("qwen35", {"ssm.inner_size": 0}, "wanted an integer of 1 or more"),
    ("qwen35", {"ssm.inner_size": 4.5}, "wanted an integer of 1 or more"),
    ("qwen35", {"rope.dimension_count": 18}, "9 in all"),
    ("mamba", {"ssm.dt_b_c_rms": "yes"}, "'mamba.ssm.dt_b_c_rms' is 'yes'; wanted True or False"),
    ("mamba", {"ssm.state_size": 4}, "'blk.0.ssm_x.weight' has shape [20, 64]; wanted [12, 64]"),
    ("mamba", {"ssm.inner_size": 2**31 - 1}, "'blk.0.ssm_in.weight'"),
    ("mamba2", {"ssm.group_count": 0}, "wanted an integer of 1 or more"),
    ("mamba2", {"ssm.time_step_rank": 8}, "'blk.0.ssm_in.weight'"),
    ("mamba2", {"embedding_length": 33}, "'token_embd.weight'"),
    ("granitehybrid", {"rope.scaling.finetuned": 1}, "wanted True or False"),
]


@pytest.mark.parametrize(("name", "keys", "words"), WRONG_OPTIONS)
def test_a_wrong_option_of_a_family_is_named(name: str, keys: dict[str, Any], words: str, tmp_path: Path) -> None:
    changed = changed_model(
        name, tmp_path, keys={f"{name.removesuffix('-v3')}.{key}": value for key, value in keys.items()}
    )
    assert words in refused(changed, (ModelError, FormatError))
