"""The vision encoder of every projector: a transformer over patches with full attention, then the projector.

Built from the same ops as the decoder: layer_norm or rms_norm, non-causal attention over a cache, a feed-forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.graph import functions as F
from camshaft.graph.graph import Graph, Tensor
from camshaft.models.blocks.transformer import head_norm
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.vision.config import VisionConfig
from camshaft.models.vision.connectors import clipped_linear, connect, connected_layer
from camshaft.models.vision.positions import CHANNELS, ROPES, rotations
from camshaft.ops.spec import Dim

# CLIP's gelu: x times the sigmoid of this times x.
QUICK = 1.702


@dataclass(frozen=True)
class PatchPlaces:
    """Which patches attend to each other: those of one sequence. `slots` and `positions` [T] say where each is in the keys and
    values, `lengths` [slots] how many each sequence has, at most `length`, `table` [slots, blocks] its blocks."""

    slots: Tensor
    positions: Tensor
    lengths: Tensor
    table: Tensor
    length: Dim


@dataclass(frozen=True)
class PatchBatch:
    """The inputs of one run: `patches` f32 [T, 3 * patch * patch], `added` f32 [T, dim] (the embeddings of their positions),
    `merged` i32 [tokens], the patches of each token, `axes` i32 [T, 2], rows and columns to rotate by. All layers share `keys`
    and `values`; `windows` are those of layers that do not see the `whole`."""

    patches: Tensor
    added: Tensor | None
    merged: Sequence[Tensor]
    axes: Tensor | None
    whole: PatchPlaces
    windows: PatchPlaces | None
    keys: Tensor
    values: Tensor


def patch_inputs(
    graph: Graph, config: VisionConfig, tokens: Dim, merged: Dim, states: Mapping[str, Tensor]
) -> PatchBatch:
    """Add the inputs `patches`, `added`, `merged.N`, `axes`, and `slots`, `positions` and `lengths` of a run of up to `tokens`
    patches."""
    patches = graph.input("patches", (tokens, CHANNELS * config.patch**2), "f32")
    added = graph.input("added", (tokens, config.dim), "f32") if config.row.positions else None
    groups = [graph.input(f"merged.{n}", (merged,), "i32") for n in range(config.merge**2)]
    axes = graph.input("axes", (tokens, 2), "i32") if config.row.rope else None

    def places(prefix: str) -> PatchPlaces:
        slots, positions = (graph.input(f"{prefix}{name}", (tokens,), "i32") for name in ("slots", "positions"))
        table = states[f"{prefix}block_table"]
        lengths = graph.input(f"{prefix}lengths", table.spec.bounds[:1], "i32")
        return PatchPlaces(slots, positions, lengths, table, config.window_side**2 if prefix else tokens)

    windows = places("window_") if config.row.windows else None
    return PatchBatch(patches, added, groups, axes, places(""), windows, states["keys"], states["values"])


def encoder(config: VisionConfig, file: Checkpoint, batch: PatchBatch) -> Tensor:
    """The embeddings of the tokens, f32 [tokens, width], and beside them those for the first layers of the text model.

    ModelError for a tensor that is missing or has another shape."""
    x = _embedded(config, file, batch)
    made = []
    for layer in range(config.n_layers):
        x = _block(x, layer, config, file, batch)
        if layer in config.deepstack:
            patches = [F.gather(x, index) for index in batch.merged]
            made.append(connected_layer(patches, f"v.deepstack.{layer}", config, file))
    if "v.post_ln.weight" in file:
        x = _norm(x, "v.post_ln", config, file)
    made.insert(0, connect([F.gather(x, index) for index in batch.merged], config, file))
    return F.concat(*made, axis=1) if len(made) > 1 else made[0]


def _embedded(config: VisionConfig, file: Checkpoint, batch: PatchBatch) -> Tensor:
    """The convolution of each patch with its own size, as a product; biased where the file has one; plus positions. Files of
    models for videos have a second convolution, of the next frame, which is the same one."""
    shape, width = (config.dim, CHANNELS, config.patch, config.patch), CHANNELS * config.patch**2
    names = ["v.patch_embd.weight", *(["v.patch_embd.weight.1"] if "v.patch_embd.weight.1" in file else [])]
    products = []
    for name in names:
        w = file.converted(name, shape, lambda w: np.ascontiguousarray(w.reshape(config.dim, width)))
        products.append(file.product(batch.patches, w, name))
    x = F.add(*products) if len(products) > 1 else products[0]
    if "v.patch_embd.bias" in file:
        x = F.add(x, file.vector("v.patch_embd.bias", config.dim))
    x = x if batch.added is None else F.add(x, batch.added)
    return _norm(x, "v.pre_ln", config, file) if "v.pre_ln.weight" in file else x


def _block(x: Tensor, layer: int, config: VisionConfig, file: Checkpoint, batch: PatchBatch) -> Tensor:
    """A pre-norm block: x + attention(norm(x)), then y + feed_forward(norm(y))."""
    prefix = f"v.blk.{layer}"
    sees_all = not config.full_every or (layer + 1) % config.full_every == 0
    places = batch.whole if sees_all or batch.windows is None else batch.windows
    h = _norm(x, f"{prefix}.ln1", config, file)
    y = _attention(h, prefix, config, file, batch, places)
    y = _norm(y, f"{prefix}.attn_post_norm", config, file) if config.row.sandwiched else y
    x = F.add(x, y, name=f"{prefix}.attn_residual")
    y = _feed_forward(_norm(x, f"{prefix}.ln2", config, file), prefix, config, file)
    y = _norm(y, f"{prefix}.ffn_post_norm", config, file) if config.row.sandwiched else y
    return F.add(x, y, name=f"{prefix}.ffn_residual")


def _norm(x: Tensor, name: str, config: VisionConfig, file: Checkpoint) -> Tensor:
    w = file.vector(f"{name}.weight", config.dim)
    y: Tensor
    if config.row.norm == "rms":
        y = F.rms_norm(x, w, eps=config.eps, name=name)
    else:
        y = F.layer_norm(x, w, file.vector(f"{name}.bias", config.dim), eps=config.eps, name=name)
    return y


def _attention(
    h: Tensor,
    prefix: str,
    config: VisionConfig,
    file: Checkpoint,
    batch: PatchBatch,
    places: PatchPlaces,
) -> Tensor:
    """q, k and v of h, their rotation, attention among the patches of each sequence, output projection."""
    q, k, v = _projections(h, prefix, config, file)
    if config.row.sandwiched:
        weights = [file.vector(f"{prefix}.attn_{part}_norm.weight", config.head_dim) for part in "qk"]
        weights.append(file.ones(config.head_dim))
        q, k, v = (head_norm(x, w, config.n_heads, config.eps) for x, w in zip((q, k, v), weights, strict=True))
    q, k = (_rotated(x, f"{prefix}.rope_{part}", config, file, batch) for x, part in ((q, "q"), (k, "k")))
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
        scale=1.0 if config.row.sandwiched else config.head_dim**-0.5,
        length=places.length,
        causal=False,
        extras="lengths",
        name=f"{prefix}.attention",
    )
    assert isinstance(y, Tensor)
    return clipped_linear(y, f"{prefix}.attn_out", config.dim, file)


def _projections(h: Tensor, prefix: str, config: VisionConfig, file: Checkpoint) -> tuple[Tensor, ...]:
    if not config.row.fused:
        return tuple(clipped_linear(h, f"{prefix}.attn_{part}", config.dim, file) for part in "qkv")
    joined = clipped_linear(h, f"{prefix}.attn_qkv", 3 * config.dim, file)
    return tuple(F.split(joined, axis=1, sizes=(config.dim,) * 3))


def _rotated(x: Tensor, name: str, config: VisionConfig, file: Checkpoint, batch: PatchBatch) -> Tensor:
    """Queries or keys, of which one half rotates by the patch's row and the other by its column."""
    if batch.axes is None:
        return x
    n = config.head_dim // 4
    table = file.made("rope", lambda: rotations(config))
    if config.row.rope == "halves":
        return _halves_rotated(x, table, name, config, batch.axes)
    rule = ROPES[config.row.rope]
    y: Tensor = F.rope_multi(
        x, batch.axes, table, heads=config.n_heads, head_dim=config.head_dim, sections=(n, n), name=name, **rule
    )
    return y


