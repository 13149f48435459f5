"""HubConfig: values of a model's config.json, which families store under different names."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown, shown_value
from camshaft.formats.safetensors_folder import read_json

# GGUF's name -> the names that families use in config.json
_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "context": ("max_position_embeddings", "n_positions", "n_ctx"),
    "dim": ("hidden_size", "n_embd"),
    "ffn": ("ffn_hidden_size", "intermediate_size", "n_inner", "block_ff_dim", "moe_intermediate_size"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "rms_eps": ("rms_norm_eps", "norm_eps", "layer_norm_epsilon"),
    "layer_eps": ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps", "rms_norm_eps"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "experts_used": ("num_experts_per_tok", "moe_k"),
}
# Numeric RoPE parameters.
_ROPE_NUMBERS = frozenset(
    {
        *("rope_theta", "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"),
        *(
            "low_freq_factor",
            "high_freq_factor",
            "mscale_all_dim",
            "llama_4_scaling_beta",
            "short_mscale",
            "long_mscale",
        ),
    }
)


@dataclass(frozen=True)
class HubConfig:
    """`values` are those of config.json, for a vision model those of its text part; `architecture` is the model's class."""

    values: Mapping[str, Any]
    architecture: str
    path: str

    def get(self, name: str, default: Any = None) -> Any:
        """A value, or the default where it is missing or null."""
        value = self.values.get(name)
        return default if value is None else value

    def number(self, word: str, default: float | None = None) -> float:
        """A finite number by GGUF's or its own name. Raises ModelError if it is missing or not one."""
        names = _NAMES.get(word, (word,))
        value = next((self.values[name] for name in names if self.values.get(name) is not None), default)
        return self.checked(" or ".join(names), value)

    def checked(self, name: str, value: Any) -> float:
        """The value of that name, which must be a finite number. Raises ModelError for something else."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
            raise ModelError(f"{self.path}: {name} is {shown_value(value)}; wanted a number")
        return value

    def size(self, word: str, default: int | None = None) -> int:
        """A whole number of 1 or more."""
        return self.whole(_NAMES.get(word, (word,))[0], self.number(word, default))

    def whole(self, name: str, value: Any) -> int:
        """The value of that name, which must be a whole number of 1 or more. Raises ModelError for something else."""
        number = self.checked(name, value)
        if number != int(number) or not 1 <= number < 2**31:
            raise ModelError(f"{self.path}: {name} is {number:g}; wanted an integer of 1 or more")
        return int(number)

    def has(self, word: str) -> bool:
        """Whether one of the names for GGUF's `word` has a value."""
        return any(self.values.get(name) is not None for name in _NAMES.get(word, (word,)))

    @property
    def head_dim(self) -> int:
        """The head size."""
        return self.size("head_dim", max(1, self.size("dim") // self.size("heads")))

    @property
    def layer_kinds(self) -> list[Any]:
        """`layer_types`, the kind of each layer. Raises ModelError for anything else."""
        kinds = self.get("layer_types")
        if not isinstance(kinds, list) or len(kinds) != self.size("layers"):
            raise ModelError(f"{self.path}: layer_types is not a list of a kind for each layer")
        return kinds

    @property
    def rope(self) -> dict[str, Any]:
        """RoPE parameters as in transformers 5: `rope_type`, `rope_theta`, `factor`, ..., without null values.

        Raises ModelError for one that is not a number."""
        given = self.get("rope_parameters") or self.get("rope_scaling") or {}
        found = given.get("full_attention", given) if isinstance(given, dict) else given
        if not isinstance(found, dict):
            raise ModelError(f"{self.path}: rope_parameters is {shown_value(given)}; wanted an object")
        found = {name: value for name, value in found.items() if value is not None}
        kind = found.get("rope_type", found.get("type", "default"))
        found["rope_type"] = "default" if kind == "mrope" else kind  # Qwen2-VL: mrope_section has the sections
        found.setdefault("rope_theta", self.get("rope_theta", self.get("rotary_emb_base", 10000.0)))
        for name, value in found.items():
            if name in _ROPE_NUMBERS and self.checked(name, value) < 0:
                raise ModelError(f"{self.path}: {name} is {value:g}; wanted a number of 0 or more")
        return found

    @property
    def window_theta(self) -> float | None:
        """The RoPE base of layers with a window, if it differs."""
        found = self.get("rope_parameters") or {}
        local = found.get("sliding_attention") if isinstance(found, dict) else None
        value = local.get("rope_theta") if isinstance(local, dict) else self.get("rope_local_base_freq")
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def rope_dim(self) -> int:
        """Rotated elements of a head: a share of it, or as many as `rotary_dim` (MiniMax M2)."""
        given = self.rope.get("partial_rotary_factor", self.get("partial_rotary_factor", self.get("rotary_pct")))
        if given is None and self.has("rotary_dim"):
            return self.size("rotary_dim")
        share = 1.0 if given is None else given
        if not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise ModelError(f"{self.path}: partial_rotary_factor is {shown_value(share)}; wanted a share up to 1")
        return int(share * self.head_dim)


def read_config(folder: Path) -> HubConfig:
    """Read config.json. Raises FormatError for a damaged one, ModelError for one without architectures."""
    values = read_json(folder / "config.json")
    names = values.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelError(f"{shown(str(folder))}: config.json names no architectures; wanted a transformers class")
    text = values.get("text_config")
    merged = {**values, **text} if isinstance(text, dict) else values
    return HubConfig(merged, names[0], str(folder / "config.json"))
