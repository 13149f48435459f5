"""Layer: what builds one decoder layer's graph: its number, config and tensors, and the inputs of a run.

Gemma 3n and 4 have embeddings of tokens for each layer, which adds a projection of its own to its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.families import FAMILIES, Family
from camshaft.models.layer_options import LayerOptions


@dataclass(frozen=True)
class TokenBatch:
    """The inputs of one run, all i32: `ids` and `positions` [T], and `rows` [R], whose logits are computed.

    `rows` None means every token. `is_last` is set for the last layer. `slot_rows` has each slot's tokens, for recurrent layers.
    `per_layer` [T, layers, n] are embeddings of each layer's own.
    `types` [T] are the kinds of tokens in encoders that know several; None: all are of the first.
    Gradients recompute the first `recomputed` layers.
    Where `is_image` [T] is set, a token's embedding is its row of the first of `images` f32 [T, dim]; the others are added
    after the first layers. `axes` [T, n] are positions for rotations with several axes, whose pairs are `sections` in a layout.
    """

    ids: Tensor
    positions: Tensor
    rows: Tensor | None
    rope_tables: Mapping[str, Tensor]
    is_last: bool = False
    slot_rows: Tensor | None = None
    types: Tensor | None = None
    per_layer: Tensor | None = None
    recomputed: int = 0
    images: Sequence[Tensor] = ()
    is_image: Tensor | None = None
    axes: Tensor | None = None
    sections: tuple[int, ...] = ()
    layout: str = ""


@dataclass(frozen=True)
class Layer:
    """Layer `number` of a model. Its tensors and nodes have names that begin with `prefix`; methods take names without it."""

    number: int
    config: ModelConfig
    file: Checkpoint
    batch: TokenBatch

    @property
    def prefix(self) -> str:
        return f"blk.{self.number}"

    @property
    def family(self) -> Family:
        return FAMILIES[self.config.architecture]

    @property
    def options(self) -> LayerOptions:
        return self.config.layers[self.number]

    def name(self, part: str) -> str:
        return f"{self.prefix}.{part}"

    def has(self, part: str) -> bool:
        """Whether the file has this tensor of the layer."""
        return self.name(part) in self.file

    def linear(self, x: Tensor, part: str, n: int, *, bias: bool = False) -> Tensor:
        """As Checkpoint.linear."""
        return self.file.linear(x, self.name(part), n, bias=bias)

    def vector(self, part: str, n: int) -> Tensor:
        """As Checkpoint.vector."""
        return self.file.vector(self.name(part), n)

    def norm(self, x: Tensor, part: str) -> Tensor:
        """As `norm`."""
        return norm(x, self.name(part), self.config, self.file)

    def rows(self, x: Tensor, part: str) -> Tensor:
        """In the last layer the rows of x whose logits are computed; in others x."""
        return logit_rows(x, self.batch, self.name(part)) if self.batch.is_last else x


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


def logit_rows(x: Tensor, batch: TokenBatch, name: str) -> Tensor:
    """Select the tokens whose logits are computed."""
    if batch.rows is None:
        return x
    result: Tensor = F.gather(x, batch.rows, name=name)
    return result


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
