"""Embeddings of tokens that each layer has of its own (Gemma 3n and 4): a layer adds a projection of them to its result."""

from __future__ import annotations

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.blocks.norms import norm
from camshaft.models.blocks.transformer import TokenBatch, logit_rows
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig


def layer_embeddings(x: Tensor, config: ModelConfig, file: Checkpoint, batch: TokenBatch) -> Tensor:
    """The embeddings of all layers and the projections of the model's, f32 [T, layers, n], each by sqrt(1/2)."""
    n, width = config.per_layer_dim, config.n_layers * config.per_layer_dim
    tokens = x.shape[0]
    # Tokens of pictures have the embeddings of the first token, the padding.
    ids = batch.ids if batch.is_picture is None else F.where(batch.is_picture, 0, batch.ids)
    own = F.embedding(ids, file.tensor("per_layer_token_embd.weight", config.vocab_size, width), to="f32")
    own = F.multiply(own, n**0.5)
    projected = F.multiply(file.linear(x, "per_layer_model_proj", width), config.dim**-0.5)
    w, by_layer = file.vector("per_layer_proj_norm.weight", n), (tokens, config.n_layers, n)
    normed = F.rms_norm(file.graph.reshape(projected, by_layer), w, eps=config.norm_eps)
    total: Tensor = F.multiply(F.add(normed, file.graph.reshape(own, by_layer)), 0.5**0.5)
    return total


def with_layer_embedding(x: Tensor, layer: int, config: ModelConfig, file: Checkpoint, batch: TokenBatch) -> Tensor:
    """A layer's result with the projection of its gated embeddings, where the model has some, and its scale."""
    if batch.per_layer is not None:
        x = F.add(x, of_layer_embedding(x, layer, config, file, batch))
    scale = f"blk.{layer}.layer_output_scale.weight"
    return F.multiply(x, file.vector(scale, 1)) if scale in file else x


def of_layer_embedding(x: Tensor, layer: int, config: ModelConfig, file: Checkpoint, batch: TokenBatch) -> Tensor:
    """The normed projection of a layer's embeddings, gated by x."""
    prefix = f"blk.{layer}"
    assert batch.per_layer is not None
    own = batch.per_layer[:, layer]
    own = logit_rows(own, batch, f"{prefix}.embedding_rows") if batch.is_last else own
    gate = file.linear(x, f"{prefix}.inp_gate", config.per_layer_dim)
    y = file.linear(F.multiply(F.gelu(gate), own), f"{prefix}.proj", config.dim)
    return norm(y, f"{prefix}.post_norm", config, file)
