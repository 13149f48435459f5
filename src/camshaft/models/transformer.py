"""Building blocks of decoder-only models: token inputs, rotary embedding, KV cache update and attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from camshaft.extent import Extent
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph, Tensor
from camshaft.models.config import ModelConfig
from camshaft.ops.spec import Dim


@dataclass(frozen=True)
class TokenBatch:
    """The inputs of one run, all i32: `ids`, `positions` and sequence `slots` [T], and `rows` [R], whose logits are computed.

    `block_table` [slots, blocks] maps each sequence to its KV cache blocks; `length` exceeds every position in the batch.
    `rows` None means every token. `is_last` is set for the last layer. `slot_rows` has each slot's tokens, for recurrent layers.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    rows: Tensor | None
    block_table: Tensor
    rope_tables: Mapping[str, Tensor]
    length: Extent
    is_last: bool = False
    slot_rows: Tensor | None = None


@dataclass(frozen=True)
class LayerCache:
    """The key and value states of one layer, with scales if the cache is quantized."""

    keys: Tensor
    values: Tensor
    scales: tuple[Tensor, ...] = ()


# The states of a recurrent layer by name, [slots, ..].
LayerState = Mapping[str, Tensor]


def token_inputs(
    graph: Graph,
    tokens: Dim,
    rows: Dim | None,
    block_table: Tensor,
    ropes: Mapping[str, Tensor],
    length: Extent,
    *,
    recurrent: bool = False,
) -> TokenBatch:
    """Add the inputs `ids`, `positions`, `slots` and, unless all rows are computed, `rows`; find each slot's tokens for
    `recurrent` layers."""
    ids, positions, slots = (graph.input(name, (tokens,), "i32") for name in ("ids", "positions", "slots"))
    wanted = None if rows is None else graph.input("rows", (rows,), "i32")
    by_slot = F.slot_rows(positions, slots, n_slots=block_table.spec.bounds[0]) if recurrent else None
    return TokenBatch(ids, positions, slots, wanted, block_table, ropes, length, slot_rows=by_slot)


def rotate(x: Tensor, table: str, heads: int, head_dim: int, batch: TokenBatch, pairing: str, name: str) -> Tensor:
    """Apply rotary embedding by the table of that name to [T, heads * head_dim]; x itself if the name is empty."""
    if not table:
        return x
    tables = batch.rope_tables
    result: Tensor = F.rope(
        x, batch.positions, tables[table], heads=heads, head_dim=head_dim, pairing=pairing, name=name
    )
    return result


def attend(
    q: Tensor, k: Tensor, v: Tensor, layer: int, config: ModelConfig, batch: TokenBatch, cache: LayerCache
) -> Tensor:
    """Write the tokens' keys and values to the cache, then attend causally over it, or over the layer's window. In the last
    layer, return only the rows whose logits are computed."""
    prefix = f"blk.{layer}"
    options: dict[str, Any] = {"window": config.layers[layer].window, "cap": config.attention_softcap}
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
        scale=config.attention_scale,
        length=batch.length,
        **{name: value for name, value in options.items() if value},
        name=f"{prefix}.attention",
    )
    assert isinstance(result, Tensor)
    return logit_rows(result, batch, f"{prefix}.attention_rows") if batch.is_last else result


def head_norm(x: Tensor, w: Tensor, heads: int, eps: float) -> Tensor:
    """Apply rms_norm to each head of [T, heads * head_dim]."""
    graph, width = x.graph, x.shape[1]
    assert graph is not None
    assert isinstance(width, int)
    split = graph.reshape(x, (x.shape[0], heads, width // heads))
    normed: Tensor = F.rms_norm(split, w, eps=eps)
    return graph.reshape(normed, (x.shape[0], width))


def logit_rows(x: Tensor, batch: TokenBatch, name: str) -> Tensor:
    """Select the tokens whose logits are computed."""
    if batch.rows is None:
        return x
    result: Tensor = F.gather(x, batch.rows, name=name)
    return result
