"""Conversions of encoder-decoder models: their own names of tensors, and the keys of the file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown, shown_value
from camshaft.formats.safetensors_folder import read_json
from camshaft.models.convert.hub_config import HubConfig

Keys: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class EncoderDecoder:
    """The conversion of a model that is not a decoder of FAMILIES.

    keys: values under the architecture's prefix, of the config, its folder and the number of tokens. stems: names of tensors in
    the file, without ending, by those of transformers, where {} is a layer's number. left_out: those without a place.
    flags: more values of the tokenizer."""

    keys: Callable[[HubConfig, Path, int], Keys]
    stems: Mapping[str, str]
    left_out: tuple[str, ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)

    def names(self, sources: Iterable[str], config: HubConfig) -> Iterator[tuple[str, str]]:
        """(name in transformers, name in the file) of each tensor. Raises ModelError for one that has no place."""
        for source in sources:
            stem, _, ending = source.rpartition(".")
            numbered = re.sub(r"\.([0-9]{1,4})\.", lambda found: f".{{{found[1]}}}.", stem, count=1)
            found = self.stems.get(re.sub(r"\{[0-9]+\}", "{}", numbered))
            if stem in self.left_out:
                continue
            if found is None or ending not in ("weight", "bias"):
                raise ModelError(f"{config.path}: {shown(source)} is not a tensor that camshaft knows of this model")
            number = re.search(r"\{([0-9]+)\}", numbered)
            yield source, f"{found.format(number[1]) if number else found}.{ending}"


def _whisper_stems() -> dict[str, str]:
    ends = {"k_proj": "k", "v_proj": "v", "q_proj": "q", "out_proj": "output"}
    layer = {f"self_attn.{theirs}": f"attn_{ours}" for theirs, ours in ends.items()}
    layer |= {"self_attn_layer_norm": "attn_norm", "fc1": "ffn_up", "fc2": "ffn_down", "final_layer_norm": "ffn_norm"}
    cross = {f"encoder_attn.{theirs}": f"cross_attn_{ours}" for theirs, ours in ends.items()}
    cross |= {"encoder_attn_layer_norm": "cross_attn_norm"}
    stems = {
        "decoder.embed_tokens": "token_embd",
        "decoder.embed_positions": "dec.position_embd",
        "encoder.embed_positions": "enc.position_embd",
        "encoder.conv1": "enc.conv1",
        "encoder.conv2": "enc.conv2",
        "encoder.layer_norm": "enc.output_norm",
        "decoder.layer_norm": "dec.output_norm",
        **{f"encoder.layers.{{}}.{theirs}": f"enc.blk.{{}}.{ours}" for theirs, ours in layer.items()},
        **{f"decoder.layers.{{}}.{theirs}": f"dec.blk.{{}}.{ours}" for theirs, ours in {**layer, **cross}.items()},
    }
    return {f"model.{theirs}": ours for theirs, ours in stems.items()}


def _whisper_keys(config: HubConfig, folder: Path, n_tokens: int) -> Keys:
    for ours, theirs in (
        ("encoder_ffn_dim", "decoder_ffn_dim"),
        ("encoder_attention_heads", "decoder_attention_heads"),
    ):
        if config.size(ours) != config.size(theirs):
            raise ModelError(
                f"{config.path}: {ours} is {config.size(ours)}, {theirs} {config.size(theirs)}; wanted one size"
            )
    if config.get("activation_function", "gelu") != "gelu" or config.get("scale_embedding"):
        raise ModelError(f"{config.path}: wanted the activation gelu, and embeddings without a scale")
    keys: Keys = {
        "context_length": config.size("max_target_positions"),
        "embedding_length": config.size("d_model"),
        "feed_forward_length": config.size("encoder_ffn_dim"),
        "block_count": config.size("encoder_layers"),
        "decoder_block_count": config.size("decoder_layers"),
        "vocab_size": n_tokens,
        "attention.head_count": config.size("encoder_attention_heads"),
        "attention.layer_norm_epsilon": 1e-5,
        "audio.context_length": config.size("max_source_positions"),
        "audio.mel_count": config.size("num_mel_bins"),
    }
    return keys | _generation_keys(config, folder)


def _generation_keys(config: HubConfig, folder: Path) -> Keys:
    """Returns the keys from generation_config.json, or else config.json."""
    path = folder / "generation_config.json"
    settings = {**config.values, **(read_json(path) if path.is_file() else {})}
    multilingual = settings.get("is_multilingual", config.size("vocab_size") >= 51865)
    if not isinstance(multilingual, bool):
        raise ModelError(f"{path}: is_multilingual is {shown_value(multilingual)}; wanted true or false")
    keys: Keys = {"multilingual": multilingual}
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        ids = settings.get(name)
        if ids is None:
            continue
        if not isinstance(ids, list) or not all(type(i) is int and -1 <= i < 2**31 for i in ids):
            raise ModelError(f"{path}: {name} is {shown_value(ids)}; wanted a list of token ids")
        if -1 not in ids and ids:  # -1: those that readers choose
            keys[name] = ids
    return keys


WHISPER = EncoderDecoder(
    _whisper_keys,
    _whisper_stems(),
    left_out=("proj_out",),  # is the embedding
    flags={"add_bos_token": False, "add_eos_token": False},
)


_T5_ATTENTION = {part: f"attn_{part}" for part in "qkvo"} | {"relative_attention_bias": "attn_rel_b"}
_T5_FFN = {"wi": "ffn_up", "wi_0": "ffn_gate", "wi_1": "ffn_up", "wo": "ffn_down"}
_T5_DISTANCE, _T5_FFNS = 128, ("relu", "gated-gelu")


def _t5_stems() -> dict[str, str]:
    stems = {"shared": "token_embd", "lm_head": "output"}
    itself = {f"layer.0.SelfAttention.{theirs}": ours for theirs, ours in _T5_ATTENTION.items()}
    itself |= {"layer.0.layer_norm": "attn_norm"}
    other = {f"layer.1.EncDecAttention.{part}": f"cross_attn_{part}" for part in "qkvo"}
    other |= {"layer.1.layer_norm": "cross_attn_norm"}
    for side, place, own in (("encoder", 1, {}), ("decoder", 2, other)):
        ffn = {f"layer.{place}.DenseReluDense.{theirs}": ours for theirs, ours in _T5_FFN.items()}
        layer = {**itself, **own, **ffn, f"layer.{place}.layer_norm": "ffn_norm"}
        stems |= {f"{side}.block.{{}}.{theirs}": f"{side[:3]}.blk.{{}}.{ours}" for theirs, ours in layer.items()}
        stems[f"{side}.final_layer_norm"] = f"{side[:3]}.output_norm"
    return stems


def t5_values(values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Whether the output is the embedding: transformers 5 says of all T5 that it is, and of those with a matrix of their own that
    results are not scaled before it."""
    tied = values.get("scale_decoder_outputs", values.get("tie_word_embeddings", True))
    return {**values, "tie_word_embeddings": bool(tied)}


