"""ModelConfig: a transformer's dimensions, read from a GGUF file's metadata and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown_value


@dataclass(frozen=True)
class ModelConfig:
    """Sizes in elements. `rope_dim` is the number of rotated elements per head; `context_length` that of the training."""

    architecture: str
    n_layers: int
    dim: int
    ffn_dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rope_dim: int
    rope_theta: float
    norm_eps: float
    vocab_size: int
    context_length: int


ARCHITECTURES = ("llama", "qwen2", "qwen3")  # architectures.py has a row for each


def architecture_name(metadata: Mapping[str, Any]) -> str:
    """The file's architecture. Raises ModelError, naming it, if it is not supported."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ModelError(f"the file's architecture is {shown_value(name)}; camshaft runs {', '.join(ARCHITECTURES)}")
    return str(name)


class Keys:
    """Metadata under an architecture's prefix. Raises ModelError for a missing key or a value of the wrong kind."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.metadata, self.architecture = metadata, architecture

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        name = f"{self.architecture}.{key}"
        value = self.metadata.get(name, default)
        if value is None:
            raise ModelError(f"the file has no key {name!r}, which {self.architecture} needs; convert the model again")
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if kind in (int, float) and not (number and math.isfinite(value)):
            raise ModelError(f"the key {name!r} is {shown_value(value)}; wanted a number")
        return kind(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a number above 0."""
        value: float = self.get(key, float, default)
        if value <= 0:
            raise ModelError(f"the key '{self.architecture}.{key}' is {value:g}; wanted a number above 0")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """Return an integer from 1 to 2**31 - 1."""
        value = self.get(key, float, default)
        if value != int(value) or not 1 <= value < 2**31:
            raise ModelError(f"the key '{self.architecture}.{key}' is {value:g}; wanted an integer of 1 or more")
        return int(value)


def read_config(metadata: Mapping[str, Any], architecture: str, vocab_size: int) -> ModelConfig:
    """Read the dimensions. Raises ModelError, naming the key, for a missing or impossible value."""
    keys = Keys(metadata, architecture)
    dim, n_heads = keys.size("embedding_length"), keys.size("attention.head_count")
    head_dim = keys.size("attention.key_length", dim // n_heads if dim % n_heads == 0 else None)
    config = ModelConfig(
        architecture=architecture,
        n_layers=keys.size("block_count"),
        dim=dim,
        ffn_dim=keys.size("feed_forward_length"),
        n_heads=n_heads,
        n_kv_heads=keys.size("attention.head_count_kv", n_heads),
        head_dim=head_dim,
        rope_dim=keys.size("rope.dimension_count", head_dim),
        rope_theta=keys.positive("rope.freq_base", 10000.0),
        norm_eps=keys.positive("attention.layer_norm_rms_epsilon"),
        vocab_size=vocab_size,
        context_length=keys.size("context_length"),
    )
    if config.n_heads % config.n_kv_heads:
        raise ModelError(
            f"{config.n_heads} heads over {config.n_kv_heads} key-value heads; wanted a multiple of the key-value heads"
        )
    if config.rope_dim > config.head_dim or config.rope_dim % 2:
        raise ModelError(f"rope.dimension_count is {config.rope_dim}; wanted an even number up to {config.head_dim}")
    return config
