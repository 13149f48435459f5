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
    """What a model that is no decoder of FAMILIES adds to the file.

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
                raise ModelError(f"{config.path}: {shown(source)} is no tensor that camshaft knows of this model")
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
    """What generation_config.json says, or else config.json."""
    path = folder / "generation_config.json"
    said = {**config.values, **(read_json(path) if path.is_file() else {})}
    multilingual = said.get("is_multilingual", config.size("vocab_size") >= 51865)
    if not isinstance(multilingual, bool):
        raise ModelError(f"{path}: is_multilingual is {shown_value(multilingual)}; wanted true or false")
    keys: Keys = {"multilingual": multilingual}
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        ids = said.get(name)
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
