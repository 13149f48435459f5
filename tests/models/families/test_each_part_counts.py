"""Each scale, bias and carried state of a family counts: changed or lost, it shows in the logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.formats.gguf.file import open_gguf
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.models.files import changed_model
from tests.support.models.tiny_families import BROKEN, context_of


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
