"""The norms of decoders and encoders: rms_norm or layer_norm, by a family's row."""

from __future__ import annotations

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.families import FAMILIES


def norm(x: Tensor, name: str, config: ModelConfig, file: Checkpoint) -> Tensor:
    """The norm of rows [T, dim] with the weight `name`.weight, of families with weights, and, for layer_norm of families with
    one, the bias `name`.bias."""
    family = FAMILIES[config.architecture]
    if family.norm == "bare":
        bare: Tensor = F.layer_norm(x, file.ones(config.dim), file.zeros(config.dim), eps=config.norm_eps, name=name)
        return bare
    # Files of Falcon-H1 have norms before the feed-forward whose names end without .weight.
    w = file.vector(name if name in file and f"{name}.weight" not in file else f"{name}.weight", config.dim)
    y: Tensor
    if family.norm == "rms":
        y = F.rms_norm(x, w, eps=config.norm_eps, name=name)
    else:
        b = file.vector(f"{name}.bias", config.dim) if family.norm_bias else file.zeros(config.dim)
        y = F.layer_norm(x, w, b, eps=config.norm_eps, name=name)
    return y
