"""Latent: the sizes of latent attention, read from metadata."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from camshaft.errors import ModelError

if TYPE_CHECKING:
    from camshaft.models.file_keys import Keys

# The keys of a head's sizes, in newer files and in older ones, which have them where newer ones have the cache's.
_SIZES = ("attention.key_length_mla", "attention.value_length_mla")
_OLD_SIZES = ("attention.key_length", "attention.value_length")


@dataclass(frozen=True)
class Latent:
    """Sizes in elements: of the latent, of a head's keys without and with rotation, and of its values. `query_rank` is that of
    the queries' own latent, 0 where they have none."""

    rank: int
    plain: int
    rope: int
    value: int
    query_rank: int = 0

    @property
    def key(self) -> int:
        """The width of a head's query, whose root divides the scores."""
        return self.plain + self.rope


def read_latent(keys: Keys, value_size: int) -> Latent:
    """The sizes of latent attention; `value_size` is that of a head's values where the file does not say. Older files have a
    head's sizes where newer ones have those of the cache. Raises ModelError, naming the key, for an impossible value."""
    mla = f"{keys.architecture}.attention.key_length_mla" in keys.metadata
    names = _SIZES if mla else _OLD_SIZES
    key, value = keys.size(names[0]), keys.size(names[1], value_size or None)
    rank, rope = keys.size("attention.kv_lora_rank"), keys.size("rope.dimension_count")
    if rope % 2 or rope >= key:
        raise ModelError(
            f"the key '{keys.architecture}.rope.dimension_count' is {rope}; wanted an even number below {key}, "
            f"'{keys.architecture}.{names[0]}'"
        )
    named = f"{keys.architecture}.attention.q_lora_rank" in keys.metadata
    return Latent(rank, key - rope, rope, value, keys.size("attention.q_lora_rank") if named else 0)


def score_magnitude(keys: Keys) -> float:
    """Returns YaRN's factor of queries and keys; the file's multiplier of ln(factor) is a tenth of other families'."""
    multiplier = keys.at_least_0("rope.scaling.yarn_log_multiplier", 0.0)
    is_yarn = keys.get("rope.scaling.type", str, "none") == "yarn"
    factor = keys.positive("rope.scaling.factor", 1.0)
    return 1 + multiplier * math.log(factor) if is_yarn and factor > 1 else 1.0
