"""Replace token embeddings by image embeddings, and add more after the first layers (DeepStack; Meng et al., 2024)."""

from __future__ import annotations

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.blocks.layer import TokenBatch


def with_images(x: Tensor, batch: TokenBatch) -> Tensor:
    """x [T, dim] with the embeddings of the tokens of images; x itself without images."""
    if not batch.images:
        return x
    y: Tensor = F.where(_is_image(batch), batch.images[0], x)
    return y


def after_layer(x: Tensor, layer: int, batch: TokenBatch) -> Tensor:
    """x [T, dim], plus what images add after the layer."""
    if layer + 1 >= len(batch.images):
        return x
    added = F.where(_is_image(batch), batch.images[layer + 1], 0.0)
    return F.add(x, added, name=f"blk.{layer}.deepstack")


def _is_image(batch: TokenBatch) -> Tensor:
    mask = batch.is_image
    assert mask is not None
    return mask.reshape((mask.shape[0], 1))
