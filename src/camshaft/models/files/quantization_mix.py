"""The block format of each tensor in a quantized model, by file type (Q4_K_M, Q8_0, ...).

A file type has a base format and exceptions by the tensor's role. The table is that of llama.cpp (llama-quant.cpp), with and
without an importance matrix, so files of one type have the same size as llama.cpp's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from camshaft.errors import FormatError
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat


@dataclass(frozen=True)
class TensorPosition:
    """What rules depend on besides a tensor's role: its layer of n_layers, the model's query heads per KV head and number of
    experts, and whether there is an importance matrix."""

    layer: int
    n_layers: int
    queries_per_head: int = 1
    n_experts: int = 0
    has_importance: bool = False


Rule: TypeAlias = Callable[[TensorPosition], str | None]


@dataclass(frozen=True)
class Mix:
    """A file type: its number in GGUF, the format of most tensors, and rules for others by role (a rule may return None)."""

    file_type: int
    base: str
    rules: Mapping[str, Rule] = field(default_factory=dict)


def _always(name: str) -> Rule:
    return lambda position: name


def _first(share: int, name: str) -> Rule:
    return lambda position: name if position.layer < position.n_layers // share else None


def _first_with(importance: bool, name: str) -> Rule:
    """The first eighth of the layers, only with an importance matrix or only without one."""
    return lambda position: _first(8, name)(position) if position.has_importance is importance else None


def _needs_more_bits(position: TensorPosition) -> bool:
    """Whether a layer is in the first or last eighth, or every third between."""
    i, n = position.layer, position.n_layers
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def _where_needed(name: str) -> Rule:
    return lambda position: name if _needs_more_bits(position) else None


def _shared_heads(name: str, otherwise: str | None = None) -> Rule:
    """More bits for V where at least four query heads share a KV head: V is small then."""
    return lambda position: name if position.queries_per_head >= 4 else otherwise


_IQ4 = {"attn_v": _shared_heads("Q5_K"), "ffn_down": _first_with(False, "Q5_K")}

MIXES: dict[str, Mix] = {
    "F32": Mix(0, "F32"),
    "F16": Mix(1, "F16"),
    "BF16": Mix(32, "BF16"),
    "Q8_0": Mix(7, "Q8_0"),
    "Q4_0": Mix(2, "Q4_0", {"ffn_down": _first_with(True, "Q4_1")}),
    "Q4_1": Mix(3, "Q4_1"),
    "Q5_0": Mix(8, "Q5_0", {"ffn_down": _first_with(True, "Q5_1")}),
    "Q5_1": Mix(9, "Q5_1"),
    "IQ4_NL": Mix(25, "IQ4_NL", _IQ4),
    "IQ4_XS": Mix(30, "IQ4_XS", _IQ4),
    "Q2_K": Mix(
        10,
        "Q2_K",
        {"attn_v": _shared_heads("Q4_K", "Q3_K"), "ffn_down": _always("Q3_K"), "attn_output": _always("Q3_K")},
    ),
    "Q3_K_S": Mix(11, "Q3_K"),
    "Q3_K_M": Mix(
        12,
        "Q3_K",
        {
            "attn_v": lambda position: "Q5_K" if position.layer < 2 else "Q4_K",
            "ffn_down": lambda position: "Q5_K" if position.layer < position.n_layers // 16 else "Q4_K",
            "attn_output": _always("Q4_K"),
            "attn_qkv": _always("Q4_K"),
        },
    ),
    "Q3_K_L": Mix(
        13,
        "Q3_K",
        {name: _always("Q5_K") for name in ("attn_v", "ffn_down", "attn_output")} | {"attn_qkv": _always("Q4_K")},
    ),
    "Q4_K_S": Mix(
        14, "Q4_K", {"attn_v": lambda position: "Q5_K" if position.layer < 4 else None, "ffn_down": _first(8, "Q5_K")}
    ),
    "Q4_K_M": Mix(
        15,
        "Q4_K",
        {"attn_v": _where_needed("Q6_K"), "ffn_down": _where_needed("Q6_K"), "attn_qkv": _always("Q5_K")},
    ),
    "Q5_K_S": Mix(16, "Q5_K"),
    "Q5_K_M": Mix(
        17,
        "Q5_K",
        {"attn_v": _where_needed("Q6_K"), "ffn_down": _where_needed("Q6_K"), "attn_qkv": _always("Q6_K")},
    ),
    "Q6_K": Mix(18, "Q6_K"),
}

# Substitutes with blocks of 32 for rows whose length is not a multiple of 256.
_NARROW = {"Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}

# Not quantized: small matrices with a large effect (routing), and tensors that no matmul reads (convolutions, positions).
_NOT_QUANTIZED = re.compile(
    r"_norm\.weight$|ffn_gate_inp|ssm_conv1d|shortconv\.conv|position_embd|token_types|attn_rel_b|altup|laurel|per_layer_model_proj"
    r"|time_mix_(first|lerp_fused|[wvag][012]|decay_w[12])\.weight|mm\.input_projection"
)


def mix_named(name: str) -> Mix:
    """The row of a file type, ignoring case. Raises FormatError, listing all types, for an unknown name."""
    if name.upper() not in MIXES:
        raise FormatError(f"no file type {name!r}; wanted one of {', '.join(MIXES)}")
    return MIXES[name.upper()]


def part_of(name: str) -> tuple[str, int]:
    """A tensor's role and layer: 'blk.3.attn_v.weight' gives ('attn_v', 3)."""
    match = re.fullmatch(r"(?:enc\.|dec\.)?blk\.([0-9]{1,9})\.(\w+?)(_exps|_shexp)?\.weight", name)
    return (match[2], int(match[1])) if match else (name.removesuffix(".weight"), 0)


def is_quantized(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is quantized: a weight matrix, or a stack of them, that matmuls read."""
    n_axes = len(shape) - next((i for i, n in enumerate(shape) if n != 1), len(shape))
    return name.endswith(".weight") and n_axes >= 2 and not _NOT_QUANTIZED.search(name)


def format_for(
    mix: Mix, name: str, row: int, position: TensorPosition, *, is_output: bool, pure: bool = False
) -> BlockFormat:
    """The format of a tensor with rows of `row` elements. `is_output`: it computes the logits; `pure`: always the base."""
    base = BLOCK_FORMATS[mix.base]
    wanted = mix.base
    if not base.is_plain and not pure:
        wanted = _output(base, row) if is_output else _exception(mix, name, position) or mix.base
    if row % BLOCK_FORMATS[wanted].block_size:
        wanted = _NARROW.get(wanted, "F16")
    if row % BLOCK_FORMATS[wanted].block_size:
        wanted = "F16"
    return BLOCK_FORMATS[wanted]


def _output(base: BlockFormat, row: int) -> str:
    return "Q8_0" if base.name == "Q8_0" or row % base.block_size else "Q6_K"


def _exception(mix: Mix, name: str, position: TensorPosition) -> str | None:
    part = part_of(name)[0]
    if part in ("attn_v", "attn_k") and position.n_experts == 8:
        return "Q8_0"  # small: 1/128 of the experts' size
    if part == "attn_output" and position.n_experts == 8 and mix.base in ("Q2_K", "Q3_K", "Q4_K", "IQ4_NL", "IQ4_XS"):
        return "Q5_K"
    rule = mix.rules.get(part)
    return rule(position) if rule else None
