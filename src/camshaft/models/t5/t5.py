"""T5 (Raffel et al., 2020): an encoder of a prompt, and a decoder that attends to it, with biases by distance in buckets.

Norms are rms_norm, scores have no scale, and the first layer's biases by distance are those of all layers. The feed-forward is
gated by gelu, or relu without a gate (the first T5); logits of files without `output` are those of scaled embeddings.
`hidden` is the encoder without a decoder, whose outputs are pooled to embeddings: Sentence-T5, GTR, Instructor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import DType
from camshaft.errors import ModelError
from camshaft.extent import Extent
from camshaft.formats.tensor import FileTensor
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph, Tensor
from camshaft.models.blocks.cross_attention import Heads, Memory, attend, write
from camshaft.models.blocks.layer import Layer, TokenBatch
from camshaft.models.blocks.transformer import LayerCache, LayerMemory
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.t5.config import FARTHEST, T5Config, check_buckets
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.spec import TensorSpec, bound

Array = np.ndarray[Any, Any]
Tensors = Mapping[str, FileTensor]
Specs = Mapping[str, TensorSpec]


def state_specs(config: T5Config, form: DType) -> dict[str, TensorSpec]:
    """The states by name: `encoder_keys` and `encoder_values`, which all layers of the encoder use in turn, and of each layer of
    the decoder `keys.N`, `values.N`, `cross_keys.N` and `cross_values.N`."""
    blocks = -(-config.context // BLOCK_TOKENS)
    keys = TensorSpec((blocks, config.n_heads, config.head_dim, BLOCK_TOKENS), form)
    values = TensorSpec((blocks, config.n_heads, BLOCK_TOKENS, config.head_dim), form)
    specs = {"encoder_keys": keys, "encoder_values": values}
    for layer in range(config.n_decoder_layers):
        for kind in ("", "cross_"):
            specs |= {f"{kind}keys.{layer}": keys, f"{kind}values.{layer}": values}
    return specs


def encoder_graph(config: T5Config, tensors: Tensors, specs: Specs, tokens: Extent) -> Graph:
    """The graph from `ids`, `positions` and `slots` (0) i32 [tokens] and `lengths` i32 [1], their number, to `encoded` f32
    [tokens, dim], and to the states that the decoder attends to."""
    graph, heads = Graph(), _heads(config)
    file = Checkpoint(tensors, graph)
    ids, positions, slots = (graph.input(name, (tokens,), "i32") for name in ("ids", "positions", "slots"))
    lengths, table = graph.input("lengths", (1,), "i32"), _table(graph, config)
    bias = file.converted(
        "enc.blk.0.attn_rel_b.weight", (config.n_buckets, config.n_heads), Biases(config.context, True)
    )
    own = _state(graph, specs, "encoder_keys", "encoder_values", positions, slots, table, tokens, lengths)
    x = F.embedding(ids, file.tensor("token_embd.weight", config.vocab_size, config.dim), to="f32")
    for layer in range(config.n_encoder_layers):
        prefix = f"enc.blk.{layer}"
        x = _self_attention(x, prefix, own, heads, {"mask": bias}, config, file)
        x = F.add(x, feed_forward(x, prefix, config, file))
    x = rms(x, "enc.output_norm", config, file)
    for layer in range(config.n_decoder_layers):
        prefix = f"dec.blk.{layer}.cross_attn"
        names = f"cross_keys.{layer}", f"cross_values.{layer}"
        cross = _state(graph, specs, *names, positions, slots, table, tokens, lengths)
        k, v = (file.linear(x, f"{prefix}_{part}", heads.n * heads.dim) for part in "kv")
        write(cross, k, v, heads, f"{prefix}.write")
    graph.output("encoded", x)
    return graph


def decoder_graph(config: T5Config, tensors: Tensors, specs: Specs, length: Extent, heard: Extent) -> Graph:
    """The graph from `ids`, `positions` and `slots` (0) i32 [1] and `lengths` i32 [1], the prompt's tokens, to `logits` f32
    [1, vocab]. `length` exceeds the position, `heard` is the number of the prompt's tokens."""
    graph, heads = Graph(), _heads(config)
    file = Checkpoint(tensors, graph)
    ids, positions, slots = (graph.input(name, (1,), "i32") for name in ("ids", "positions", "slots"))
    lengths, table = graph.input("lengths", (1,), "i32"), _table(graph, config)
    rows = file.converted(
        "dec.blk.0.attn_rel_b.weight", (config.n_buckets, config.n_heads), Biases(config.context, False)
    )
    bias = F.gather(rows, positions).reshape((1, config.n_heads, 1, config.context))
    x = F.embedding(ids, file.tensor("token_embd.weight", config.vocab_size, config.dim), to="f32")
    for layer in range(config.n_decoder_layers):
        prefix = f"dec.blk.{layer}"
        own = _state(graph, specs, f"keys.{layer}", f"values.{layer}", positions, slots, table, length)
        x = _self_attention(x, prefix, own, heads, {"mask": bias}, config, file)
        names = f"cross_keys.{layer}", f"cross_values.{layer}"
        prompt = _state(graph, specs, *names, positions, slots, table, heard, lengths)
        h = rms(x, f"{prefix}.cross_attn_norm", config, file)
        q = file.linear(h, f"{prefix}.cross_attn_q", heads.n * heads.dim)
        y = attend(prompt, q, heads, f"{prefix}.cross_attention")
        x = F.add(x, file.linear(y, f"{prefix}.cross_attn_o", config.dim))
        x = F.add(x, feed_forward(x, prefix, config, file))
    x = rms(x, "dec.output_norm", config, file)
    if "output.weight" in file:
        logits = file.linear(x, "output", config.vocab_size)
    else:
        logits = file.linear(F.multiply(x, config.dim**-0.5), "token_embd", config.vocab_size)
    graph.output("logits", logits)
    return graph


