"""Recurrent: the sizes of a model's recurrent layers, read from metadata, and the state that a session has of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown_value

if TYPE_CHECKING:
    from camshaft.models.config import Keys
    from camshaft.models.families import Family

ATTENTION = "attention"
# More of a channel's weights than any model has; a file that lies would unroll a kernel for each.
MOST_TAPS = 64


@dataclass(frozen=True)
class Recurrent:
    """Recurrent layers of one kind: a convolution of `taps` tokens over `channels`, then `heads` states of `key_size` rows and
    `value_size` columns, whose keys are shared by heads / `groups` (none after a short convolution)."""

    kind: str
    taps: int
    channels: int
    heads: int = 0
    groups: int = 0
    key_size: int = 0
    value_size: int = 0

    @property
    def inner(self) -> int:
        """The width of all heads' values."""
        return self.heads * self.value_size

    @property
    def states(self) -> dict[str, tuple[int, ...]]:
        """The shapes of a slot's states of one layer: the last rows that the convolution saw, and the heads' matrices."""
        conv = {"conv": (self.taps - 1, self.channels)}
        return conv | ({"state": (self.heads, self.key_size, self.value_size)} if self.heads else {})


def read_recurrent(keys: Keys, family: Family, dim: int) -> Recurrent | None:
    """The recurrent layers of a family that has them. Raises ModelError, naming the key, for an impossible value."""
    return _READERS[family.recurrent](keys, dim) if family.recurrent else None


def _short_conv(keys: Keys, dim: int) -> Recurrent:
    return Recurrent("short_conv", _taps(keys, "shortconv.l_cache"), dim)


_READERS: Mapping[str, Callable[[Keys, int], Recurrent]] = {"short_conv": _short_conv}


def _taps(keys: Keys, key: str) -> int:
    taps = keys.size(key)
    if not 1 < taps <= MOST_TAPS:
        raise ModelError(f"the key '{keys.architecture}.{key}' is {taps}; wanted 2 to {MOST_TAPS}")
    return taps


def layer_kinds(keys: Keys, family: Family, n_layers: int) -> tuple[str, ...]:
    """Each layer's kind: attention, or the family's recurrent one."""
    if not family.recurrent:
        return (ATTENTION,) * n_layers
    heads = kv_heads(keys, n_layers)
    return tuple(ATTENTION if n else family.recurrent for n in heads)


def kv_heads(keys: Keys, n_layers: int, default: int = 0) -> list[int]:
    """Each layer's key-value heads: one number for all, or a list of one per layer, 0 for a recurrent layer."""
    name = f"{keys.architecture}.attention.head_count_kv"
    value = keys.metadata.get(name, default)
    listed = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(listed, list | tuple):
        return [keys.size("attention.head_count_kv", default or None)] * n_layers
    good = len(listed) == n_layers and all(type(n) is int and 0 <= n < 2**31 for n in listed)
    if not good or len({n for n in listed if n}) > 1:
        raise ModelError(
            f"the key '{name}' is {shown_value(value)}; wanted an integer, or {n_layers} of which each is 0 or the same"
        )
    return list(listed)
