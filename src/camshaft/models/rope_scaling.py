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
from camshaft.models.config import ModelConfig
from camshaft.models.families import FAMILIES
from camshaft.models.file_keys import Keys
from camshaft.ops.rope.table import RopeScaling, rope_table
from camshaft.ops.spec import TensorSpec


def read_scaling(metadata: Mapping[str, Any], tensors: Mapping[str, FileTensor], config: ModelConfig) -> RopeScaling:
    """The file's rope scaling: none, linear, yarn, longrope by its tensors, or the tensor rope_freqs.weight.

    Raises ModelError for another kind.
    """
    keys = Keys(metadata, config.architecture)
    if "rope_factors_long.weight" in tensors:
        return _longrope(keys, tensors, config)
    kind = metadata.get(f"{config.architecture}.rope.scaling.type", "none")
    factor = keys.positive("rope.scaling.factor", 1.0)
    factors = _factors("rope_freqs.weight", tensors, config) if "rope_freqs.weight" in tensors else None
    if not isinstance(kind, str) or kind not in ("none", "linear", "yarn"):
        raise ModelError(
            f"rope scaling {shown_value(kind)} is not supported; wanted none, linear, yarn or rope_freqs.weight"
        )
    if kind == "none" or factor == 1.0:
        return RopeScaling(freq_factors=factors)
    if kind == "linear":
        return RopeScaling("linear", factor, freq_factors=factors)
    extrapolated = keys.at_least_0("rope.scaling.yarn_ext_factor", 1.0)
    if extrapolated != 1.0:
        name = f"{config.architecture}.rope.scaling.yarn_ext_factor"
        raise ModelError(f"the key {name!r} is {extrapolated:g}; wanted 1")
    family = FAMILIES[config.architecture]
    multiplier = keys.at_least_0("rope.scaling.yarn_log_multiplier", 0.0)
    return RopeScaling(
        "yarn",
        factor,
        keys.size("rope.scaling.original_context_length", config.context_length),
        beta_fast=keys.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.positive("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=keys.positive("rope.scaling.attn_factor", 1.0),
        freq_factors=factors,
        truncate=family.yarn_truncates,
        mscale=multiplier if family.latent else 1.0 if multiplier else 0.0,
        mscale_all_dim=multiplier,
    )


def _longrope(keys: Keys, tensors: Mapping[str, FileTensor], config: ModelConfig) -> RopeScaling:
    """Factors for contexts up to the original one, and for longer ones (Ding et al., 2024); the file has the magnitude."""
    return RopeScaling(
        "longrope",
        original_context=keys.size("rope.scaling.original_context_length", config.context_length),
        attention_factor=keys.positive("rope.scaling.attn_factor", 1.0),
        short_factors=_factors("rope_factors_short.weight", tensors, config),
        long_factors=_factors("rope_factors_long.weight", tensors, config),
    )


def _factors(name: str, tensors: Mapping[str, FileTensor], config: ModelConfig) -> np.ndarray[Any, Any]:
    """A tensor that the rotation frequencies are divided by, f32 [rope_dim / 2]. Raises ModelError for another shape."""
    if name not in tensors:
        raise ModelError(f"the file has no tensor {name!r}, which its rope scaling needs; convert the model again")
    factors = tensors[name].dequantize()
    if factors.shape != (config.rope_dim // 2,):
        raise ModelError(f"tensor {name!r} has shape {list(factors.shape)}; wanted [{config.rope_dim // 2}]")
    return factors


@dataclass(frozen=True, eq=False)
class Rotations:
    """A rotation table as a graph constant: cosines and sines of every position, f32 [context, rope_dim].

    `name` 'rope_window' is that of layers with a window in families that leave their scaling out.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, FileTensor]
    config: ModelConfig
    context: int
    name: str = "rope"

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec((self.context, self._dim), f32)

    @property
    def _dim(self) -> int:
        """The rotated elements of a head."""
        config = self.config
        return config.window_rope_dim or config.rope_dim if self.name == "rope_window" else config.rope_dim

    def data(self) -> np.ndarray[Any, Any]:
        """The table's bytes, computed on first use. Raises ModelError for an unsupported scaling."""
        return self._bytes

    @cached_property
    def _bytes(self) -> np.ndarray[Any, Any]:
        plain = self.name == "rope_window"
        scaling = RopeScaling() if plain else read_scaling(self.metadata, self.tensors, self.config)
        theta = self.config.window_theta if plain else self.config.rope_theta
        table = rope_table(self.context, self._dim, theta, scaling)
        return np.ascontiguousarray(table).reshape(-1).view(np.uint8)
