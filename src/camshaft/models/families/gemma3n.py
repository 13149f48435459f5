"""Gemma 3n: a token has several streams, of which each layer computes one and predicts and corrects the others (AltUp; Baykal et
al., 2023).

A layer's attention stands beside a projection of low rank (LAuReL), its gates keep only what is far above their mean in the first
layers, and all streams but the first gain from the layer's own embeddings of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.blocks.attention import attention
from camshaft.models.blocks.feed_forward import feed_forward
from camshaft.models.blocks.latent_attention import head_indexes, of_heads
from camshaft.models.blocks.layer import Layer, TokenBatch, layer_embeddings, logit_rows, norm, of_layer_embedding
from camshaft.models.blocks.transformer import LayerMemory, SideBySide
from camshaft.models.blocks.whole import WholeRecurrence
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.layer_options import Streams

# The smallest mean square by which a new stream is divided.
LEAST = 1e-5


def hidden(config: ModelConfig, file: Checkpoint, batch: TokenBatch, caches: Sequence[LayerMemory]) -> Tensor:
    """Adds embedding, layers and the final norm; returns f32 [R, dim]. ModelError as decoder.hidden."""
    sizes, graph = config.streams, file.graph
    assert sizes is not None
    x = F.embedding(batch.ids, file.tensor("token_embd.weight", config.vocab_size, config.dim), to="f32")
    x = F.multiply(x, config.embedding_scale)
    batch = replace(batch, per_layer=layer_embeddings(x, config, file, batch))
    shape = (sizes.n - 1, config.dim, config.dim)
    others = of_heads(x, file.tensor("altup_proj.weight", *shape), head_indexes(batch, sizes.n - 1), "altup_proj")
    first = graph.reshape(x, (x.shape[0], 1, config.dim))
    streams = F.concat(first, _as_long(others, first), axis=1)
    for number, cache in enumerate(caches):
        mine = replace(batch, is_last=number == len(caches) - 1)
        streams = _after_layer(streams, Layer(number, config.of_layer(number), file, mine), cache)
    first, others = F.split(streams, axis=1, sizes=(1, sizes.n - 1))
    indexes = logit_rows(head_indexes(batch, sizes.n - 1), batch, "altup_rows")
    others = of_heads(others, file.tensor("altup_unembd_proj.weight", *shape), indexes, "altup_unembd_proj")
    total = F.sum(F.concat(first, _as_long(others, first), axis=1), axes=1)
    return norm(F.multiply(total, 1 / sizes.n), "output_norm", config, file)


def _as_long(y: Tensor, x: Tensor) -> Tensor:
    """y, whose rows get the mean square of those of x."""
    squares = F.mean(F.square(x), axes=-1, keepdims=True)
    own = F.maximum(F.mean(F.square(y), axes=-1, keepdims=True), LEAST)
    made: Tensor = F.multiply(y, F.sqrt(F.divide(squares, own)))
    return made


def _after_layer(streams: Tensor, layer: Layer, cache: LayerMemory) -> Tensor:
    """The streams [T, n, dim] after a layer; in the last one of the rows whose logits are computed."""
    sizes, config, file = layer.config.streams, layer.config, layer.file
    assert sizes is not None
    assert not isinstance(cache, Mapping | SideBySide | WholeRecurrence)
    streams = _predicted(streams, layer, sizes)
    x = streams[:, sizes.active]
    h = layer.norm(x, "attn_norm")
    y = attention(h, layer, cache)
    if layer.batch.is_last:
        streams, x, h = (_rows(part, layer.batch, layer.name("rows")) for part in (streams, x, h))
    y = F.add(x, layer.norm(y, "post_attention_norm"), name=layer.name("attn_residual"))
    low = layer.linear(h, "laurel_l", file.rows(layer.name("laurel_l.weight")))
    low = layer.norm(layer.linear(low, "laurel_r", config.dim), "laurel_post_norm")
    y = F.multiply(F.add(y, F.add(h, low)), 0.5**0.5)
    h = layer.norm(y, "ffn_norm")
    cut = sizes.cuts[layer.number]
    made = feed_forward(h, layer) if cut is None else _sparse(h, layer, cut)
    y = F.add(y, layer.norm(made, "post_ffw_norm"), name=layer.name("ffn_residual"))
    streams = _corrected(streams, y, layer, sizes)
    first = F.multiply(streams[:, sizes.active], layer.vector("altup_correct_scale.weight", config.dim))
    own = of_layer_embedding(first, layer)
    others = file.made("altup_others", lambda: (np.arange(sizes.n) > 0).astype(np.float32).reshape(-1, 1))
    return F.add(streams, F.multiply(file.graph.reshape(own, (own.shape[0], 1, config.dim)), others))


def _rows(x: Tensor, batch: TokenBatch, name: str) -> Tensor:
    """Rows of the first axis, of tensors with more axes too."""
    graph, sizes = batch.ids.graph, x.shape[1:]
    assert graph is not None
    width = int(np.prod([n for n in sizes if isinstance(n, int)]))
    found = logit_rows(graph.reshape(x, (x.shape[0], width)), batch, name)
    return graph.reshape(found, (found.shape[0], *sizes))


def _modalities(x: Tensor, layer: Layer, sizes: Streams) -> Tensor:
    """The router's result for a token, f32 [T, n], from which the coefficients of its streams are computed."""
    h = F.multiply(layer.norm(x, "altup_router_norm"), 1 / layer.config.dim)
    made: Tensor = F.tanh(layer.linear(h, "altup_router", sizes.n))
    return made


def _predicted(streams: Tensor, layer: Layer, sizes: Streams) -> Tensor:
    """Each stream plus a sum of all by the token's coefficients [n, n]."""
    modalities = _modalities(streams[:, sizes.active], layer, sizes)
    coefficients = layer.linear(modalities, "altup_predict_coef", sizes.n**2)
    coefficients = layer.file.graph.reshape(coefficients, (streams.shape[0], sizes.n, sizes.n))
    total = streams
    for i in range(sizes.n):
        total = F.add(total, F.multiply(coefficients[:, :, i : i + 1], streams[:, i : i + 1]))
    return total


def _corrected(streams: Tensor, y: Tensor, layer: Layer, sizes: Streams) -> Tensor:
    """Each stream plus its share of what the computed one gained."""
    modalities = _modalities(y, layer, sizes)
    shares = F.add(layer.linear(modalities, "altup_correct_coef", sizes.n), 1.0)
    gained = F.subtract(y, streams[:, sizes.active])
    wide = (y.shape[0], 1, layer.config.dim), (y.shape[0], sizes.n, 1)
    gained, shares = (layer.file.graph.reshape(x, shape) for x, shape in zip((gained, shares), wide, strict=True))
    made: Tensor = F.add(streams, F.multiply(gained, shares))
    return made


def _sparse(h: Tensor, layer: Layer, cut: float) -> Tensor:
    """A gated feed-forward whose gates are what exceeds their mean by `cut` of their standard deviations."""
    gate, up = (layer.linear(h, f"ffn_{part}", layer.config.ffn_dim) for part in ("gate", "up"))
    mean = F.mean(gate, axes=-1, keepdims=True)
    apart = F.subtract(gate, mean)
    deviation = F.sqrt(F.mean(F.square(apart), axes=-1, keepdims=True))
    gate = F.relu(F.subtract(apart, F.multiply(deviation, cut)))
    return layer.linear(F.gelu_multiply(gate, up, name=layer.name("ffn_act")), "ffn_down", layer.config.dim)
