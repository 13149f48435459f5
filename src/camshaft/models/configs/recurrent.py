"""Recurrent: the sizes of a model's recurrent layers, read from metadata, and the state that a session has of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown_value
from camshaft.ops.recurrent.state_layout import state_blocks

if TYPE_CHECKING:
    from camshaft.models.families import Family
    from camshaft.models.file_keys import Keys

ATTENTION = "attention"
# A layer that mixes no tokens, in families whose layers are either attention, recurrent or a feed-forward.
FEED_FORWARD = "feed_forward"
# A layer with attention and a recurrence of the same input.
BOTH = "attention and recurrence"
# The names of the states of a layer's convolutions, and of those of the heads.
CONVOLUTIONS = ("conv", "conv_2", "conv_3")
STATES = (*CONVOLUTIONS, "state")
# More of a channel's weights than any model has; a file that lies would unroll a kernel for each.
MOST_TAPS = 64
MOST_HEADS = 1 << 16


@dataclass(frozen=True)
class Recurrent:
    """Recurrent layers of one kind: `convs` convolutions of `taps` tokens over `channels`, then `heads` states of `key_size` rows
    and `value_size` columns (none after a short convolution). heads / `groups` share a key.

    Mamba 1 has one head. Its steps are a product of `rank` numbers, `is_normed` like the others that they come with. After every
    `rescaled_every` layers RWKV-6 halves its result.
    """

    kind: str
    taps: int
    channels: int
    heads: int = 0
    groups: int = 0
    key_size: int = 0
    value_size: int = 0
    rank: int = 0
    is_normed: bool = False
    convs: int = 1
    rescaled_every: int = 0

    @property
    def inner(self) -> int:
        """The width of all heads' values."""
        return self.heads * self.value_size

    @property
    def states(self) -> dict[str, tuple[int, ...]]:
        """The shapes of a slot's states of one layer: the last rows that each convolution saw, and the heads' matrices."""
        conv: dict[str, tuple[int, ...]] = dict.fromkeys(CONVOLUTIONS[: self.convs], (self.taps - 1, self.channels))
        if not self.heads:
            return conv
        blocks, columns = state_blocks(self.value_size)
        matrices = () if self.kind == "mamba" else (self.heads,)
        return conv | {"state": (*matrices, blocks, self.key_size, columns)}


def read_recurrent(keys: Keys, family: Family, dim: int) -> Recurrent | None:
    """The recurrent layers of a family that has them. Raises ModelError, naming the key, for an impossible value."""
    return _READERS[family.recurrent](keys, dim) if family.recurrent else None


def _short_conv(keys: Keys, dim: int) -> Recurrent:
    return Recurrent("short_conv", _taps(keys, "shortconv.l_cache"), dim)


def _delta(keys: Keys, dim: int) -> Recurrent:
    heads, groups, key_size = _heads(keys), keys.size("ssm.group_count"), keys.size("ssm.state_size")
    value_size = _shared(keys, "ssm.inner_size", "ssm.time_step_rank")
    _shared(keys, "ssm.time_step_rank", "ssm.group_count")
    channels = 2 * groups * key_size + heads * value_size
    return Recurrent("delta", _taps(keys, "ssm.conv_kernel"), channels, heads, groups, key_size, value_size)


def _mamba(keys: Keys, dim: int) -> Recurrent:
    inner, size, rank = keys.size("ssm.inner_size"), keys.size("ssm.state_size"), keys.size("ssm.time_step_rank")
    normed = keys.metadata.get(f"{keys.architecture}.ssm.dt_b_c_rms", False)
    if not isinstance(normed, bool):
        raise ModelError(f"the key '{keys.architecture}.ssm.dt_b_c_rms' is {shown_value(normed)}; wanted True or False")
    return Recurrent("mamba", _taps(keys, "ssm.conv_kernel"), inner, 1, 1, size, inner, rank, normed)


def _mamba2(keys: Keys, dim: int) -> Recurrent:
    return replace(_delta(keys, dim), kind="mamba2")


def _plamo2(keys: Keys, dim: int) -> Recurrent:
    heads, inner = _heads(keys), keys.size("ssm.inner_size")
    value_size = _shared(keys, "ssm.inner_size", "ssm.time_step_rank")
    return Recurrent("plamo2", _taps(keys, "ssm.conv_kernel"), inner, heads, 1, keys.size("ssm.state_size"), value_size)


def _kda(keys: Keys, dim: int) -> Recurrent:
    heads, size = keys.size("attention.head_count"), keys.size("kda.head_dim")
    return Recurrent("kda", _taps(keys, "ssm.conv_kernel"), heads * size, heads, heads, size, size, convs=3)


