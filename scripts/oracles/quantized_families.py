"""How far quantized files of widened tiny models are from the f32 of what was quantized, in camshaft and in llama.cpp."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from camshaft import LanguageModel
from camshaft.formats.gguf.file import open_gguf
from camshaft.models.files.quantize import quantize
from scripts.oracles import llama, tiny_models
from scripts.oracles.tiny.vocabulary import N_VOCAB
from scripts.oracles.tiny.widened import widened

N_TOKENS = 128
N_TEXTS, N_TEXTS_OF_EXPERTS = 5, 60
MEASURE = "kl"
SPREAD = 2.0  # logits of random models of this width would leave one token a probability of 1
USUAL = {"gpt-oss": "MXFP4"}  # of its experts; all else in Q8_0
# llama.cpp reads V2-Lite's keys in files of 26 or 27 layers alone, never ends with PLaMo 2, and weighs Phi-3.5-MoE's experts by
# the softmax of all, which hides what a rounding changes: in the model's own most weights are 1.
_OUT = {"deepseek2-lite", "plamo2", "phimoe"}
FAMILIES = tuple(sorted(tiny_models.SEEDED.keys() - _OUT))
_LATENT_KEYS = "attn_k_b"  # one matrix for each head, which ggml's kernels for AMX take for one matrix in all


def types_of(name: str, types: Sequence[str]) -> list[str]:
    """The types, and the family's usual one."""
    return [*types, *(kind for family, kind in USUAL.items() if family == name)]


def has_experts(name: str) -> bool:
    return "expert_count" in tiny_models.SEEDED[name][1].keys or name == "smallthinker"


def is_alike(name: str) -> bool:
    """Whether llama.cpp computes the same model of the family's file."""
    return tiny_models.SEEDED[name][1].agreement is not None


def texts(n: int, n_tokens: int = N_TOKENS) -> list[list[int]]:
    """Texts of random tokens."""
    return [np.random.default_rng(i).integers(3, N_VOCAB, n_tokens).tolist() for i in range(n)]


def write_source(name: str, path: Path) -> None:
    """The widened model of a family as a file in f32."""
    seed, tiny = tiny_models.SEEDED[name]
    model = widened(tiny)
    network = tiny_models.build(model, seed)
    if name == "gemma3n":
        _give_all_layers_keys(network)
        _calm(network)
    tiny_models.write_gguf(model, network, path)


def _give_all_layers_keys(network: Any) -> None:
    """Layers that share the keys and values of others have weights for them in released files, which llama.cpp wants there."""
    layers = [layer.self_attn for layer in network.model.layers]
    for layer in layers:
        for name in ("k_proj", "v_proj", "k_norm"):
            if not hasattr(layer, name):
                setattr(layer, name, copy.deepcopy(getattr(layers[0], name)))


def _calm(network: Any) -> None:
    """With 22 layers of drawn parameters one rounding would change all logits: what layers add is made less."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("_coefs.weight"):
                parameter *= 0.125
            elif ".post_" in name:
                parameter *= 0.25


def write_quantized(source: Path, out: Path, kind: str) -> None:
    """The file in a type of `camshaft quantize`, or with experts in MXFP4."""
    if kind == "MXFP4":
        quantize(source, out, "Q8_0", tensor_types=[("ffn_.*_exps", "MXFP4")])
    else:
        quantize(source, out, kind)


def ours(path: Path, texts: Sequence[list[int]], activations: str) -> list[np.ndarray]:
    """camshaft's logits of every token of each text."""
    with LanguageModel(path, context=256, sessions=1, activations=activations, threads=2) as lm:
        return [lm.logits(tokens) for tokens in texts]


def theirs(path: Path, texts: Sequence[list[int]], *, exact: bool) -> list[np.ndarray]:
    """llama.cpp's."""
    with open_gguf(path) as file:
        packs = not any(_LATENT_KEYS in name for name in file.tensors)
    return llama.logits_of_each(path, texts, exact=exact, packs=packs)


def divergence(wanted: np.ndarray, came: np.ndarray) -> np.ndarray:
    """Of each position the sum of p (log p - log q), of logits whose standard deviation is at most SPREAD."""
    scale = SPREAD / max(SPREAD, float(wanted.std()))
    p, q = (_log_softmax(scale * x.astype(np.float64)) for x in (wanted, came))
    return np.asarray((np.exp(p) * (p - q)).sum(-1))


def errors(wanted: Sequence[np.ndarray], came: Sequence[np.ndarray]) -> list[float]:
    """The mean of `divergence` over the positions of each text."""
    return [float(divergence(a, b).mean()) for a, b in zip(wanted, came, strict=True)]


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def mean_divergence(wanted: Sequence[np.ndarray], came: Sequence[np.ndarray], leave_out: float = 0.0) -> float:
    """The mean of `divergence` over the positions of several texts, without the greatest: such a share of them."""
    each = np.sort(np.concatenate([divergence(a, b) for a, b in zip(wanted, came, strict=True)]))
    return float(each[: len(each) - round(leave_out * len(each))].mean())
