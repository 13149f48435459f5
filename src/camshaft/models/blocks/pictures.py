"""Embeddings of pictures in the place of those of tokens, and after the first layers (DeepStack; Meng et al., 2024)."""

from __future__ import annotations

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.blocks.layer import TokenBatch


def with_pictures(x: Tensor, batch: TokenBatch) -> Tensor:
    """x [T, dim] with the embeddings of the tokens of pictures; x itself without pictures."""
    if not batch.pictures:
        return x
    y: Tensor = F.where(_is_picture(batch), batch.pictures[0], x)
    return y


def after_layer(x: Tensor, layer: int, batch: TokenBatch) -> Tensor:
    """x [T, dim], plus what pictures add after the layer."""
    if layer + 1 >= len(batch.pictures):
        return x
    added = F.where(_is_picture(batch), batch.pictures[layer + 1], 0.0)
    return F.add(x, added, name=f"blk.{layer}.deepstack")


def _is_picture(batch: TokenBatch) -> Tensor:
    mask = batch.is_picture
    assert mask is not None
    return mask.reshape((mask.shape[0], 1))