def _rwkv(keys: Keys, dim: int) -> Recurrent:
    """Time mixing and channel mixing each see the token before."""
    size, every = keys.size("wkv.head_size"), keys.count("rescale_every_n_layers")
    if dim % size:
        raise ModelError(f"the key '{keys.architecture}.wkv.head_size' is {size}; wanted a divisor of the width {dim}")
    return Recurrent("rwkv", 2, dim, dim // size, dim // size, size, size, convs=2, rescaled_every=every)


_READERS: Mapping[str, Callable[[Keys, int], Recurrent]] = {
    "short_conv": _short_conv,
    "delta": _delta,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "plamo2": _plamo2,
    "kda": _kda,
    "rwkv": _rwkv,
}


def _heads(keys: Keys) -> int:
    heads = keys.size("ssm.time_step_rank")
    if heads > MOST_HEADS:
        raise ModelError(f"the key '{keys.architecture}.ssm.time_step_rank' is {heads}; wanted at most {MOST_HEADS}")
    return heads


def _shared(keys: Keys, key: str, among: str) -> int:
    """The share of each of `among` in `key`. Raises ModelError unless it is an integer."""
    n, parts = keys.size(key), keys.size(among)
    if n % parts:
        name = keys.architecture
        raise ModelError(f"the key '{name}.{key}' is {n}; wanted a multiple of '{name}.{among}', {parts}")
    return n // parts


def _taps(keys: Keys, key: str) -> int:
    taps = keys.size(key)
    if not 1 < taps <= MOST_TAPS:
        raise ModelError(f"the key '{keys.architecture}.{key}' is {taps}; wanted 2 to {MOST_TAPS}")
    return taps


def layer_kinds(keys: Keys, family: Family, n_layers: int) -> tuple[str, ...]:
    """Each layer's kind: attention, or the family's recurrent one, or feed-forward alone."""
    if family.layers_apart:
        queries = _by_layer(keys, family, "attention.head_count", n_layers)
        given = zip(queries, kv_heads(keys, family, n_layers), strict=True)
        return tuple(ATTENTION if all(heads) else FEED_FORWARD for heads in given)
    if not family.recurrent or not family.attention:
        return (family.recurrent or ATTENTION,) * n_layers
    if family.side_by_side:
        return (BOTH,) * n_layers
    if family.one_block:
        given = zip(layer_widths(keys, family, n_layers), kv_heads(keys, family, n_layers), strict=True)
        return tuple(FEED_FORWARD if width else ATTENTION if heads else family.recurrent for width, heads in given)
    listed = keys.metadata.get(f"{keys.architecture}.attention.recurrent_layers")
    every = keys.size("full_attention_interval", family.attention_every) if family.attention_every else 0
    if listed is not None:
        is_recurrent = _booleans(keys, "attention.recurrent_layers", listed, n_layers)
    elif every:
        is_recurrent = [(layer + 1) % every != 0 for layer in range(n_layers)]
    else:
        is_recurrent = [not n for n in kv_heads(keys, family, n_layers)]
    return tuple(family.recurrent if each else ATTENTION for each in is_recurrent)


def _booleans(keys: Keys, key: str, value: object, n: int) -> list[bool]:
    listed = keys.by_layer(value, n)
    if not listed or any(each not in (False, True) for each in listed):
        raise ModelError(f"the key '{keys.architecture}.{key}' is {shown_value(value)}; wanted {n} booleans")
    return list(map(bool, listed))


def kv_heads(keys: Keys, family: Family, n_layers: int, default: int = 0) -> list[int]:
    """Each layer's key-value heads: one number for all, or a list of one per layer, 0 for a layer without attention."""
    return _by_layer(keys, family, "attention.head_count_kv", n_layers, default)


def most_heads(keys: Keys) -> int:
    """The query heads of a layer with attention; some files have them by layer, 0 for those without."""
    name = f"{keys.architecture}.attention.head_count"
    value: Any = keys.metadata.get(name)
    listed = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(listed, list | tuple):
        return keys.size("attention.head_count")
    found = {n for n in listed if n} if all(type(n) is int and 0 <= n < 2**31 for n in listed) else set()
    if len(found) != 1:
        raise ModelError(f"the key {name!r} is {shown_value(listed)}; wanted an integer, or one number and zeros")
    return int(found.pop())


def layer_widths(keys: Keys, family: Family, n_layers: int) -> list[int]:
    """The width of each layer's feed-forward: one number for all, or a list of one per layer, 0 for a layer without."""
    return _by_layer(keys, family, "feed_forward_length", n_layers)


def _by_layer(keys: Keys, family: Family, key: str, n_layers: int, default: int = 0) -> list[int]:
    name = f"{keys.architecture}.{key}"
    value = keys.metadata.get(name, default)
    if not isinstance(value, list | tuple) and not hasattr(value, "tolist"):
        return [keys.size(key, default or None)] * n_layers
    listed = keys.by_layer(value, n_layers)
    good = listed and all(type(n) is int and 0 <= n < 2**31 for n in listed)
    if not good or (len({n for n in listed if n}) > 1 and not family.layer_sizes):
        same = "" if family.layer_sizes else " of which each is 0 or the same"
        raise ModelError(f"the key '{name}' is {shown_value(value)}; wanted an integer, or {n_layers}{same}")
    return listed
