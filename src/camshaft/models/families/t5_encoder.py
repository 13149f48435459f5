"""T5's encoder without a decoder (Raffel et al., 2020), whose outputs are pooled to embeddings: Sentence-T5, GTR, Instructor.

Scores have no scale. A bias by the distance of tokens, in buckets, is added; all layers use the first layer's table.
"""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.errors import ModelError
from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.blocks.layer import Layer, TokenBatch
from camshaft.models.blocks.transformer import LayerCache, LayerMemory
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.t5.config import check_buckets
from camshaft.models.t5.t5 import Biases, feed_forward, rms
from camshaft.ops.spec import bound

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