def _halves_rotated(x: Tensor, table: Tensor, name: str, config: VisionConfig, axes: Tensor) -> Tensor:
    """Queries or keys, of whose heads the first half rotates by the patch's column, the second by its row."""
    tokens, heads, half = x.shape[0], config.n_heads, config.head_dim // 2
    sizes: dict[str, Any] = {"heads": heads, "head_dim": half, "pairing": "neox"}
    parts = F.split(x.reshape((tokens, heads, 2 * half)), axis=2, sizes=(half, half))
    turned = [
        F.rope(part.reshape((tokens, heads * half)), axes[:, 1 - axis], table, name=f"{name}.{axis}", **sizes)
        for axis, part in enumerate(parts)
    ]
    joined: Tensor = F.concat(*(part.reshape((tokens, heads, half)) for part in turned), axis=2)
    return joined.reshape((tokens, heads * 2 * half))


def _sizes(config: VisionConfig) -> dict[str, Any]:
    return {"kv_heads": config.n_heads, "head_dim": config.head_dim}


def _feed_forward(h: Tensor, prefix: str, config: VisionConfig, file: Checkpoint) -> Tensor:
    """down(act(up(h))), or down(act(gate(h)) * up(h)). Older files have the names of up and down swapped."""
    names = [f"{prefix}.ffn_up", f"{prefix}.ffn_down"]
    first = file.tensors.get(f"{names[0]}.weight")
    is_swapped = first is not None and tuple(first.shape) == (config.dim, config.ffn_dim) != (
        config.ffn_dim,
        config.dim,
    )
    up, down = names[::-1] if is_swapped else names
    hidden, act = clipped_linear(h, up, config.ffn_dim, file), f"{prefix}.ffn_act"
    if config.row.gated:
        gate = clipped_linear(h, f"{prefix}.ffn_gate", config.ffn_dim, file)
        if config.activation == "gelu" and config.row.exact_gelu:  # transformers computes it by erf here
            hidden = F.multiply(F.gelu_erf(gate), hidden, name=act)
        else:
            hidden = F.function(f"{config.activation}_multiply")(gate, hidden, name=act)
    elif config.activation == "gelu_quick":
        hidden = F.multiply(hidden, F.sigmoid(F.multiply(hidden, QUICK)), name=act)
    else:
        hidden = F.function(config.activation)(hidden, name=act)
    return clipped_linear(hidden, down, config.dim, file)
