"""Families whose rows are others' or near them: tiny models of those under other names, beside llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.formats.gguf.file import open_gguf
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.models import changed_model

# Family -> a tiny model, values of other keys, and the ends of names of tensors that the family lacks.
_EXPERTS = {"expert_gating_func": 1, "expert_weights_norm": False}
_NORMS = (".attn_q_norm.weight", ".attn_k_norm.weight")
RENAMED: dict[str, tuple[str, Mapping[str, Any], tuple[str, ...]]] = {
    "xverse": ("llama", {}, ()),
    "starcoder": ("gpt2", {}, ()),
    "maincoder": ("hunyuan-dense", {}, ()),
    "deepseek": ("dots1", _EXPERTS, (*_NORMS, ".exp_probs_b.bias")),
    "bailingmoe": (
        "dots1",
        {**_EXPERTS, "block_count": 1, "leading_dense_block_count": 0},
        (*_NORMS, ".exp_probs_b.bias"),
    ),
}
GELU = 1e-2  # llama.cpp's is a table in 16 bits


def renamed(family: str, folder: Path) -> Path:
    """The tiny model of RENAMED as one of the family."""
    base, changes, without = RENAMED[family]
    with open_gguf(tiny_model(base, folder)) as file:
        old = str(file.metadata["general.architecture"])
        kept = {key.removeprefix(f"{old}."): file.metadata[key] for key in file.metadata if key.startswith(f"{old}.")}
        names = {name for name in file.tensors if name.endswith(without)} if without else set()
        tensors = {}
        if family == "bailingmoe":  # only layers with experts: the second one is the first
            names |= {name for name in file.tensors if name.startswith(("blk.0.", "blk.1."))}
            for name, tensor in file.tensors.items():
                if name.startswith("blk.1.") and not name.endswith(without):
                    tensors[name.replace("blk.1.", "blk.0.")] = tensor.dequantize()
    values = {
        key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in {**kept, **changes}.items()
    }
    keys = {"general.architecture": family, **{f"{family}.{key}": value for key, value in values.items()}}
    old_keys = [f"{old}.{key}" for key in kept]
    return changed_model(base, folder, keys=keys, drop_keys=old_keys, drop_tensors=names, tensors=tensors)


def logits_of(path: Path, tokens: list[int], **options: Any) -> np.ndarray:
    given = {"activations": "f32", "threads": 1, "context": 160, "sessions": 1}
    with LanguageModel(path, **given) as lm:  # type: ignore[arg-type]
        return lm.logits(tokens, **options)


@pytest.mark.parametrize("family", ["xverse", "starcoder"])
def test_rows_that_are_others_give_transformers_logits(family: str, tmp_path: Path) -> None:
    tokens, wanted = tiny_logits(RENAMED[family][0])
    assert np.abs(logits_of(renamed(family, tmp_path), tokens) - wanted).max() < 1e-3


@pytest.mark.oracle
def test_starcoder_with_one_head_of_keys_is_as_in_llama_cpp(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from scripts.oracles import llama

    whole, tensors = renamed("starcoder", tmp_path), {}
    with open_gguf(whole) as file:
        dim, heads = (int(file.metadata[f"starcoder.{key}"]) for key in ("embedding_length", "attention.head_count"))
        rows = [*range(dim + dim // heads), *range(2 * dim, 2 * dim + dim // heads)]
        for name, tensor in file.tensors.items():
            if ".attn_qkv." in name:
                tensors[name] = tensor.dequantize()[rows]
    folder = tmp_path / "one"
    folder.mkdir()
    path = changed_model(whole, folder, keys={"starcoder.attention.head_count_kv": 1}, tensors=tensors)
    tokens = tiny_logits("gpt2")[0]
    assert np.abs(logits_of(path, tokens) - llama.logits(path, tokens, exact=True)).max() < GELU


@pytest.mark.oracle
@pytest.mark.parametrize("family", RENAMED)
def test_logits_are_those_of_llama_cpp(family: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from scripts.oracles import llama

    tokens, path = tiny_logits(RENAMED[family][0])[0], renamed(family, tmp_path)
    wanted = llama.logits(path, tokens, exact=True)
    assert wanted.std(axis=0).mean() > 0.5
    tolerance = GELU if family == "starcoder" else 1e-4
    for chunk in (None, 7, 1):
        assert np.abs(logits_of(path, tokens, chunk=chunk) - wanted).max() < tolerance
