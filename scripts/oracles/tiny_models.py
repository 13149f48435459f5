"""Tiny random models of each family, by name with the seed of their parameters, made and run by transformers."""

from __future__ import annotations

from scripts.oracles.tiny.families import (
    experts,
    gemma4,
    hybrids,
    latent,
    layer_norms,
    mixtures,
    more_experts,
    own,
    plain,
    recurrent,
    rows,
    windowed,
)
from scripts.oracles.tiny.files import tensors, write_gguf
from scripts.oracles.tiny.network import build, logits, sequence

__all__ = ["SEEDED", "build", "logits", "sequence", "tensors", "write_gguf"]

_FILES = (plain, mixtures, layer_norms, recurrent, experts, latent, hybrids, gemma4, own, rows, more_experts, windowed)
SEEDED = {model.name: (seed, model) for each in _FILES for seed, model in enumerate(each.MODELS, each.FIRST_SEED)}
