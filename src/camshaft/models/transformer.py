"""Building blocks of decoder-only models: token inputs, rotary embedding, KV cache update and attention."""

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
    """The inputs of one run, all i32: `ids`, `positions` and sequence `slots` [T], and `rows` [R], whose logits are computed.

    `block_table` [slots, blocks] maps each sequence to its KV cache blocks; `length` exceeds every position in the batch.
    `rows` None means every token. `is_last` is set for the last layer.
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
    """The key and value states of one layer, with scales if the cache is quantized."""

    keys: Tensor
    values: Tensor
    scales: tuple[Tensor, ...] = ()


def token_inputs(
    graph: Graph, tokens: Dim, rows: Dim | None, block_table: Tensor, rope: Tensor, length: Extent
) -> TokenBatch:
    """Add the inputs `ids`, `positions`, `slots` and, unless all rows are computed, `rows`."""
    ids, positions, slots = (graph.input(name, (tokens,), "i32") for name in ("ids", "positions", "slots"))
    wanted = None if rows is None else graph.input("rows", (rows,), "i32")
    return TokenBatch(ids, positions, slots, wanted, block_table, rope, length)


def rotate(x: Tensor, heads: int, config: ModelConfig, batch: TokenBatch, pairing: str, name: str) -> Tensor:
    """Apply rotary embedding to [T, heads * head_dim]."""
    result: Tensor = F.rope(
        x, batch.positions, batch.rope_table, heads=heads, head_dim=config.head_dim, pairing=pairing, name=name
    )
    return result


def attend(
    q: Tensor, k: Tensor, v: Tensor, prefix: str, config: ModelConfig, batch: TokenBatch, cache: LayerCache
) -> Tensor:
    """Write the tokens' keys and values to the cache, then attend causally over it. In the last layer, return only the rows
    whose logits are computed."""
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
    result = F.attention(
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
    assert isinstance(result, Tensor)
    return logit_rows(result, batch, f"{prefix}.attention_rows") if batch.is_last else result


def head_norm(x: Tensor, w: Tensor, heads: int, config: ModelConfig) -> Tensor:
    """Apply rms_norm to each head of [T, heads * head_dim]."""
    graph = x.graph
    assert graph is not None
    split = graph.reshape(x, (x.shape[0], heads, config.head_dim))
    normed: Tensor = F.rms_norm(split, w, eps=config.norm_eps)
    return graph.reshape(normed, (x.shape[0], heads * config.head_dim))


def logit_rows(x: Tensor, batch: TokenBatch, name: str) -> Tensor:
    """Select the tokens whose logits are computed."""
    if batch.rows is None:
        return x
    result: Tensor = F.gather(x, batch.rows, name=name)
    return result
