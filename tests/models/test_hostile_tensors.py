"""GGUF files that lack a tensor, or have one of another shape or type, are refused in one line that names the tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.errors import FormatError, ModelError
from tests.support.models.files import changed_model, refused
from tests.support.quick import quick_of

NEEDED_TENSORS = ["token_embd.weight", "blk.1.attn_k.weight", "blk.0.ffn_norm.weight", "output_norm.weight"]


@pytest.mark.parametrize("name", NEEDED_TENSORS)
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    assert repr(name) in refused(changed_model("llama", tmp_path, drop_tensors=[name]), ModelError)


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.attn_q.weight", "blk.0.attn_norm.weight"])
def test_a_tensor_of_another_shape_is_named_with_both_shapes(name: str, tmp_path: Path) -> None:
    wrong = np.ones((5,) if "norm" in name else (5, 7), np.float32)
    text = refused(changed_model("llama", tmp_path, tensors={name: wrong}), ModelError)
    assert repr(name) in text
    assert str(list(wrong.shape)) in text
    assert "wanted [" in text


@pytest.mark.parametrize("name", ["blk.1.attn_sinks.weight", "blk.0.ffn_up_exps.bias", "blk.0.attn_output.bias"])
def test_a_missing_tensor_of_gpt_oss_is_named(name: str, tmp_path: Path) -> None:
    assert repr(name) in refused(changed_model("gpt-oss", tmp_path, drop_tensors=[name]), ModelError)


def test_norms_of_queries_that_a_family_lacks_are_named(tmp_path: Path) -> None:
    tensors = {"blk.0.attn_q_norm.weight": np.ones((2, 16), np.float32)}
    assert "attn_q_norm" in refused(changed_model("stablelm", tmp_path, tensors=tensors), ModelError)


def _with_down(tmp_path: Path, kind: str) -> Path:
    """The model with a feed-forward of 256 and its first projection back in another block type."""
    ffn, dim = 256, 64
    block_size, block_nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    up = np.full((ffn, dim), 0.01, np.float32)
    raw = np.zeros((dim, ffn // block_size * block_nbytes), np.uint8)
    tensors: dict[str, Any] = {f"blk.{i}.ffn_{name}.weight": up for i in (0, 1) for name in ("gate", "up")}
    tensors["blk.1.ffn_down.weight"] = np.full((dim, ffn), 0.01, np.float32)
    tensors["blk.0.ffn_down.weight"] = (raw, gguf.GGMLQuantizationType[kind])
    return changed_model("llama", tmp_path, keys={"llama.feed_forward_length": ffn}, tensors=tensors)


@pytest.mark.parametrize("kind", ["Q8_K", "Q1_0"])
def test_a_block_type_without_a_kernel_is_named_with_its_tensor(kind: str, tmp_path: Path) -> None:
    text = refused(_with_down(tmp_path, kind), (ModelError, FormatError))
    assert kind in text
    assert "blk.0.ffn_down.weight" in text


@pytest.mark.parametrize("kind", quick_of(["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"], ["Q5_1"]))
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
