"""ModelConfig: a transformer's dimensions and options, read from a GGUF file's metadata and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown_value
from camshaft.models.configs.experts import Experts, read_experts
from camshaft.models.configs.latent import Latent, read_latent, score_magnitude
from camshaft.models.configs.recurrent import (
    FEED_FORWARD,
    Recurrent,
    kv_heads,
    layer_widths,
    most_heads,
    read_recurrent,
)
from camshaft.models.families import FAMILIES, Family, family_name
from camshaft.models.file_keys import Keys
from camshaft.models.layer_options import (
    LayerOptions,
    Streams,
    Xielu,
    count_layers,
    read_layers,
    read_streams,
    read_xielu,
    some_layers,
)
from camshaft.text.vocabulary import vocabulary_size

_ORIGINAL_CONTEXT = "rope.scaling.original_context_length"
# GGUF's numbers of poolings; rank is that of rerankers.
POOLINGS = ("", "mean", "cls", "last", "rank")


@dataclass(frozen=True)
class ModelConfig:
    """Sizes in elements. `rope_dim` is the number of rotated elements per head; `context_length` that of the training; no text
    is longer if `is_bounded`.

    The scores of position p are multiplied by 1 + temperature_scale ln(1 + floor(p / temperature_context)), of families with a
    temperature in layers that do not rotate alone, where positions count from 1.
    `pooling`: how a text's vector comes from its tokens', empty where the file does not say; that of a reranker of encoders is
    `classifier_pooling`. `n_types` kinds of tokens have embeddings. `window_theta` is the rotation base of the table
    'rope_window', `window_rope_dim` its elements (0: as many). `per_layer_dim`: the width of each layer's own embeddings of
    tokens. `xielu`: the activations of layers that have xIELU. Layers are `own_layers` (0: all) in
    turn, with the last norm between where it `norms_loops`. Scales multiply; softcaps and `qkv_clamp` of 0 do nothing.
    """

    architecture: str
    n_layers: int
    dim: int
    ffn_dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rope_dim: int
    rope_theta: float
    norm_eps: float
    vocab_size: int
    context_length: int
    layers: tuple[LayerOptions, ...]
    window_theta: float
    attention_scale: float
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    experts: Experts | None = None
    recurrent: Recurrent | None = None
    parallel: bool = False
    pooling: str = ""
    classifier_pooling: str = ""
    n_types: int = 0
    temperature_scale: float = 0.0
    temperature_context: int = 1
    latent: Latent | None = None
    window_rope_dim: int = 0
    per_layer_dim: int = 0
    streams: Streams | None = None
    qkv_clamp: float = 0.0
    sections: tuple[int, ...] = ()
    deepstack: int = 0
    xielu: tuple[Xielu, ...] = ()
    is_bounded: bool = False
    own_layers: int = 0
    norms_loops: bool = False

    def of_layer(self, layer: int) -> ModelConfig:
        """The config with the layer's own sizes."""
        sizes = self.layers[layer].sizes
        return self if sizes is None else replace(self, **asdict(sizes))


