"""A model with weights of one block format, in both activation modes, against float64 on dequantized weights."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from camshaft import LanguageModel
from camshaft.ops.quantized.samples import random_blocks
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.models.files import changed_model
from tests.support.models.references.float64_llama import kl_divergence, logits
from tests.support.quick import quick_of

TYPES = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4")


def as_block_type(values: np.ndarray, name: str) -> np.ndarray:
    """The rows in a block type; IQ4_NL, which gguf cannot make, as random codes with scales of the values' size."""
    kind = gguf.GGMLQuantizationType[name]
    if name != "IQ4_NL":
        return quantize(values, kind)
    blocks = np.random.default_rng(0).integers(0, 256, (values.size // 32, 18), dtype=np.uint8)
    blocks[:, :2] = np.full((len(blocks), 1), values.std() / 60, np.float16).view(np.uint8)
    return blocks.reshape(len(values), -1)


@pytest.mark.parametrize("name", quick_of(TYPES, ["F16"]))
def test_a_model_of_one_block_type(name: str, tmp_path: Path) -> None:
    kind, reader = gguf.GGMLQuantizationType[name], gguf.GGUFReader(tiny_model("llama", tmp_path))
    weights = {t.name: np.array(t.data) for t in reader.tensors}
    packed = {n: (as_block_type(w, name), kind) for n, w in weights.items() if w.ndim == 2}
    weights |= {n: dequantize(raw, kind) for n, (raw, _) in packed.items()}
    metadata = {f.name: f.contents() for f in reader.fields.values() if not f.name.startswith("tokenizer.")}
    path, tokens = changed_model("llama", tmp_path, tensors=packed), tiny_logits("llama")[0]
    truth = logits(weights, metadata, tokens)
    with LanguageModel(path, threads=2, context=64, activations="f32") as lm:
        np.testing.assert_allclose(lm.logits(tokens), truth, atol=1e-3 * max(1.0, truth.std()))
    with LanguageModel(path, threads=2, context=64, activations="q8") as lm:
        assert kl_divergence(truth, lm.logits(tokens)).mean() < 0.02


# Blocks of 256, or of 64, in a model whose feed-forward part is as wide.
WIDE = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "NVFP4", "Q2_K", "IQ4_XS")


@pytest.mark.parametrize("name", quick_of(WIDE, ["Q2_K"]))
@pytest.mark.full
def test_a_model_with_matrices_of_wide_blocks(name: str, tmp_path: Path) -> None:
    kind, reader = gguf.GGMLQuantizationType[name], gguf.GGUFReader(tiny_model("llama", tmp_path))
    weights, rng = {t.name: np.array(t.data) for t in reader.tensors}, np.random.default_rng(1)
    dim, ffn = weights["blk.0.ffn_gate.weight"].shape[1], 256
    packed: dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]] = {}
    for i in (0, 1):
        weights |= {
            f"blk.{i}.ffn_{part}.weight": rng.normal(size=(ffn, dim)).astype(np.float32) / 8 for part in ("gate", "up")
        }
        packed[f"blk.{i}.ffn_down.weight"] = (random_blocks(name, dim, ffn, seed=i).reshape(dim, -1), kind)
    metadata = {f.name: f.contents() for f in reader.fields.values() if not f.name.startswith("tokenizer.")}
    keys = {f"{metadata['general.architecture']}.feed_forward_length": ffn}
    path, tokens = changed_model("llama", tmp_path, keys=keys, tensors=weights | packed), tiny_logits("llama")[0]
    weights |= {n: dequantize(raw, kind) for n, (raw, _) in packed.items()}
    truth = logits(weights, metadata | keys, tokens)
    with LanguageModel(path, threads=2, context=64, activations="f32") as lm:
        np.testing.assert_allclose(lm.logits(tokens), truth, atol=2e-3 * max(1.0, truth.std()))
    with LanguageModel(path, threads=2, context=64, activations="q8") as lm:
        assert kl_divergence(truth, lm.logits(tokens)).mean() < 0.02
        # an answer of random weights may end at once
        assert any(list(lm.generate(prompt, raw=True, max_tokens=3)) for prompt in "abcdef")
