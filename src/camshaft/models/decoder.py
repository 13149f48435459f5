"""The decoder of every family: attention or recurrent layers and feed-forward blocks with residuals, by its row and its file.

Blocks of grouped-query attention (Touvron et al., 2023) and a feed-forward, one after the other or side by side (Black et al.,
2022).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.graph.tensor import graph_of
from camshaft.models.blocks.attention import attention
from camshaft.models.blocks.feed_forward import feed_forward
from camshaft.models.blocks.latent_attention import latent_attention
from camshaft.models.blocks.layer import Layer, TokenBatch, layer_embeddings, norm, with_layer_embedding
from camshaft.models.blocks.recurrent import recurrent
from camshaft.models.blocks.transformer import LayerMemory, SideBySide
from camshaft.models.blocks.whole import WholeRecurrence
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.configs.recurrent import FEED_FORWARD
from camshaft.models.families import FAMILIES, Family, gemma3n, rwkv
from camshaft.models.t5 import t5

# The norms after attention and feed-forward: of their results, or of the sums, whose names are those of results in Grok's files.
POST_NORMS = ("post_attention_norm", "post_ffw_norm")
SUM_NORMS = ("attn_output_norm", "layer_output_norm")
# What builds the layers of families whose layers are their own.
BUILDERS: Mapping[str, Callable[[ModelConfig, Checkpoint, TokenBatch, Sequence[LayerMemory]], Tensor]] = {
    "rwkv": rwkv.hidden,
    "gemma3n": gemma3n.hidden,
    "t5": t5.hidden,
}


def decoder(config: ModelConfig, file: Checkpoint, batch: TokenBatch, caches: Sequence[LayerMemory]) -> Tensor:
    """Adds `hidden` and the output projection; returns the logits f32 [R, vocab]. ModelError as `hidden`."""
    x = hidden(config, file, batch, caches)
    output = "output" if "output.weight" in file else "token_embd"
    logits = file.linear(x, output, config.vocab_size, bias="output.bias" in file)
    logits = _scaled(logits, config.logit_scale)
    return F.softcap(logits, cap=config.logit_softcap) if config.logit_softcap else logits


def hidden(config: ModelConfig, file: Checkpoint, batch: TokenBatch, caches: Sequence[LayerMemory]) -> Tensor:
    """Adds embedding, layers with residuals and the final norm; returns f32 [R, dim].

    In the last layer, everything after the attention is computed only for the rows of the batch. ModelError for a tensor that is
    missing or has another shape.
    """
    family = FAMILIES[config.architecture]
    if family.builder:
        return BUILDERS[family.builder](config, file, batch, caches)
    file.repeat_layers(config.own_layers)
    x = _embedded(config, file, batch)
    block = _block_of(config, family)
    if config.per_layer_dim:
        batch = replace(batch, per_layer=layer_embeddings(x, config, file, batch))
    for number, cache in enumerate(caches):
        is_last = number == len(caches) - 1
        layer = Layer(number, config.of_layer(number), file, replace(batch, is_last=is_last))
        with graph_of(x).checkpoint() if number < batch.recomputed else nullcontext():
            x = after_layer(block(x, layer, cache), number, batch)
        if config.norms_loops and not is_last and (number + 1) % config.own_layers == 0:
            x = norm(x, family.output_norm, config, file)
    return x if family.norms == "sum" else norm(x, family.output_norm, config, file)


def _embedded(config: ModelConfig, file: Checkpoint, batch: TokenBatch) -> Tensor:
    """Embeddings of tokens, scaled, and of positions in families that learn them; an encoder's also of types, normed."""
    family = FAMILIES[config.architecture]
    only_output = family.one_table and "token_embd.weight" not in file
    table = file.tensor("output.weight" if only_output else "token_embd.weight", config.vocab_size, config.dim)
    x = F.embedding(batch.ids, table, to="f32")
    x = _scaled(x, config.embedding_scale)
    x = with_images(x, batch)
    if family.learned_positions:
        places = file.tensor("position_embd.weight", config.context_length, config.dim)
        x = F.add(x, F.embedding(batch.positions, places, to="f32"))
    if config.n_types:
        types = file.tensor("token_types.weight", config.n_types, config.dim)
        known = F.cast(types[0], to="f32") if batch.types is None else F.embedding(batch.types, types, to="f32")
        x = F.add(x, known)
    return norm(x, "token_embd_norm", config, file) if family.embedding_norm else x


def _block_of(config: ModelConfig, family: Family) -> Callable[[Tensor, Layer, LayerMemory], Tensor]:
    if config.parallel:
        return _parallel_block
    if family.one_block:
        return _one_block
    return _apart if family.layers_apart else _block


