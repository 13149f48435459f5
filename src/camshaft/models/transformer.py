"""What the decoder-only models share: token inputs, the KV cache's states and attention over it. llama.py builds on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from camshaft.extent import Extent
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph, Tensor
from camshaft.models.config import ModelConfig
from camshaft.ops.spec import Dim


@dataclass(frozen=True)
class TokenBatch:
    """A run's inputs, all i32: per token its id, position and sequence slot [T]; the rows whose logits are wanted [R].

    `block_table` [slots, blocks] says where each sequence's keys and values lie; `length` is over every position here.
    `rows` None: every token's logits. `is_last`: as the last layer has it.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    rows: Tensor | None
    block_table: Tensor
    rope_table: Tensor
    length: Extent
    is_last: bool = False


@dataclass(frozen=True)
class LayerCache:
    """One layer's keys and values, states of the graph; with K and V scales where these are quantized."""

    keys: Tensor
    values: Tensor
    scales: tuple[Tensor, ...] = ()


def token_inputs(
    graph: Graph, tokens: Dim, rows: Dim | None, block_table: Tensor, rope: Tensor, length: Extent
) -> TokenBatch:
    """The inputs `ids`, `positions`, `slots` and, unless every row is wanted, `rows`."""
    ids, positions, slots = (graph.input(name, (tokens,), "i32") for name in ("ids", "positions", "slots"))
    wanted = None if rows is None else graph.input("rows", (rows,), "i32")
    return TokenBatch(ids, positions, slots, wanted, block_table, rope, length)


def rotate(x: Tensor, heads: int, config: ModelConfig, batch: TokenBatch, pairing: str, name: str) -> Tensor:
    """Rotary embedding of [T, heads * head_dim]."""
    result: Tensor = F.rope(
        x, batch.positions, batch.rope_table, heads=heads, head_dim=config.head_dim, pairing=pairing, name=name
    )
    return result


def attend(
    q: Tensor, k: Tensor, v: Tensor, prefix: str, config: ModelConfig, batch: TokenBatch, cache: LayerCache
) -> Tensor:
    """Writes the tokens' keys and values into the cache, then attends causally over it; in the last layer, what the wanted rows
    get of it."""
    write: Callable[..., None] = F.kv_cache_quantize if cache.scales else F.kv_cache_update
    write(
        cache.keys,
        cache.values,
        *cache.scales,
        k,
        v,
        batch.positions,
        batch.slots,
        batch.block_table,
        kv_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        name=f"{prefix}.kv_cache_update",
    )
    result: Tensor = F.attention(
        q,
        cache.keys,
        cache.values,
        batch.positions,
        batch.slots,
        batch.block_table,
        *cache.scales,
        heads=config.n_heads,
        kv_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        scale=config.head_dim**-0.5,
        length=batch.length,
        name=f"{prefix}.attention",
    )
    return wanted_rows(result, batch, f"{prefix}.attention_rows") if batch.is_last else result


def head_norm(x: Tensor, w: Tensor, heads: int, config: ModelConfig) -> Tensor:
    """rms_norm of each head of [T, heads * head_dim] by itself."""
    graph = x.graph
    assert graph is not None
    split = graph.reshape(x, (x.shape[0], heads, config.head_dim))
    normed: Tensor = F.rms_norm(split, w, eps=config.norm_eps)
    return graph.reshape(normed, (x.shape[0], heads * config.head_dim))


def wanted_rows(x: Tensor, batch: TokenBatch, name: str) -> Tensor:
    """The tokens whose logits are wanted."""
    if batch.rows is None:
        return x
    result: Tensor = F.gather(x, batch.rows, name=name)
    return result
