"""The vision encoder of every projector: a transformer over patches that all see each other, then the projector.

Built of the same ops as the decoder: layer_norm or rms_norm, attention over a cache without causality, a feed-forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.graph import functions as F
from camshaft.graph.graph import Graph, Tensor
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.vision.config import VisionConfig
from camshaft.models.vision.connectors import connect
from camshaft.models.vision.patches import CHANNELS
from camshaft.ops.spec import Dim


@dataclass(frozen=True)
class PatchPlaces:
    """Which patches see each other: those of one sequence. `slots` and `positions` [T] say where each is in the keys and values,
    `lengths` [slots] how many each sequence has, `table` [slots, blocks] its blocks."""

    slots: Tensor
    positions: Tensor
    lengths: Tensor
    table: Tensor


@dataclass(frozen=True)
class PatchBatch:
    """The inputs of one run: `patches` f32 [T, 3 * patch * patch], `added` f32 [T, dim] (the embeddings of their positions),
    `merged` i32 [tokens], the patches of each token. All layers share `keys` and `values`."""

    patches: Tensor
    added: Tensor | None
    merged: Sequence[Tensor]
    whole: PatchPlaces
    keys: Tensor
    values: Tensor


def patch_inputs(graph: Graph, config: VisionConfig, tokens: Dim, merged: Dim, states: dict[str, Tensor]) -> PatchBatch:
    """Add the inputs `patches`, `added`, `merged.N`, `slots`, `positions` and `lengths` of a run of up to `tokens` patches."""
    patches = graph.input("patches", (tokens, CHANNELS * config.patch**2), "f32")
    added = graph.input("added", (tokens, config.dim), "f32") if config.row.positions else None
    groups = [graph.input(f"merged.{n}", (merged,), "i32") for n in range(config.merge**2)]
    slots, positions = (graph.input(name, (tokens,), "i32") for name in ("slots", "positions"))
    whole = PatchPlaces(slots, positions, graph.input("lengths", (1,), "i32"), states["block_table"])
    return PatchBatch(patches, added, groups, whole, states["keys"], states["values"])


def encoder(config: VisionConfig, file: Checkpoint, batch: PatchBatch, length: Dim) -> Tensor:
    """The embeddings of the tokens, f32 [tokens, out_dim]. ModelError for a tensor that is missing or has another shape."""
    x = _embedded(config, file, batch)
    for layer in range(config.n_layers):
        x = _block(x, f"v.blk.{layer}", config, file, batch, length)
    if "v.post_ln.weight" in file:
        x = _norm(x, "v.post_ln", config, file)
    return connect([F.gather(x, index) for index in batch.merged], config, file)


def _embedded(config: VisionConfig, file: Checkpoint, batch: PatchBatch) -> Tensor:
    """The convolution of each patch with its own size, as a product; biased where the file has one; plus positions."""
    shape, width = (config.dim, CHANNELS, config.patch, config.patch), CHANNELS * config.patch**2
    w = file.converted("v.patch_embd.weight", shape, lambda w: np.ascontiguousarray(w.reshape(config.dim, width)))
    x = file.product(batch.patches, w, "v.patch_embd")
    if "v.patch_embd.bias" in file:
        x = F.add(x, file.vector("v.patch_embd.bias", config.dim))
    return x if batch.added is None else F.add(x, batch.added)


def _block(x: Tensor, prefix: str, config: VisionConfig, file: Checkpoint, batch: PatchBatch, length: Dim) -> Tensor:
    """x plus attention of its norm, then plus the feed-forward of the sum's norm."""
    h = _norm(x, f"{prefix}.ln1", config, file)
    y = _attention(h, prefix, config, file, batch, length)
    x = F.add(x, y, name=f"{prefix}.attn_residual")
    h = _norm(x, f"{prefix}.ln2", config, file)
    return F.add(x, _feed_forward(h, prefix, config, file), name=f"{prefix}.ffn_residual")


def _norm(x: Tensor, name: str, config: VisionConfig, file: Checkpoint) -> Tensor:
    w = file.vector(f"{name}.weight", config.dim)
    y: Tensor
    if config.row.norm == "rms":
        y = F.rms_norm(x, w, eps=config.eps, name=name)
    else:
        y = F.layer_norm(x, w, file.vector(f"{name}.bias", config.dim), eps=config.eps, name=name)
    return y


def _linear(x: Tensor, name: str, n: int, file: Checkpoint) -> Tensor:
    return file.linear(x, name, n, bias=f"{name}.bias" in file)


def _attention(
    h: Tensor, prefix: str, config: VisionConfig, file: Checkpoint, batch: PatchBatch, length: Dim
) -> Tensor:
    """q, k and v of h, attention among the patches of each sequence, output projection."""
    q, k, v = (_linear(h, f"{prefix}.attn_{part}", config.dim, file) for part in "qkv")
    places = batch.whole
    where, sizes = (places.positions, places.slots, places.table), _sizes(config)
    F.kv_cache_update(batch.keys, batch.values, k, v, *where, **sizes, name=f"{prefix}.keys")
    y = F.attention(
        q,
        batch.keys,
        batch.values,
        *where,
        places.lengths,
        **sizes,
        heads=config.n_heads,
        scale=config.head_dim**-0.5,
        length=length,
        causal=False,
        extras="lengths",
        name=f"{prefix}.attention",
    )
    assert isinstance(y, Tensor)
    return _linear(y, f"{prefix}.attn_out", config.dim, file)


def _sizes(config: VisionConfig) -> dict[str, Any]:
    return {"kv_heads": config.n_heads, "head_dim": config.head_dim}


def _feed_forward(h: Tensor, prefix: str, config: VisionConfig, file: Checkpoint) -> Tensor:
    """down(act(up(h))). Older files have the names of up and down swapped."""
    names = [f"{prefix}.ffn_up", f"{prefix}.ffn_down"]
    first = file.tensors.get(f"{names[0]}.weight")
    is_swapped = first is not None and tuple(first.shape) == (config.dim, config.ffn_dim) != (
        config.ffn_dim,
        config.dim,
    )
    up, down = names[::-1] if is_swapped else names
    hidden = F.function(config.activation)(_linear(h, up, config.ffn_dim, file), name=f"{prefix}.ffn_act")
    return _linear(hidden, down, config.dim, file)
