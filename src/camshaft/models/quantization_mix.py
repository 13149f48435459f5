"""Which tensor of a model gets which block format: a row per file type.

A row has a base format and exceptions by the tensor's part of the model; they are llama.cpp's (llama-quant.cpp), without an
importance matrix, so that a file of one name weighs the same here and there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from camshaft.errors import FormatError
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat


@dataclass(frozen=True)
class Place:
    """Where a tensor stands: its layer of n_layers, and of the model the query heads per KV head and the experts."""

    layer: int
    n_layers: int
    queries_per_head: int = 1
    n_experts: int = 0


Rule: TypeAlias = Callable[[Place], str | None]


@dataclass(frozen=True)
class Mix:
    """A file type: its number in GGUF, the format of most tensors, and the parts that get another one (None: no other)."""

    file_type: int
    base: str
    rules: Mapping[str, Rule] = field(default_factory=dict)


def _always(name: str) -> Rule:
    return lambda place: name


def _first(share: int, name: str) -> Rule:
    return lambda place: name if place.layer < place.n_layers // share else None


def _wanting_bits(place: Place) -> bool:
    """The first and last eighth of the layers, and every third between."""
    i, n = place.layer, place.n_layers
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def _where_wanted(name: str) -> Rule:
    return lambda place: name if _wanting_bits(place) else None


def _shared_heads(name: str, otherwise: str | None = None) -> Rule:
    """V is small where four query heads or more share a head: it can afford more bits."""
    return lambda place: name if place.queries_per_head >= 4 else otherwise


_IQ4 = {"attn_v": _shared_heads("Q5_K"), "ffn_down": _first(8, "Q5_K")}

MIXES: dict[str, Mix] = {
    "F32": Mix(0, "F32"),
    "F16": Mix(1, "F16"),
    "BF16": Mix(32, "BF16"),
    "Q8_0": Mix(7, "Q8_0"),
    "Q4_0": Mix(2, "Q4_0"),
    "Q4_1": Mix(3, "Q4_1"),
    "Q5_0": Mix(8, "Q5_0"),
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
            "attn_v": lambda place: "Q5_K" if place.layer < 2 else "Q4_K",
            "ffn_down": lambda place: "Q5_K" if place.layer < place.n_layers // 16 else "Q4_K",
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
        14, "Q4_K", {"attn_v": lambda place: "Q5_K" if place.layer < 4 else None, "ffn_down": _first(8, "Q5_K")}
    ),
    "Q4_K_M": Mix(
        15,
        "Q4_K",
        {"attn_v": _where_wanted("Q6_K"), "ffn_down": _where_wanted("Q6_K"), "attn_qkv": _always("Q5_K")},
    ),
    "Q5_K_S": Mix(16, "Q5_K"),
    "Q5_K_M": Mix(
        17,
        "Q5_K",
        {"attn_v": _where_wanted("Q6_K"), "ffn_down": _where_wanted("Q6_K"), "attn_qkv": _always("Q6_K")},
    ),
    "Q6_K": Mix(18, "Q6_K"),
}

# Rows that are no multiple of a format's 256 get the next one of blocks of 32.
_NARROW = {"Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}

# Small matrices that decide much (routing) or are no operand of a product (convolutions, positions): they stay as they are.
_KEPT = re.compile(
    r"_norm\.weight$|ffn_gate_inp|ssm_conv1d|shortconv\.conv|position_embd|token_types|attn_rel_b|time_mix_"
)


def mix_named(name: str) -> Mix:
    """The row of a file type, whatever its case. FormatError with the list for an unknown name."""
    if name.upper() not in MIXES:
        raise FormatError(f"no file type {name!r}; wanted one of {', '.join(MIXES)}")
    return MIXES[name.upper()]


def part_of(name: str) -> tuple[str, int]:
    """The part of the model that a tensor is, and its layer: 'blk.3.attn_v.weight' is attn_v of 3."""
    found = re.fullmatch(r"blk\.(\d+)\.(\w+?)(_exps|_shexp)?\.weight", name)
    return (found[2], int(found[1])) if found else (name.removesuffix(".weight"), 0)


def is_quantized(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor takes part: a matrix (or a stack of them) that products read."""
    return name.endswith(".weight") and len(shape) >= 2 and not _KEPT.search(name)


def format_for(mix: Mix, name: str, row: int, place: Place, *, is_output: bool, pure: bool = False) -> BlockFormat:
    """The format of a tensor with rows of `row` elements. `is_output`: it makes the logits; `pure`: the base for all."""
    base = BLOCK_FORMATS[mix.base]
    wanted = mix.base
    if not base.is_plain and not pure:
        wanted = _output(base, row) if is_output else _exception(mix, name, place) or mix.base
    if row % BLOCK_FORMATS[wanted].block_size:
        wanted = _NARROW.get(wanted, "F16")
    if row % BLOCK_FORMATS[wanted].block_size:
        wanted = "F16"
    return BLOCK_FORMATS[wanted]


def _output(base: BlockFormat, row: int) -> str:
    return "Q8_0" if base.name == "Q8_0" or row % base.block_size else "Q6_K"


def _exception(mix: Mix, name: str, place: Place) -> str | None:
    part = part_of(name)[0]
    if part in ("attn_v", "attn_k") and place.n_experts == 8:
        return "Q8_0"  # 128 times smaller than the experts
    if part == "attn_output" and place.n_experts == 8 and mix.base in ("Q2_K", "Q3_K", "Q4_K", "IQ4_NL", "IQ4_XS"):
        return "Q5_K"
    rule = mix.rules.get(part)
    return rule(place) if rule else None
