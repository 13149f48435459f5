"""Building blocks of decoders: token inputs, rotary embedding, KV cache update and attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from camshaft.errors import ModelError
from camshaft.extent import Extent
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph, Tensor
from camshaft.models.blocks.layer import Layer, TokenBatch
from camshaft.models.blocks.whole import WholeRecurrence
from camshaft.ops.spec import Dim


@dataclass(frozen=True)
class Places:
    """Where tokens are in the KV cache: their sequences' `slots` [T], and `block_table` [slots, blocks], which maps each sequence
    to its blocks; `length` exceeds every position in the batch. With `lengths` [slots], the number of tokens of each sequence,
    they all see each other, and not only what was before."""

    slots: Tensor
    block_table: Tensor
    length: Extent
    lengths: Tensor | None = None


Extras = Mapping[str, Tensor]


class Attention(Protocol):
    """How a layer's tokens attend to each other."""

    def attend(self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: Layer, extras: Extras) -> Tensor:
        """Attention of q [T, heads * head_dim] over k and v (None: over those of an earlier layer), causal or over the layer's
        window. `extras` are additional inputs of attention by name. In the last layer only the rows whose logits are computed."""
        ...


@dataclass(frozen=True)
class LayerCache:
    """The key and value states of one layer, with scales if the cache is quantized."""

    keys: Tensor
    values: Tensor
    places: Places
    scales: tuple[Tensor, ...] = ()

    def attend(self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: Layer, extras: Extras) -> Tensor:
        """Writes the tokens' keys and values, if there are some, to the cache, then attends over it."""
        config, batch, places = layer.config, layer.batch, self.places
        if places.lengths is not None:
            extras = {**extras, "lengths": places.lengths}
        write: Callable[..., None] = F.kv_cache_quantize if self.scales else F.kv_cache_update
        where, memory = (batch.positions, places.slots, places.block_table), (self.keys, self.values, *self.scales)
        if k is not None:
            sizes = {"kv_heads": config.n_kv_heads, "head_dim": config.head_dim}
            write(*memory, k, v, *where, **sizes, name=layer.name("kv_cache_update"))
        result = F.attention(
            q,
            self.keys,
            self.values,
            *where,
            *self.scales,
            *extras.values(),
            heads=config.n_heads,
            kv_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            scale=config.attention_scale,
            length=places.length,
            **_options(layer, extras, causal=places.lengths is None),
            name=layer.name("attention"),
        )
        assert isinstance(result, Tensor)
        return layer.rows(result, "attention_rows")


@dataclass(frozen=True)
class WholeSequences:
    """Attention within sequences of `length` tokens each, without a cache: in training, as a cache passes no gradient.

    `mask` [sequences, 1, length, length] says which tokens see each other at most; without `causal` later ones too."""

    length: int
    mask: Tensor | None = None
    causal: bool = True

    def attend(self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: Layer, extras: Extras) -> Tensor:
        """Attends over the tokens of the sequence. ModelError for keys of an earlier layer."""
        config, name = layer.config, layer.prefix
        if k is None or v is None:
            raise ModelError(f"training: {name} reads the keys of an earlier layer; wanted layers with their own")
        if self.mask is not None and layer.options.chunk:
            raise ModelError(
                f"training: {name} attends in chunks, got packed rows; wanted a sequence in each row, without pack"
            )
        masks = {} if self.mask is None else {"mask": self.mask}
        parts = (self._heads(x, n) for x, n in ((q, config.n_heads), (k, config.n_kv_heads), (v, config.n_kv_heads)))
        more = {**masks, **extras}
        options = {"causal": self.causal, "scale": config.attention_scale, **_options(layer, more)}
        given = (*parts, *more.values())
        result = F.scaled_dot_product_attention(*given, **options, name=layer.name("attention"))
        assert isinstance(result, Tensor)
        joined = F.transpose(result, axes=(0, 2, 1, 3)).reshape(q.shape)
        return layer.rows(joined, "attention_rows")

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        """[T, heads * size] as [sequences, heads, length, size]."""
        tokens, width = x.spec.bounds
        split = x.reshape((tokens // self.length, self.length, heads, width // heads))
        turned: Tensor = F.transpose(split, axes=(0, 2, 1, 3))
        return turned


def _options(layer: Layer, extras: Extras, *, causal: bool = True) -> dict[str, Any]:
    """The attributes of attention that are not its defaults."""
    options: dict[str, Any] = {"window": layer.options.window, "cap": layer.config.attention_softcap}
    options |= {"chunk": layer.options.chunk, "extras": " ".join(extras)}
    return {name: value for name, value in options.items() if value} | ({} if causal else {"causal": False})


# The states of a recurrent layer by name, [slots, ..].
LayerState = Mapping[str, Tensor]


@dataclass(frozen=True)
class SideBySide:
    """The memory of a layer with both attention and a recurrence."""

    attention: Attention
    states: LayerState | WholeRecurrence


LayerMemory = Attention | LayerState | WholeRecurrence | SideBySide


def token_inputs(
    graph: Graph,
    tokens: Dim,
    rows: Dim | None,
    block_table: Tensor,
    ropes: Mapping[str, Tensor],
    length: Extent,
    *,
    recurrent: bool = False,
) -> tuple[TokenBatch, Places]:
    """Add the inputs `ids`, `positions`, `slots` and, unless all rows are computed, `rows`; find each slot's tokens for
    `recurrent` layers."""
    ids, positions, slots = (graph.input(name, (tokens,), "i32") for name in ("ids", "positions", "slots"))
    wanted = None if rows is None else graph.input("rows", (rows,), "i32")
    by_slot = F.slot_rows(positions, slots, n_slots=block_table.spec.bounds[0]) if recurrent else None
    return TokenBatch(ids, positions, wanted, ropes, slot_rows=by_slot), Places(slots, block_table, length)


def rotate(x: Tensor, table: str, heads: int, head_dim: int, batch: TokenBatch, pairing: str, name: str) -> Tensor:
    """Apply rotary embedding by the table of that name to [T, heads * head_dim]; x itself if the name is empty."""
    if not table:
        return x
    given = batch.rope_tables[table]
    sizes: dict[str, Any] = {"heads": heads, "head_dim": head_dim, "pairing": pairing, "name": name}
    result: Tensor
    if batch.axes is not None:
        result = F.rope_multi(x, batch.axes, given, sections=batch.sections, layout=batch.layout, **sizes)
    else:
        result = F.rope(x, batch.positions, given, **sizes)
    return result


def alibi_slopes(n_heads: int) -> np.ndarray[Any, Any]:
    """Slopes of the heads, f32 [heads]: powers of 2^(-8 / n), n the power of two up to `n_heads`; then those between
    (Press, 2022)."""
    n = 1 << (n_heads.bit_length() - 1)
    powers = [-8 * (h + 1) / n if h < n else -4 * (2 * (h - n) + 1) / n for h in range(n_heads)]
    return np.exp2(powers).astype(np.float32)


def head_norm(x: Tensor, w: Tensor, heads: int, eps: float) -> Tensor:
    """Apply rms_norm to each head of [T, heads * head_dim]."""
    graph, width = x.graph, x.shape[1]
    assert graph is not None
    assert isinstance(width, int)
    split = graph.reshape(x, (x.shape[0], heads, width // heads))
    normed: Tensor = F.rms_norm(split, w, eps=eps)
    return graph.reshape(normed, (x.shape[0], width))
