"""Latent attention (DeepSeek-V2, 2024) in absorbed form: all heads attend to one small key per token.

A token's latent vector c of size `rank` gives every head's keys K_h c and values V_h c. The score q_h (K_h c) = (K_h^T q_h) c, so
the cache has only [c | rotated part], and K_h^T and V_h are applied to queries and results. c is normed; of a query and a key
only the last `rope` elements rotate.

The cache has this row twice, as key and as value, of which only the first `rank` columns are used: kernels for keys and values of
one size are 7 times as fast (16 heads of 576, 512 tokens: 0.44 s, not 3.0 s, on one thread of a Zen 5 server).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.blocks.layer import Layer, TokenBatch
from camshaft.models.blocks.transformer import Attention, rotate

Array = np.ndarray[Any, Any]


def latent_attention(h: Tensor, layer: Layer, cache: Attention) -> Tensor:
    """The layer's result f32 [T, dim] of its normed input."""
    config, batch, graph = layer.config, layer.batch, layer.file.graph
    assert config.latent is not None
    sizes, heads, tokens = config.latent, config.n_heads, h.shape[0]
    pairing, rope = layer.family.pairing, layer.options.rope
    plain, turning = F.split(
        graph.reshape(_queries(h, layer), (tokens, heads, sizes.key)), axis=2, sizes=(sizes.plain, sizes.rope)
    )
    turning = graph.reshape(turning, (tokens, heads * sizes.rope))
    turning = rotate(turning, rope, heads, sizes.rope, batch, pairing, layer.name("rope_q"))
    by_head = head_indexes(batch, heads)
    absorbed = of_heads(plain, _keys(layer), by_head, layer.name("attn_k_b"))
    q = F.concat(absorbed, graph.reshape(turning, (tokens, heads, sizes.rope)), axis=2)
    joined = layer.linear(h, "attn_kv_a_mqa", sizes.rank + sizes.rope)
    c, k = F.split(joined, axis=1, sizes=(sizes.rank, sizes.rope))
    c = F.rms_norm(c, layer.vector("attn_kv_a_norm.weight", sizes.rank), eps=config.norm_eps)
    k = F.concat(c, rotate(k, rope, 1, sizes.rope, batch, pairing, layer.name("rope_k")), axis=1)
    found = cache.attend(graph.reshape(q, (tokens, heads * config.head_dim)), k, k, layer, {})
    by_head = layer.rows(by_head, "head_rows")
    found = graph.reshape(found, (found.shape[0], heads, config.head_dim))[:, :, : sizes.rank]
    y = of_heads(found, _values(layer), by_head, layer.name("attn_v_b"))
    return layer.linear(graph.reshape(y, (y.shape[0], heads * sizes.value)), "attn_output", config.dim)


def head_indexes(batch: TokenBatch, heads: int) -> Tensor:
    """0 to heads - 1 for each token, i32 [T, heads]."""
    column = F.multiply(batch.positions, np.int32(0)).reshape((batch.positions.shape[0], 1))
    made: Tensor = F.add(column, np.arange(heads, dtype=np.int32))
    return made


def _queries(h: Tensor, layer: Layer) -> Tensor:
    config = layer.config
    assert config.latent is not None
    rank, width = config.latent.query_rank, config.n_heads * config.latent.key
    if not rank:
        return layer.linear(h, "attn_q", width)
    c = layer.linear(h, "attn_q_a", rank)
    c = F.rms_norm(c, layer.vector("attn_q_a_norm.weight", rank), eps=config.norm_eps)
    return layer.linear(c, "attn_q_b", width)


def of_heads(x: Tensor, w: Tensor, by_head: Tensor, name: str) -> Tensor:
    """y[t, h, n] = sum_k x[t, h, k] w[h, n, k]."""
    op = "quantized_matmul_grouped" if w.spec.dtype.name.isupper() else "matmul_grouped"
    y: Tensor = F.function(op)(x, w, by_head, name=name)
    return y


def _keys(layer: Layer) -> Tensor:
    """Returns the matrices that map queries to the latent space, [heads, rank, plain]."""
    sizes = layer.config.latent
    assert sizes is not None
    if layer.has("attn_kv_b.weight"):
        return _of_old_file(layer, "keys", lambda w: w[:, : sizes.plain].swapaxes(1, 2))
    return layer.file.tensor(layer.name("attn_k_b.weight"), layer.config.n_heads, sizes.rank, sizes.plain)


def _values(layer: Layer) -> Tensor:
    """Returns the matrices that make values of latents, [heads, value, rank]."""
    sizes = layer.config.latent
    assert sizes is not None
    if layer.has("attn_kv_b.weight"):
        return _of_old_file(layer, "values", lambda w: w[:, sizes.plain :])
    return layer.file.tensor(layer.name("attn_v_b.weight"), layer.config.n_heads, sizes.value, sizes.rank)


def _of_old_file(layer: Layer, part: str, of: Callable[[Array], Array]) -> Tensor:
    """Keys or values from the one tensor that older files have for both."""
    sizes, heads = layer.config.latent, layer.config.n_heads
    assert sizes is not None
    width, rank = sizes.plain + sizes.value, sizes.rank

    def change(w: Array) -> Array:
        return np.ascontiguousarray(of(w.reshape(heads, width, rank)))

    return layer.file.converted(layer.name("attn_kv_b.weight"), (heads * width, rank), change, part)
