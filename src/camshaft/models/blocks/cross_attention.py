"""Attention of encoder-decoder models: self-attention and cross-attention, over paged keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.extent import Extent
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph, Tensor
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS


@dataclass(frozen=True)
class Memory:
    """Keys and values of one layer, with the `positions` and `slots` i32 [T] of a run's tokens and the `block_table`.

    `length` exceeds every position. With `lengths` [slots], tokens attend to all keys of their slot; without, to none after their
    own."""

    keys: Tensor
    values: Tensor
    positions: Tensor
    slots: Tensor
    block_table: Tensor
    length: int | Extent
    lengths: Tensor | None = None


@dataclass(frozen=True)
class Heads:
    """The number of heads of a layer, their size, and the scale of scores."""

    n: int
    dim: int
    scale: float


def write(memory: Memory, k: Tensor, v: Tensor, heads: Heads, name: str) -> None:
    """Write keys and values [T, heads * dim] to their places."""
    where = (memory.positions, memory.slots, memory.block_table)
    F.kv_cache_update(memory.keys, memory.values, k, v, *where, kv_heads=heads.n, head_dim=heads.dim, name=name)


def attend(memory: Memory, q: Tensor, heads: Heads, name: str, extras: Mapping[str, Tensor] | None = None) -> Tensor:
    """softmax(scale q K^T) V of q [T, heads * dim]. `extras` are additional inputs of attention by name."""
    given = dict(extras or {})
    if memory.lengths is not None:
        given["lengths"] = memory.lengths
    options: dict[str, Any] = {"extras": " ".join(given)} if given else {}
    if memory.lengths is not None:
        options["causal"] = False
    result = F.attention(
        q,
        memory.keys,
        memory.values,
        memory.positions,
        memory.slots,
        memory.block_table,
        *given.values(),
        heads=heads.n,
        kv_heads=heads.n,
        head_dim=heads.dim,
        scale=heads.scale,
        length=memory.length,
        **options,
        name=name,
    )
    assert isinstance(result, Tensor)
    return result


def attend_whole(q: Tensor, k: Tensor, v: Tensor, heads: Heads, name: str) -> Tensor:
    """Attention of all rows [T, heads * dim] of one fixed length to each other."""
    (tokens, width) = q.spec.bounds

    def split(x: Tensor) -> Tensor:
        turned: Tensor = F.transpose(x.reshape((1, tokens, heads.n, heads.dim)), axes=(0, 2, 1, 3))
        return turned

    parts = (split(x) for x in (q, k, v))
    found = F.scaled_dot_product_attention(*parts, scale=heads.scale, name=name)
    assert isinstance(found, Tensor)
    joined: Tensor = F.transpose(found, axes=(0, 2, 1, 3)).reshape((tokens, width))
    return joined


def fixed_places(graph: Graph, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Constants for the n positions of one slot with consecutive blocks: positions, slots, block table."""
    blocks = -(-n // BLOCK_TOKENS)
    return (
        graph.constant("fixed.positions", np.arange(n, dtype=np.int32)),
        graph.constant("fixed.slots", np.zeros(n, np.int32)),
        graph.constant("fixed.block_table", np.arange(blocks, dtype=np.int32)[None]),
    )