def _block(x: Tensor, layer: Layer, cache: LayerMemory) -> Tensor:
    """Attention, then a feed-forward of the sum."""
    family = layer.family
    # ModernBERT's first layer has no norm of its own, after that of the embeddings.
    has_norm = family.norms in ("pre", "both") and not (
        family.embedding_norm and not layer.number and not layer.has("attn_norm.weight")
    )
    y = _mixed(layer.norm(x, "attn_norm") if has_norm else x, layer, cache)
    x = layer.rows(x, "rows")
    routed_by = x if family.routes_inputs else None
    after, last = (
        of_sum if family.norms == "sum" or layer.has(f"{of_sum}.weight") else post
        for of_sum, post in zip(SUM_NORMS, POST_NORMS, strict=True)
    )
    x = _add(x, y, layer, after, "attn_residual")
    if not family.feed_forward:
        return x
    h = layer.norm(x, family.ffn_norm) if family.norms in ("pre", "both") else x
    x = _add(x, feed_forward(h, layer, x, routed_by), layer, last, "ffn_residual")
    return with_layer_embedding(x, layer) if family.per_layer else x


def _parallel_block(x: Tensor, layer: Layer, cache: LayerMemory) -> Tensor:
    """Attention and feed-forward of the same input, with a norm for both, or another for one of them."""
    h = layer.norm(x, "attn_norm")
    y = layer.norm(x, "attn_norm_2") if layer.has("attn_norm_2.weight") else h
    y = _mixed(y, layer, cache)
    x, h = layer.rows(x, "rows"), layer.rows(h, "norm_rows")
    h = layer.norm(x, "ffn_norm") if layer.has("ffn_norm.weight") else h
    x = F.add(x, y, name=layer.name("attn_residual"))
    return F.add(x, feed_forward(h, layer), name=layer.name("ffn_residual"))


def _apart(x: Tensor, layer: Layer, cache: LayerMemory) -> Tensor:
    """Attention, or a projection, or neither; then a feed-forward or none."""
    attends, given = layer.options.kind != FEED_FORWARD, x
    x = layer.rows(x, "rows")
    if attends or layer.has("attn_output.weight"):
        h = layer.norm(given if attends else x, "attn_norm")
        y = (
            attention(h, layer, cache)  # type: ignore[arg-type]  # its layers have no others
            if attends
            else layer.linear(h, "attn_output", layer.config.dim)
        )
        x = F.add(x, y, name=layer.name("attn_residual"))
    if not layer.config.ffn_dim:
        return x
    h = layer.norm(x, layer.family.ffn_norm)
    return F.add(x, feed_forward(h, layer), name=layer.name("ffn_residual"))


def _one_block(x: Tensor, layer: Layer, cache: LayerMemory) -> Tensor:
    """Attention, a recurrence or a feed-forward."""
    h = layer.norm(x, "attn_norm")
    x = layer.rows(x, "rows")
    if layer.options.kind == FEED_FORWARD:
        return F.add(x, feed_forward(layer.rows(h, "norm_rows"), layer), name=layer.name("ffn_residual"))
    return F.add(x, _mixed(h, layer, cache), name=layer.name("attn_residual"))


def _add(x: Tensor, y: Tensor, layer: Layer, norm: str, name: str) -> Tensor:
    """x + y. y is normed in families that norm after a block, the sum in others; y is scaled if the file says so."""
    norms = layer.family.norms
    if norms in ("post", "both"):
        y = layer.norm(y, norm)
    total: Tensor = F.add(x, _scaled(y, layer.config.residual_scale), name=layer.name(name))
    return layer.norm(total, norm) if norms == "sum" else total


def _mixed(h: Tensor, layer: Layer, cache: LayerMemory) -> Tensor:
    """The token mixing of a layer: attention, a recurrence, or both."""
    if isinstance(cache, SideBySide):
        found = (_mixed(h, layer, part) for part in (cache.attention, cache.states))
        return F.add(*found, name=layer.name("mixed"))
    if isinstance(cache, Mapping | WholeRecurrence):
        return recurrent(h, layer, cache)
    return latent_attention(h, layer, cache) if layer.family.latent else attention(h, layer, cache)


def _scaled(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1 else F.multiply(x, scale)


def with_images(x: Tensor, batch: TokenBatch) -> Tensor:
    """x [T, dim] with the embeddings of the tokens of images; x itself without images."""
    if not batch.images:
        return x
    y: Tensor = F.where(_is_image(batch), batch.images[0], x)
    return y


def after_layer(x: Tensor, layer: int, batch: TokenBatch) -> Tensor:
    """x [T, dim], plus what images add after the first layers (DeepStack; Meng et al., 2024)."""
    if layer + 1 >= len(batch.images):
        return x
    added = F.where(_is_image(batch), batch.images[layer + 1], 0.0)
    return F.add(x, added, name=f"blk.{layer}.deepstack")


def _is_image(batch: TokenBatch) -> Tensor:
    mask = batch.is_image
    assert mask is not None
    return mask.reshape((mask.shape[0], 1))