def read_config(
    metadata: Mapping[str, Any], architecture: str | None = None, vocab_size: int | None = None
) -> ModelConfig:
    """Read the dimensions, of the file's architecture and tokens unless these are given. Raises ModelError, naming the key, for
    a missing or impossible value."""
    architecture = architecture or family_name(metadata)
    vocab_size = vocabulary_size(metadata) if vocab_size is None else vocab_size
    keys, family = Keys(metadata, architecture), FAMILIES[architecture]
    dim, n_layers = keys.size("embedding_length"), count_layers(keys, family)
    n_heads = most_heads(keys) if family.attention else 1
    latent = read_latent(keys, dim // n_heads) if family.latent else None
    head_dim = keys.size("attention.key_length", dim // n_heads if dim % n_heads == 0 else None)
    head_dim = latent.rank + latent.rope if latent else head_dim
    theta = keys.positive("rope.freq_base", 10000.0)
    divisor = dim / n_heads if n_layers == family.query_scale_layers else latent.key if latent else head_dim
    scale = family.score_scale or divisor**-0.5 * (score_magnitude(keys) ** 2 if latent else 1.0)
    config = ModelConfig(
        architecture=architecture,
        n_layers=n_layers,
        dim=dim,
        ffn_dim=_ffn_dim(keys, family, n_layers),
        n_heads=n_heads,
        n_kv_heads=max(kv_heads(keys, family, n_layers, n_heads)) if family.attention and not latent else 1,
        head_dim=head_dim,
        rope_dim=keys.size("rope.dimension_count", head_dim),
        rope_theta=theta,
        norm_eps=keys.positive(_epsilon(keys, family)),
        vocab_size=vocab_size,
        context_length=_context(keys, family),
        is_bounded=family.learned_positions or family.indexed,
        layers=read_layers(keys, family, n_layers, head_dim),
        window_theta=keys.positive("rope.freq_base_swa", family.window_theta or theta),
        attention_scale=keys.positive(
            "attention.output_scale" if family.scales == "grok" else "attention.scale", scale
        ),
        latent=latent,
    )
    config = _with_parts(_with_scales(config, keys, family), keys, family)
    if family.attention:
        _check(config)
    return config


def _with_scales(config: ModelConfig, keys: Keys, family: Family) -> ModelConfig:
    """The config with what numbers are multiplied by or limited to."""
    usual = {
        "": (1.0, 1.0, 1.0),
        "minicpm": (12.0, 1.4 / math.sqrt(config.n_layers), config.dim / 256),
        "grok": (78.38367176906169, 1.0, 3**-0.5),
    }[family.scales]
    of_logits = keys.positive("logit_scale", usual[2])
    by_dim = family.embedding_scale == "dim"
    temperature = keys.at_least_0("attention.temperature_scale", family.temperature)
    period = ("attention.temperature_length", 8192) if family.temperature else (_ORIGINAL_CONTEXT, None)
    return replace(
        config,
        attention_softcap=keys.at_least_0("attn_logit_softcapping", family.softcaps[0]),
        logit_softcap=keys.at_least_0("final_logit_softcapping", family.softcaps[1]),
        embedding_scale=math.sqrt(config.dim) if by_dim else keys.positive("embedding_scale", usual[0]),
        residual_scale=keys.positive("residual_scale", usual[1]),
        logit_scale=of_logits if family.multiplies_logits else 1 / of_logits,
        temperature_scale=temperature,
        temperature_context=keys.size(*period) if temperature else 1,
        qkv_clamp=keys.at_least_0("attention.clamp_kqv", 0.0),
    )


def _with_parts(config: ModelConfig, keys: Keys, family: Family) -> ModelConfig:
    """The config with what only some families have."""
    activation = keys.metadata.get(f"{keys.architecture}.hidden_activation", "gelu")
    if family.full_first and activation != "gelu":
        raise ModelError(f"the key '{config.architecture}.hidden_activation' is {shown_value(activation)}; wanted gelu")
    return replace(
        config,
        experts=read_experts(keys, family, config.n_layers, config.vocab_size),
        recurrent=read_recurrent(keys, family, config.dim),
        parallel=keys.flag("use_parallel_residual", family.parallel),
        pooling=_pooling(keys, "pooling_type", 0),
        classifier_pooling=_pooling(keys, "classifier.pooling_type", 1 if family.full_first else 2),
        n_types=_token_types(keys.metadata) if family.encoder else 0,
        window_rope_dim=keys.size("rope.dimension_count_swa", config.rope_dim) if family.layer_sizes else 0,
        sections=_sections(keys, config.rope_dim) if family.axes else (),
        deepstack=some_layers(keys, "n_deepstack_layers", config.n_layers) if family.axes else 0,
        per_layer_dim=keys.count("embedding_length_per_layer_input") if family.per_layer else 0,
        own_layers=config.n_layers // keys.size("num_loops", 1) if family.loops else 0,
        norms_loops=family.loops and not keys.flag("skip_loop_final_norm", False),
        xielu=read_xielu(keys.metadata, config.n_layers) if family.activation == "xielu" else (),
        streams=read_streams(keys, config.n_layers) if family.builder == "gemma3n" else None,
    )


def _context(keys: Keys, family: Family) -> int:
    """The tokens of the training; of families with an index those up to which a token sees all before it."""
    n = keys.size("context_length")
    return min(n, keys.size("attention.indexer.top_k")) if family.indexed else n


def _ffn_dim(keys: Keys, family: Family, n_layers: int) -> int:
    """The width of the widest feed-forward; 0 in families without one."""
    width = max(layer_widths(keys, family, n_layers)) if family.feed_forward else 0
    return width // 2 if family.halves_width else width


def _epsilon(keys: Keys, family: Family) -> str:
    """The key of the norms' epsilon; some files have that of the other kind of norm."""
    names = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
    own, other = names if family.norm == "rms" else names[::-1]
    has_own, has_other = (f"{keys.architecture}.{name}" in keys.metadata for name in (own, other))
    return other if has_other and not has_own else own


def _pooling(keys: Keys, key: str, default: int) -> str:
    """How vectors of tokens become one of the text."""
    name = f"{keys.architecture}.{key}"
    kind = keys.metadata.get(name, default)
    if type(kind) is not int or not 0 <= kind < len(POOLINGS):
        raise ModelError(f"the key {name!r} is {shown_value(kind)}; wanted an integer from 0 to {len(POOLINGS) - 1}")
    return POOLINGS[kind]


def _token_types(metadata: Mapping[str, Any]) -> int:
    n = metadata.get("tokenizer.ggml.token_type_count", 0)
    if type(n) is not int or not 0 <= n < 2**31:
        raise ModelError(
            f"the key 'tokenizer.ggml.token_type_count' is {shown_value(n)}; wanted an integer of 0 or more"
        )
    return n


def _sections(keys: Keys, rope_dim: int) -> tuple[int, ...]:
    """The pairs of each axis; none where the file does not say, which then sees no images."""
    name = f"{keys.architecture}.rope.dimension_sections"
    value = keys.metadata.get(name, [])
    listed = value.tolist() if isinstance(value, np.ndarray) else value
    good = isinstance(listed, list | tuple) and all(type(n) is int and n >= 0 for n in listed)
    if not good or (listed and (len(listed) not in (3, 4) or any(listed[3:]) or 2 * sum(listed) != rope_dim)):
        raise ModelError(
            f"the key {name!r} is {shown_value(value)}; wanted three numbers of pairs, {rope_dim // 2} in all"
        )
    return tuple(listed[:3])


def _check(config: ModelConfig) -> None:
    having = [n for n, options in enumerate(config.layers) if options.kind != FEED_FORWARD]
    for layer in {config.of_layer(n) for n in having}:
        if not layer.n_kv_heads or layer.n_heads % layer.n_kv_heads:
            raise ModelError(
                f"{layer.n_heads} heads over {layer.n_kv_heads} key-value heads; wanted a multiple of the key-value heads"
            )
    head_dims = {bool(options.window): config.of_layer(n).head_dim for n, options in enumerate(config.layers)}
    _check_rotation("rope.dimension_count", config.rope_dim, head_dims.get(False, config.head_dim))
    if config.window_rope_dim:
        _check_rotation("rope.dimension_count_swa", config.window_rope_dim, head_dims.get(True, config.head_dim))


def _check_rotation(key: str, rope_dim: int, head_dim: int) -> None:
    if rope_dim > head_dim or rope_dim % 2:
        raise ModelError(f"{key} is {rope_dim}; wanted an even number up to {head_dim}")
