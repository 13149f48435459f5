"""Per-layer token embeddings (Gemma 3n and 4): each layer adds a projection of its own embeddings to its result."""

from __future__ import annotations

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.blocks.layer import Layer, TokenBatch
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig


def layer_embeddings(x: Tensor, config: ModelConfig, file: Checkpoint, batch: TokenBatch) -> Tensor:
    """The embeddings of all layers and the projections of the model's, f32 [T, layers, n], each by sqrt(1/2)."""
    n, width = config.per_layer_dim, config.n_layers * config.per_layer_dim
    tokens = x.shape[0]
    # Tokens of images have the embeddings of the first token, the padding.
    ids = batch.ids if batch.is_image is None else F.where(batch.is_image, 0, batch.ids)
    own = F.embedding(ids, file.tensor("per_layer_token_embd.weight", config.vocab_size, width), to="f32")
    own = F.multiply(own, n**0.5)
    projected = F.multiply(file.linear(x, "per_layer_model_proj", width), config.dim**-0.5)
    w, by_layer = file.vector("per_layer_proj_norm.weight", n), (tokens, config.n_layers, n)
    normed = F.rms_norm(file.graph.reshape(projected, by_layer), w, eps=config.norm_eps)
    total: Tensor = F.multiply(F.add(normed, file.graph.reshape(own, by_layer)), 0.5**0.5)
    return total


def with_layer_embedding(x: Tensor, layer: Layer) -> Tensor:
    """A layer's result with the projection of its gated embeddings, if the model has some, and its scale."""
    if layer.batch.per_layer is not None:
        x = F.add(x, of_layer_embedding(x, layer))
    scale = "layer_output_scale.weight"
    return F.multiply(x, layer.vector(scale, 1)) if layer.has(scale) else x


def of_layer_embedding(x: Tensor, layer: Layer) -> Tensor:
    """The normed projection of a layer's embeddings, gated by x."""
    config = layer.config
    assert layer.batch.per_layer is not None
    own = layer.rows(layer.batch.per_layer[:, layer.number], "embedding_rows")
    gate = layer.linear(x, "inp_gate", config.per_layer_dim)
    return layer.norm(layer.linear(F.multiply(F.gelu(gate), own), "proj", config.dim), "post_norm")
