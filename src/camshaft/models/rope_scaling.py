"""Read a GGUF file's rope scaling and build the rotation table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from camshaft.dtypes import f32
from camshaft.errors import ModelError
from camshaft.formats.mapped import shown_value
from camshaft.formats.tensor import FileTensor
from camshaft.models.config import Keys, ModelConfig
from camshaft.ops.rope.table import RopeScaling, rope_table
from camshaft.ops.spec import TensorSpec


def read_scaling(metadata: Mapping[str, Any], tensors: Mapping[str, FileTensor], config: ModelConfig) -> RopeScaling:
    """The file's rope scaling: none, linear, yarn, or the tensor rope_freqs.weight. Raises ModelError for another kind."""
    keys = Keys(metadata, config.architecture)
    kind = metadata.get(f"{config.architecture}.rope.scaling.type", "none")
    factor = keys.positive("rope.scaling.factor", 1.0)
    factors = tensors["rope_freqs.weight"].dequantize() if "rope_freqs.weight" in tensors else None
    if factors is not None and factors.shape != (config.rope_dim // 2,):
        raise ModelError(f"tensor 'rope_freqs.weight' has shape {list(factors.shape)}; wanted [{config.rope_dim // 2}]")
    if not isinstance(kind, str) or kind not in ("none", "linear", "yarn"):
        raise ModelError(
            f"rope scaling {shown_value(kind)} is not supported; wanted none, linear, yarn or rope_freqs.weight"
        )
    if kind == "none" or factor == 1.0:
        return RopeScaling(freq_factors=factors)
    if kind == "linear":
        return RopeScaling("linear", factor, freq_factors=factors)
    return RopeScaling(
        "yarn",
        factor,
        keys.size("rope.scaling.original_context_length", config.context_length),
        beta_fast=keys.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.positive("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=keys.positive("rope.scaling.attn_factor", 1.0),
        freq_factors=factors,
    )


@dataclass(frozen=True, eq=False)
class Rotations:
    """The rotation table as a graph constant: cosines and sines of every position, f32 [context, rope_dim]."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, FileTensor]
    config: ModelConfig
    context: int

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec((self.context, self.config.rope_dim), f32)

    def data(self) -> np.ndarray[Any, Any]:
        """The table's bytes, computed on first use. Raises ModelError for an unsupported scaling."""
        return self._bytes

    @cached_property
    def _bytes(self) -> np.ndarray[Any, Any]:
        scaling = read_scaling(self.metadata, self.tensors, self.config)
        table = rope_table(self.context, self.config.rope_dim, self.config.rope_theta, scaling)
        return np.ascontiguousarray(table).reshape(-1).view(np.uint8)
