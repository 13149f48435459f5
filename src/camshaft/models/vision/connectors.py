"""How the patches of a token become its embedding: a function for each kind of projector.

Each gets the merge * merge patches of every token as tensors [tokens, dim], from left to right and top to bottom.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.vision.config import VisionConfig

Connector = Callable[[Sequence[Tensor], VisionConfig, Checkpoint], Tensor]


def connect(patches: Sequence[Tensor], config: VisionConfig, file: Checkpoint) -> Tensor:
    """The embeddings of tokens, f32 [tokens, out_dim]. ModelError for a tensor that is missing or has another shape."""
    return _CONNECTORS[config.row.connect](patches, config, file)


def side_by_side(patches: Sequence[Tensor]) -> Tensor:
    """The patches of a token as one row."""
    joined: Tensor = F.concat(*patches, axis=1) if len(patches) > 1 else patches[0]
    return joined


def _linear(patches: Sequence[Tensor], config: VisionConfig, file: Checkpoint) -> Tensor:
    """Idefics3 and SmolVLM: one projection of all patches."""
    return file.linear(side_by_side(patches), "mm.model.fc", config.out_dim)


def _mean_norm_linear(patches: Sequence[Tensor], config: VisionConfig, file: Checkpoint) -> Tensor:
    """Gemma 3: the mean of the patches, normed, then a projection whose matrix is [dim, out_dim]."""
    mean = patches[0]
    for patch in patches[1:]:
        mean = F.add(mean, patch)
    mean = F.multiply(mean, 1 / len(patches))
    normed = F.rms_norm(mean, file.vector("mm.soft_emb_norm.weight", config.dim), eps=config.eps)
    y: Tensor = F.matmul(normed, file.tensor("mm.input_projection.weight", config.dim, config.out_dim))
    return y


_CONNECTORS: dict[str, Connector] = {"linear": _linear, "mean_norm_linear": _mean_norm_linear}