def _t5_keys(config: HubConfig, folder: Path, n_tokens: int) -> Keys:
    kind, farthest = (
        config.get("feed_forward_proj", "relu"),
        config.size("relative_attention_max_distance", _T5_DISTANCE),
    )
    if kind not in _T5_FFNS or farthest != _T5_DISTANCE:
        what = f"feed_forward_proj {shown_value(kind)} and relative_attention_max_distance {farthest}"
        raise ModelError(f"{config.path}: has {what}; wanted one of {', '.join(_T5_FFNS)}, and {_T5_DISTANCE}")
    return {
        "context_length": config.size("n_positions", 512),
        "embedding_length": config.size("d_model"),
        "feed_forward_length": config.size("d_ff"),
        "block_count": config.size("num_layers"),
        "decoder_block_count": config.size("num_decoder_layers", config.size("num_layers")),
        "vocab_size": n_tokens,
        "attention.head_count": config.size("num_heads"),
        "attention.key_length": config.size("d_kv"),
        "attention.value_length": config.size("d_kv"),
        "attention.layer_norm_rms_epsilon": float(config.number("layer_norm_epsilon", 1e-6)),
        "attention.relative_buckets_count": config.size("relative_attention_num_buckets", 32),
        "decoder_start_token_id": int(config.number("decoder_start_token_id", 0)),
    }


T5 = EncoderDecoder(
    _t5_keys,
    _t5_stems(),
    left_out=("encoder.embed_tokens", "decoder.embed_tokens"),  # are the embedding
    flags={"add_bos_token": False, "add_eos_token": True},
)
