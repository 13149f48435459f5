"""T5Config: the sizes of a T5, read from the metadata that llama.cpp's converter writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from camshaft.errors import ModelError
from camshaft.models.file_keys import Keys
from camshaft.models.layer_options import MOST_LAYERS

ARCHITECTURE = "t5"
# Distances from which all have one bucket: llama.cpp's files do not say it, and no released T5 has another.
FARTHEST = 128
_MOST_CONTEXT = 4096


@dataclass(frozen=True)
class T5Config:
    """Sizes in elements. `context` is the most tokens of a prompt, and of an answer; `start` the token that an answer begins
    after."""

    dim: int
    ffn_dim: int
    n_heads: int
    head_dim: int
    n_encoder_layers: int
    n_decoder_layers: int
    n_buckets: int
    context: int
    vocab_size: int
    norm_eps: float
    start: int


def read_t5_config(metadata: Mapping[str, Any], vocab_size: int) -> T5Config:
    """Read the sizes. Raises ModelError, naming the key, for a missing or impossible value."""
    keys = Keys(metadata, ARCHITECTURE)
    dim, n_heads = keys.size("embedding_length"), keys.size("attention.head_count")
    n_layers = keys.size("block_count", most=MOST_LAYERS)
    config = T5Config(
        dim=dim,
        ffn_dim=keys.size("feed_forward_length"),
        n_heads=n_heads,
        head_dim=keys.size("attention.key_length", max(1, dim // n_heads)),
        n_encoder_layers=n_layers,
        n_decoder_layers=keys.size("decoder_block_count", n_layers, most=MOST_LAYERS),
        n_buckets=keys.size("attention.relative_buckets_count"),
        context=keys.size("context_length", most=_MOST_CONTEXT),
        vocab_size=vocab_size,
        norm_eps=keys.positive("attention.layer_norm_rms_epsilon", 1e-6),
        start=keys.count("decoder_start_token_id"),
    )
    if config.start >= vocab_size:
        raise ModelError(
            f"the key '{ARCHITECTURE}.decoder_start_token_id' is {config.start}; wanted at most {vocab_size - 1}"
        )
    check_buckets(config.n_buckets)
    return config


def check_buckets(n: int) -> None:
    """Raise ModelError for numbers of buckets that leave none to distances on one side, or none to the logarithms of far ones."""
    if n % 4 or not 4 <= n < 2 * FARTHEST:
        raise ModelError(f"{n} buckets of distances; wanted a multiple of 4 below {2 * FARTHEST}")
