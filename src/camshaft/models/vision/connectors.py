"""How the patches of a token become its embedding: a function for each kind of projector.

Each gets the merge * merge patches of every token as tensors [tokens, dim], from left to right and top to bottom.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.checkpoint import Checkpoint, columns_of
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


def _pooled(patches: Sequence[Tensor], config: VisionConfig, file: Checkpoint) -> Tensor:
    """Gemma 4: the mean of the patches, scaled; shifted and scaled again in files that have these vectors; normed and
    projected."""
    total = patches[0]
    for patch in patches[1:]:
        total = F.add(total, patch)
    mean = F.multiply(total, config.dim**0.5 / len(patches))
    if "v.std_bias" in file:
        mean = F.multiply(
            F.subtract(mean, file.vector("v.std_bias", config.dim)), file.vector("v.std_scale", config.dim)
        )
    normed = F.rms_norm(mean, file.ones(config.dim), eps=config.eps)
    return clipped_linear(normed, "mm.input_projection", config.out_dim, file)


def clipped_linear(x: Tensor, name: str, n: int, file: Checkpoint) -> Tensor:
    """A linear layer, biased where the file has one, whose inputs and results stay within the limits that the file has."""

    def within(x: Tensor, part: str) -> Tensor:
        limits = [f"{name}.{part}_{end}" for end in ("min", "max")]
        if limits[0] not in file:
            return x
        low, high = (file.vector(limit, 1) for limit in limits)
        clipped: Tensor = F.minimum(F.maximum(x, low), high)
        return clipped

    return within(file.linear(within(x, "input"), name, n, bias=f"{name}.bias" in file), "output")


def _normed_two_layers(patches: Sequence[Tensor], config: VisionConfig, file: Checkpoint) -> Tensor:
    """LFM2-VL: a norm of all patches, in files that have it, then two layers with gelu between them."""
    x = side_by_side(patches)
    n = columns_of(x)
    if "mm.input_norm.weight" in file:
        w, b = (file.vector(f"mm.input_norm.{part}", n) for part in ("weight", "bias"))
        x = F.layer_norm(x, w, b, eps=1e-5)
    inner = file.linear(x, "mm.1", file.rows("mm.1.weight"), bias="mm.1.bias" in file)
    return file.linear(F.gelu_erf(inner), "mm.2", config.out_dim, bias="mm.2.bias" in file)


def _two_layers(patches: Sequence[Tensor], config: VisionConfig, file: Checkpoint) -> Tensor:
    """Qwen-VL: two layers with gelu between them, of all patches."""
    x = side_by_side(patches)
    hidden = F.gelu_erf(file.linear(x, "mm.0", columns_of(x), bias=True))
    return file.linear(hidden, "mm.2", config.out_dim, bias=True)


def connected_layer(patches: Sequence[Tensor], name: str, config: VisionConfig, file: Checkpoint) -> Tensor:
    """Returns the DeepStack embeddings that an encoder layer gives a text layer: a norm of all patches, then two linear
    layers."""
    x = side_by_side(patches)
    n = columns_of(x)
    w, b = (file.vector(f"{name}.norm.{part}", n) for part in ("weight", "bias"))
    hidden = F.gelu_erf(file.linear(F.layer_norm(x, w, b, eps=config.eps), f"{name}.fc1", n, bias=True))
    return file.linear(hidden, f"{name}.fc2", config.out_dim, bias=True)


def _merged_two_layers(patches: Sequence[Tensor], config: VisionConfig, file: Checkpoint) -> Tensor:
    """Pixtral and Mistral 3: two layers with gelu between them; in files with a merger before them a norm of each patch, and a
    projection of all, number by number."""
    x = patches[0]
    if len(patches) > 1 or "mm.patch_merger.weight" in file:
        w = file.vector("mm.input_norm.weight", config.dim)
        normed = [F.rms_norm(patch, w, eps=config.eps) for patch in patches]
        tokens, width = x.shape[0], config.dim * len(patches)
        columns = [patch.reshape((tokens, config.dim, 1)) for patch in normed]
        joined = F.concat(*columns, axis=2).reshape((tokens, width)) if len(columns) > 1 else normed[0]
        x = file.linear(joined, "mm.patch_merger", config.dim)
    first, second = (f"mm.{n}" for n in (1, 2))
    hidden = F.gelu_erf(file.linear(x, first, config.out_dim, bias=f"{first}.bias" in file))
    return file.linear(hidden, second, config.out_dim, bias=f"{second}.bias" in file)


_CONNECTORS: dict[str, Connector] = {
    "linear": _linear,
    "mean_norm_linear": _mean_norm_linear,
    "pooled": _pooled,
    "normed_two_layers": _normed_two_layers,
    "two_layers": _two_layers,
    "merged_two_layers": _merged_two_layers,
}
