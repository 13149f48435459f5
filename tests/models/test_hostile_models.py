"""Well-formed GGUF files with wrong models are refused in one line that names the cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.errors import CamshaftError, ContextError, FormatError, ModelError, SettingError
from tests.support.fixtures import tiny_model
from tests.support.models.files import changed_model
from tests.support.quick import quick_of

ARCH = "llama"
KEYS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown architecture": (
        {"general.architecture": "mumble"},
        ["'mumble'", "such as llama, qwen3", "docs/models.md"],
    ),
    "heads over key-value heads": ({f"{ARCH}.attention.head_count_kv": 3}, ["4 heads over 3"]),
    "no heads": ({f"{ARCH}.attention.head_count": 0}, ["attention.head_count", "is 0"]),
    "text for a number": ({f"{ARCH}.block_count": "two"}, ["llama.block_count", "'two'"]),
    "half a layer": ({f"{ARCH}.block_count": 1.5}, ["llama.block_count", "1.5"]),
    "too many layers": ({f"{ARCH}.block_count": 2**31 - 1}, ["llama.block_count", "2147483647"]),
    "one layer too many": ({f"{ARCH}.block_count": 3}, ["'blk.2.attn_norm.weight'"]),
    "a huge width": ({f"{ARCH}.embedding_length": 2**31 - 4}, ["'token_embd.weight'", "2147483644"]),
    "a huge feed-forward": ({f"{ARCH}.feed_forward_length": 2**30}, ["'blk.0.ffn_gate.weight'", "1073741824"]),
    "a huge head": (
        {f"{ARCH}.attention.key_length": 2**30, f"{ARCH}.attention.value_length": 2**30},
        ["'blk.0.attn_q.weight'"],
    ),
    "beyond any size": ({f"{ARCH}.embedding_length": 2**32 - 1}, ["llama.embedding_length"]),
    "an infinite epsilon": (
        {f"{ARCH}.attention.layer_norm_rms_epsilon": float("inf")},
        ["attention.layer_norm_rms_epsilon", "inf"],
    ),
    "epsilon 0": ({f"{ARCH}.attention.layer_norm_rms_epsilon": 0.0}, ["attention.layer_norm_rms_epsilon"]),
    "no number": ({f"{ARCH}.rope.freq_base": float("nan")}, ["llama.rope.freq_base", "nan"]),
    "a negative base": ({f"{ARCH}.rope.freq_base": -1.0}, ["llama.rope.freq_base", "-1"]),
    "a long rotation": ({f"{ARCH}.rope.dimension_count": 18}, ["rope.dimension_count", "18", "16"]),
    "an odd rotation": ({f"{ARCH}.rope.dimension_count": 3}, ["rope.dimension_count", "3"]),
    "unknown scaling": ({f"{ARCH}.rope.scaling.type": "longrope"}, ["'longrope'"]),
    "scaling by 0": (
        {f"{ARCH}.rope.scaling.type": "linear", f"{ARCH}.rope.scaling.factor": 0.0},
        ["llama.rope.scaling.factor"],
    ),
    "unknown pre-tokenizer": ({"tokenizer.ggml.pre": "tiny-unheard-of"}, ["tiny-unheard-of"]),
    "unknown tokenizer": ({"tokenizer.ggml.model": "unigram-9"}, ["unigram-9"]),
}
NEEDED_KEYS = [
    "general.architecture",
    f"{ARCH}.block_count",
    f"{ARCH}.embedding_length",
    f"{ARCH}.feed_forward_length",
    f"{ARCH}.attention.head_count",
    f"{ARCH}.attention.layer_norm_rms_epsilon",
    f"{ARCH}.context_length",
    "tokenizer.ggml.tokens",
]
NEEDED_TENSORS = ["token_embd.weight", "blk.1.attn_k.weight", "blk.0.ffn_norm.weight", "output_norm.weight"]


def refused(path: Path, kind: type[CamshaftError] | tuple[type[CamshaftError], ...], **options: Any) -> str:
    """The message with which a model is refused: one line."""
    with pytest.raises(kind) as caught:
        LanguageModel(path, **({"threads": 1, "context": 64, "sessions": 1} | options)).close()
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("what", KEYS)
def test_a_wrong_key_is_named(what: str, tmp_path: Path) -> None:
    keys, words = KEYS[what]
    text = refused(changed_model("llama", tmp_path, keys=keys), ModelError)
    assert all(word in text for word in words), text


@pytest.mark.parametrize("value", [[0.5], [float("nan"), 0.5], [1, 2], 1e30, "half", None])
def test_numbers_of_activations_that_make_no_sense_are_named(value: Any, tmp_path: Path) -> None:
    changes = {"drop_keys": ["xielu.beta"]} if value is None else {"keys": {"xielu.beta": value}}
    text = refused(changed_model("apertus", tmp_path, **changes), ModelError)
    assert "the key 'xielu.beta'" in text
    assert "wanted 2 numbers" in text


def test_a_file_without_an_architecture_is_refused(tmp_path: Path) -> None:
    data = tiny_model("llama", tmp_path).read_bytes().replace(b"general.architecture", b"general.architectura")
    (tmp_path / "other.gguf").write_bytes(data)
    assert "no key 'general.architecture'" in refused(tmp_path / "other.gguf", ModelError)


@pytest.mark.parametrize("key", NEEDED_KEYS[1:])
def test_a_missing_key_is_named(key: str, tmp_path: Path) -> None:
    assert key in refused(changed_model("llama", tmp_path, drop_keys=[key]), (ModelError, FormatError))


@pytest.mark.parametrize("name", NEEDED_TENSORS)
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    assert repr(name) in refused(changed_model("llama", tmp_path, drop_tensors=[name]), ModelError)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("chatglm", "blk.1.attn_q.bias"),
        ("afmoe", "blk.3.exp_probs_b.bias"),
        ("gptneox", "blk.1.ffn_norm.weight"),
        ("gemma3n", "blk.2.attn_v.weight"),
        ("qwen2moe", "blk.1.ffn_gate_inp_shexp.weight"),
    ],
)
def test_what_one_layer_lacks_is_named_where_files_may_lack_it(model: str, name: str, tmp_path: Path) -> None:
    text = refused(changed_model(model, tmp_path, drop_tensors=[name]), ModelError)
    assert f"no tensor {name!r}, but layer " in text


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.attn_q.weight", "blk.0.attn_norm.weight"])
def test_a_tensor_of_another_shape_is_named_with_both_shapes(name: str, tmp_path: Path) -> None:
    wrong = np.ones((5,) if "norm" in name else (5, 7), np.float32)
    text = refused(changed_model("llama", tmp_path, tensors={name: wrong}), ModelError)
    assert repr(name) in text
    assert str(list(wrong.shape)) in text
    assert "wanted [" in text


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


@pytest.mark.parametrize("name", ["blk.1.attn_sinks.weight", "blk.0.ffn_up_exps.bias", "blk.0.attn_output.bias"])
def test_a_missing_tensor_of_gpt_oss_is_named(name: str, tmp_path: Path) -> None:
    assert repr(name) in refused(changed_model("gpt-oss", tmp_path, drop_tensors=[name]), ModelError)


@pytest.mark.parametrize("name", quick_of(["deepseek32", "glm-dsa"], ["deepseek32"]))
def test_a_context_ends_where_layers_would_choose_what_they_see(name: str, tmp_path: Path) -> None:
    with LanguageModel(tiny_model(name, tmp_path), context=4096, threads=1) as lm:
        assert lm.context == 64
        with lm.session() as session, pytest.raises(ContextError):
            session.process([1] * 65)
    lacking = changed_model(name, tmp_path, drop_keys=[f"{name}.attention.indexer.top_k"])
    assert f"no key '{name}.attention.indexer.top_k'" in refused(lacking, ModelError)


def test_a_context_ends_with_the_learned_positions(tmp_path: Path) -> None:
    with LanguageModel(tiny_model("gpt2", tmp_path), context=4096, threads=1) as lm:
        assert lm.context == 512
        with pytest.raises(ContextError, match="512"):
            lm.logits([1] * 513)


def test_norms_of_queries_that_a_family_lacks_are_named(tmp_path: Path) -> None:
    tensors = {"blk.0.attn_q_norm.weight": np.ones((2, 16), np.float32)}
    assert "attn_q_norm" in refused(changed_model("stablelm", tmp_path, tensors=tensors), ModelError)


def test_an_unknown_architecture_names_the_nearest(tmp_path: Path) -> None:
    text = refused(changed_model("llama", tmp_path, keys={"general.architecture": "gemma33"}), ModelError)
    assert "'gemma33'" in text
    assert "the nearest is gemma3" in text


def _with_down(tmp_path: Path, kind: str) -> Path:
    """The model with a feed-forward of 256 and its first projection back in another block type."""
    ffn, dim = 256, 64
    block_size, block_nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    up = np.full((ffn, dim), 0.01, np.float32)
    raw = np.zeros((dim, ffn // block_size * block_nbytes), np.uint8)
    tensors: dict[str, Any] = {f"blk.{i}.ffn_{name}.weight": up for i in (0, 1) for name in ("gate", "up")}
    tensors["blk.1.ffn_down.weight"] = np.full((dim, ffn), 0.01, np.float32)
    tensors["blk.0.ffn_down.weight"] = (raw, gguf.GGMLQuantizationType[kind])
    return changed_model("llama", tmp_path, keys={f"{ARCH}.feed_forward_length": ffn}, tensors=tensors)


@pytest.mark.parametrize("kind", ["Q8_K", "Q1_0"])
def test_a_block_type_without_a_kernel_is_named_with_its_tensor(kind: str, tmp_path: Path) -> None:
    text = refused(_with_down(tmp_path, kind), (ModelError, FormatError))
    assert kind in text
    assert "blk.0.ffn_down.weight" in text


@pytest.mark.parametrize(
    "kind", quick_of(["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"], ["Q5_1", "Q6_K"])
)
def test_a_block_type_with_a_kernel_runs(kind: str, tmp_path: Path) -> None:
    with LanguageModel(_with_down(tmp_path, kind), threads=1, context=64, sessions=1) as lm:
        assert np.isfinite(lm.logits([5, 6, 7])).all()


def test_whole_numbers_are_no_weights(tmp_path: Path) -> None:
    tensors = {"blk.0.attn_q.weight": np.ones((64, 64), np.int32)}
    text = refused(changed_model("llama", tmp_path, tensors=tensors), ModelError)
    assert "'blk.0.attn_q.weight'" in text
    assert "i32" in text


def test_rope_freqs_of_another_length_are_named(tmp_path: Path) -> None:
    tensors = {"rope_freqs.weight": np.ones(7, np.float32)}
    text = refused(changed_model("llama", tmp_path, tensors=tensors), ModelError)
    assert "'rope_freqs.weight'" in text
    assert "[7]" in text


def test_a_model_without_a_chat_template_says_to_use_raw(tmp_path: Path) -> None:
    path = changed_model("llama", tmp_path, drop_keys=["tokenizer.chat_template"])
    with LanguageModel(path, threads=1, context=64, sessions=1) as lm:
        with pytest.raises(ModelError, match="raw=True"):
            lm.generate("hi")
        assert list(lm.generate("hi", raw=True, max_tokens=0)) == []


@pytest.mark.parametrize(("context", "sessions"), [(10**9, 3), (10**12, 1000), (10**23, 1), (1, 10**23)])
def test_a_context_that_no_memory_holds_is_an_error(context: int, sessions: int, tmp_path: Path) -> None:
    text = refused(tiny_model("llama", tmp_path), ContextError, context=context, sessions=sessions)
    assert "context" in text


@pytest.mark.parametrize("options", [{"context": 0}, {"sessions": 0}, {"threads": 0}, {"activations": "f8"}])
def test_an_option_that_cannot_be_is_named(options: dict[str, Any], tmp_path: Path) -> None:
    (name,) = options
    assert name in refused(tiny_model("llama", tmp_path), SettingError, **options)


def test_an_unknown_backend_is_named(tmp_path: Path) -> None:
    assert "'abacus'" in refused(tiny_model("llama", tmp_path), CamshaftError, backend="abacus")