class Biases:
    """The biases of scores by distance, from a table [buckets, heads]: of an encoder f32 [1, heads, queries, keys], of a decoder,
    whose queries see no later keys, f32 [queries, heads keys]."""

    def __init__(self, context: int, both_sides: bool) -> None:
        self._context, self._both = context, both_sides

    def __call__(self, table: Array) -> Array:
        n = self._context
        distances = np.arange(n)[None] - np.arange(n)[:, None]
        found = table[buckets(distances, len(table), both_sides=self._both)]  # [queries, keys, heads]
        if self._both:
            return np.ascontiguousarray(found.transpose(2, 0, 1)[None])
        return np.ascontiguousarray(found.transpose(0, 2, 1).reshape(n, -1))


def buckets(distances: Array, n_buckets: int, *, both_sides: bool) -> Array:
    """The bucket of each distance key - query: one for each small distance, then as its logarithm up to FARTHEST. Later keys have
    the second half of the buckets with `both_sides`, else they are as the query itself."""
    found = np.zeros(distances.shape, np.int64)
    if both_sides:
        n_buckets //= 2
        found += (distances > 0) * n_buckets
        far = np.abs(distances)
    else:
        far = np.maximum(-distances, 0)
    exact = n_buckets // 2
    grown = np.log(np.maximum(far, 1).astype(np.float32) / exact) / np.float32(np.log(FARTHEST / exact))
    large = np.minimum(exact + (grown * (n_buckets - exact)).astype(np.int64), n_buckets - 1)
    made: Array = found + np.where(far < exact, far, large)
    return made


def _heads(config: T5Config) -> Heads:
    return Heads(config.n_heads, config.head_dim, 1.0)


def _table(graph: Graph, config: T5Config) -> Tensor:
    return graph.constant("block_table", np.arange(-(-config.context // BLOCK_TOKENS), dtype=np.int32)[None])


def _state(
    graph: Graph,
    specs: Specs,
    keys: str,
    values: str,
    positions: Tensor,
    slots: Tensor,
    table: Tensor,
    length: Extent,
    lengths: Tensor | None = None,
) -> Memory:
    k, v = (graph.state(name, specs[name]) for name in (keys, values))
    return Memory(k, v, positions, slots, table, length, lengths)


def _self_attention(
    x: Tensor,
    prefix: str,
    own: Memory,
    heads: Heads,
    extras: Mapping[str, Tensor],
    config: T5Config,
    file: Checkpoint,
) -> Tensor:
    h = rms(x, f"{prefix}.attn_norm", config, file)
    q, k, v = (file.linear(h, f"{prefix}.attn_{part}", heads.n * heads.dim) for part in "qkv")
    write(own, k, v, heads, f"{prefix}.write")
    y = attend(own, q, heads, f"{prefix}.attention", extras)
    added: Tensor = F.add(x, file.linear(y, f"{prefix}.attn_o", config.dim))
    return added


def feed_forward(x: Tensor, prefix: str, config: T5Config | ModelConfig, file: Checkpoint) -> Tensor:
    """down(gelu(gate(h)) * up(h)), or down(relu(up(h))) in files without a gate, of the norm h of x [T, dim]."""
    h = rms(x, f"{prefix}.ffn_norm", config, file)
    up = file.linear(h, f"{prefix}.ffn_up", config.ffn_dim)
    if f"{prefix}.ffn_gate.weight" in file:
        inner = F.gelu_multiply(file.linear(h, f"{prefix}.ffn_gate", config.ffn_dim), up)
    else:
        inner = F.relu(up)
    return file.linear(inner, f"{prefix}.ffn_down", config.dim)


def rms(x: Tensor, name: str, config: T5Config | ModelConfig, file: Checkpoint) -> Tensor:
    """rms_norm of rows [T, dim] with the weight of that name."""
    y: Tensor = F.rms_norm(x, file.vector(f"{name}.weight", config.dim), eps=config.norm_eps, name=name)
    return y


_TABLE = "enc.blk.0.attn_rel_b.weight"


def hidden(config: ModelConfig, file: Checkpoint, batch: TokenBatch, caches: Sequence[LayerMemory]) -> Tensor:
    """Adds embedding, layers and the final norm; returns f32 [T, dim]. ModelError as decoder.hidden."""
    x = F.embedding(batch.ids, file.tensor("token_embd.weight", config.vocab_size, config.dim), to="f32")
    bias = _biases(config, file, batch)
    for number, cache in enumerate(caches):
        prefix = f"enc.blk.{number}"
        h = rms(x, f"{prefix}.attn_norm", config, file)
        q, k, v = (file.linear(h, f"{prefix}.attn_{part}", config.n_heads * config.head_dim) for part in "qkv")
        if not isinstance(cache, LayerCache):
            raise ModelError("training: t5encoder has biases by distance in its attention; wanted plain attention")
        y = cache.attend(q, k, v, Layer(number, config, file, batch), {"mask": bias})
        x = F.add(x, file.linear(y, f"{prefix}.attn_o", config.dim))
        x = F.add(x, feed_forward(x, prefix, config, file))
    return rms(x, "enc.output_norm", config, file)


def _biases(config: ModelConfig, file: Checkpoint, batch: TokenBatch) -> Tensor:
    """The biases of scores by the places of tokens and keys, f32 [1, heads, T, T]: a run has one text, whose places are its
    positions."""
    n, n_buckets = bound(batch.ids.shape[0]), file.rows(_TABLE)
    check_buckets(n_buckets)
    return file.converted(_TABLE, (n_buckets, config.n_heads), Biases(n, both_sides=True))
