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
from camshaft.models.blocks.norms import norm
from camshaft.models.blocks.per_layer import layer_embeddings, with_layer_embedding
from camshaft.models.blocks.pictures import after_layer, with_pictures
from camshaft.models.blocks.recurrent import recurrent
from camshaft.models.blocks.transformer import LayerMemory, SideBySide, TokenBatch, logit_rows
from camshaft.models.blocks.whole import WholeRecurrence
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.families import FAMILIES, Family, gemma3n, rwkv, t5_encoder
from camshaft.models.recurrent_config import FEED_FORWARD

# The norms after attention and feed-forward: of their results, or of the sums, whose names are those of results in Grok's files.
POST_NORMS = ("post_attention_norm", "post_ffw_norm")
SUM_NORMS = ("attn_output_norm", "layer_output_norm")
# What builds the layers of families whose layers are their own.
BUILDERS: Mapping[str, Callable[[ModelConfig, Checkpoint, TokenBatch, Sequence[LayerMemory]], Tensor]] = {
    "rwkv": rwkv.hidden,
    "gemma3n": gemma3n.hidden,
    "t5": t5_encoder.hidden,
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
    block = (
        _parallel_block
        if config.parallel
        else _one_block
        if family.one_block
        else _apart
        if family.layers_apart
        else _block
    )
    if config.per_layer_dim:
        batch = replace(batch, per_layer=layer_embeddings(x, config, file, batch))
    for layer, cache in enumerate(caches):
        of_layer, mine = config.of_layer(layer), replace(batch, is_last=layer == len(caches) - 1)
        with graph_of(x).checkpoint() if layer < batch.recomputed else nullcontext():
            x = after_layer(block(x, layer, of_layer, file, mine, cache), layer, batch)
        if config.norms_loops and not mine.is_last and (layer + 1) % config.own_layers == 0:
            x = norm(x, family.output_norm, config, file)
    return x if family.norms == "sum" else norm(x, family.output_norm, config, file)


def _embedded(config: ModelConfig, file: Checkpoint, batch: TokenBatch) -> Tensor:
    """Embeddings of tokens, scaled, and of positions in families that learn them; an encoder's also of types, normed."""
    family = FAMILIES[config.architecture]
    only_output = family.one_table and "token_embd.weight" not in file
    table = file.tensor("output.weight" if only_output else "token_embd.weight", config.vocab_size, config.dim)
    x = F.embedding(batch.ids, table, to="f32")
    x = _scaled(x, config.embedding_scale)
    x = with_pictures(x, batch)
    if family.learned_positions:
        places = file.tensor("position_embd.weight", config.context_length, config.dim)
        x = F.add(x, F.embedding(batch.positions, places, to="f32"))
    if config.n_types:
        types = file.tensor("token_types.weight", config.n_types, config.dim)
        known = F.cast(types[0], to="f32") if batch.types is None else F.embedding(batch.types, types, to="f32")
        x = F.add(x, known)
    return norm(x, "token_embd_norm", config, file) if family.embedding_norm else x


def _block(
    x: Tensor, layer: int, config: ModelConfig, file: Checkpoint, batch: TokenBatch, cache: LayerMemory
) -> Tensor:
    """Attention, then a feed-forward of the sum."""
    family, prefix = FAMILIES[config.architecture], f"blk.{layer}"
    # ModernBERT's first layer has no norm of its own, after that of the embeddings.
    has_norm = family.norms in ("pre", "both") and not (
        family.embedding_norm and not layer and f"{prefix}.attn_norm.weight" not in file
    )
    h = norm(x, f"{prefix}.attn_norm", config, file) if has_norm else x
    y = _mixed(h, layer, family, config, file, batch, cache)
    x = logit_rows(x, batch, f"{prefix}.rows") if batch.is_last else x
    routed_by = x if family.routes_inputs else None
    after, last = (
        of_sum if family.norms == "sum" or f"{prefix}.{of_sum}.weight" in file else post
        for of_sum, post in zip(SUM_NORMS, POST_NORMS, strict=True)
    )
    x = _add(x, y, f"{prefix}.{after}", f"{prefix}.attn_residual", config, file)
    if not family.feed_forward:
        return x
    h = norm(x, f"{prefix}.{family.ffn_norm}", config, file) if family.norms in ("pre", "both") else x
    y = feed_forward(h, layer, family, config, file, x, routed_by)
    x = _add(x, y, f"{prefix}.{last}", f"{prefix}.ffn_residual", config, file)
    return with_layer_embedding(x, layer, config, file, batch) if family.per_layer else x


def _parallel_block(
    x: Tensor, layer: int, config: ModelConfig, file: Checkpoint, batch: TokenBatch, cache: LayerMemory
) -> Tensor:
    """Attention and feed-forward of the same input, with a norm for both, or another for one of them."""
    family, prefix = FAMILIES[config.architecture], f"blk.{layer}"
    h = norm(x, f"{prefix}.attn_norm", config, file)
    own, second = (f"{prefix}.{name}" for name in ("attn_norm_2", "ffn_norm"))
    y = norm(x, own, config, file) if f"{own}.weight" in file else h
    y = _mixed(y, layer, family, config, file, batch, cache)
    if batch.is_last:
        x, h = logit_rows(x, batch, f"{prefix}.rows"), logit_rows(h, batch, f"{prefix}.norm_rows")
    h = norm(x, second, config, file) if f"{second}.weight" in file else h
    x = F.add(x, y, name=f"{prefix}.attn_residual")
    return F.add(x, feed_forward(h, layer, family, config, file), name=f"{prefix}.ffn_residual")


def _apart(
    x: Tensor, layer: int, config: ModelConfig, file: Checkpoint, batch: TokenBatch, cache: LayerMemory
) -> Tensor:
    """Attention, or a projection, or neither; then a feed-forward or none."""
    family, prefix = FAMILIES[config.architecture], f"blk.{layer}"
    attends, given = config.layers[layer].kind != FEED_FORWARD, x
    x = logit_rows(x, batch, f"{prefix}.rows") if batch.is_last else x
    if attends or f"{prefix}.attn_output.weight" in file:
        h = norm(given if attends else x, f"{prefix}.attn_norm", config, file)
        y = (
            attention(h, layer, family, config, file, batch, cache)  # type: ignore[arg-type]  # its layers have no others
            if attends
            else file.linear(h, f"{prefix}.attn_output", config.dim)
        )
        x = F.add(x, y, name=f"{prefix}.attn_residual")
    if not config.ffn_dim:
        return x
    h = norm(x, f"{prefix}.{family.ffn_norm}", config, file)
    return F.add(x, feed_forward(h, layer, family, config, file), name=f"{prefix}.ffn_residual")


def _one_block(
    x: Tensor, layer: int, config: ModelConfig, file: Checkpoint, batch: TokenBatch, cache: LayerMemory
) -> Tensor:
    """Attention, a recurrence or a feed-forward."""
    family, prefix = FAMILIES[config.architecture], f"blk.{layer}"
    h = norm(x, f"{prefix}.attn_norm", config, file)
    x = logit_rows(x, batch, f"{prefix}.rows") if batch.is_last else x
    if config.layers[layer].kind == FEED_FORWARD:
        h = logit_rows(h, batch, f"{prefix}.norm_rows") if batch.is_last else h
        return F.add(x, feed_forward(h, layer, family, config, file), name=f"{prefix}.ffn_residual")
    return F.add(x, _mixed(h, layer, family, config, file, batch, cache), name=f"{prefix}.attn_residual")


def _add(x: Tensor, y: Tensor, name_of_norm: str, name: str, config: ModelConfig, file: Checkpoint) -> Tensor:
    """x + y, where y, or the sum, is normed in families that norm after a block, and y scaled where the file says so."""
    norms = FAMILIES[config.architecture].norms
    if norms in ("post", "both"):
        y = norm(y, name_of_norm, config, file)
    total: Tensor = F.add(x, _scaled(y, config.residual_scale), name=name)
    return norm(total, name_of_norm, config, file) if norms == "sum" else total


def _mixed(
    h: Tensor,
    layer: int,
    family: Family,
    config: ModelConfig,
    file: Checkpoint,
    batch: TokenBatch,
    cache: LayerMemory,
) -> Tensor:
    """The token mixing of a layer: attention, a recurrence, or both."""
    if isinstance(cache, SideBySide):
        found = (_mixed(h, layer, family, config, file, batch, part) for part in (cache.attention, cache.states))
        return F.add(*found, name=f"blk.{layer}.mixed")
    if isinstance(cache, Mapping | WholeRecurrence):
        return recurrent(h, layer, config, file, batch, cache)
    if family.latent:
        return latent_attention(h, layer, config, file, batch, cache)
    return attention(h, layer, family, config, file, batch, cache)


def _scaled(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1 else F.multiply(x, scale)
