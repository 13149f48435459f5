"""Names, keys and tensors of encoders: BERT, XLM-R, Nomic, ModernBERT, Jina; and of rerankers made of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from camshaft.formats.bits import Floats
from camshaft.formats.safetensors_folder import read_json
from camshaft.models.convert.hub_config import HubConfig

Change: TypeAlias = Callable[[Floats], Floats]
MEAN, CLS, LAST, RANK = 1, 2, 3, 4  # GGUF's poolings
_RERANKER = "ForSequenceClassification"
# Heads of a reranker, which other models do not use.
_HEADS = re.compile(r"(.+\.)?(pooler|cls|lm_head|head|decoder|classifier)\..+")
_IDS = re.compile(r".*position_ids|.*\.lora_[AB]")
TOP = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "emb_ln": "token_embd_norm",
    "embeddings.tok_embeddings": "token_embd",
    "embeddings.norm": "token_embd_norm",
    "final_norm": "output_norm",
    "pooler.dense": "cls",
    "classifier.dense": "cls",
    "head.dense": "cls",
    "head.norm": "cls.norm",
    "classifier": "cls.output",
    "classifier.out_proj": "cls.output",
}
LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "mixer.Wqkv": "attn_qkv",
    "mixer.out_proj": "attn_output",
    "attn.Wo": "attn_output",
    "norm1": "attn_output_norm",
    "norm2": "layer_output_norm",
    "post_attention_layernorm": "attn_output_norm",
    "post_mlp_layernorm": "layer_output_norm",
    "mlp.fc11": "ffn_up",
    "mlp.fc12": "ffn_gate",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_proj": "ffn_gate",
    "mlp.down_proj": "ffn_down",
    "attn_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "mlp.Wi": "ffn_up",
    "mlp.Wo": "ffn_down",
    "mlp.gated_layers": "ffn_up",
    "mlp.wo": "ffn_down",
    "mlp.layernorm": "layer_output_norm",
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    "self_attn.o_proj": "attn_output",
}
# The tensors that are one in families with fused q, k and v, in order.
JOINED = {f"attn_{part}": i for i, part in enumerate("qkv")}


def is_unused(name: str, config: HubConfig) -> bool:
    """Whether a tensor is of a head that the model, as an encoder, does not have."""
    return _IDS.fullmatch(name) is not None or (not is_reranker(config) and _HEADS.fullmatch(name) is not None)


def is_reranker(config: HubConfig) -> bool:
    """Whether the model scores pairs of texts."""
    return config.architecture.endswith(_RERANKER)


def encoder_changes(name: str, config: HubConfig) -> Iterator[tuple[str, Change]]:
    """Positions of XLM-R begin behind that of the padding."""
    if name == "position_embd.weight":
        yield name, lambda values: values[_offset(config) :]


def _offset(config: HubConfig) -> int:
    has_offset = "oberta" in config.architecture and not _rotates(config.values)
    return int(config.number("pad_token_id", 1)) + 1 if has_offset else 0


def _rotates(values: Mapping[str, Any]) -> bool:
    return values.get("position_embedding_type") == "rotary"


def bert_name(values: Mapping[str, Any], path: str) -> str:
    """The GGUF architecture: jina-embeddings-v3's config names XLM-R's class."""
    return "jina-bert-v3" if _rotates(values) else "bert"


def plain_name(name: str) -> str:
    """A tensor's name without that of a parametrization, of which it is the original."""
    return name.replace(".parametrizations.weight.original", ".weight")


def encoder_keys(config: HubConfig) -> dict[str, Any]:
    """Returns the metadata that encoders have besides decoders' keys."""
    keys: dict[str, Any] = {"attention.causal": False, "context_length": config.size("context") - _offset(config)}
    if is_reranker(config):
        keys["pooling_type"] = RANK
    return keys


def modern_bert_keys(config: HubConfig) -> dict[str, Any]:
    """The window, every how many layers there is none, and both rotations; how a reranker pools."""
    kinds, given = config.get("layer_types"), config.get("rope_parameters")
    full = [i for i, kind in enumerate(kinds) if kind == "full_attention"] if isinstance(kinds, list) else []
    every = config.size("global_attn_every_n_layers", full[1] if len(full) > 1 else 3)
    named = given if isinstance(given, dict) else {}
    full_theta, local_theta = (
        config.checked("rope_theta", named[kind].get("rope_theta", usual))
        if isinstance(named.get(kind), dict)
        else config.number(name, usual)
        for kind, name, usual in (
            ("full_attention", "global_rope_theta", 160000.0),
            ("sliding_attention", "local_rope_theta", 10000.0),
        )
    )
    keys: dict[str, Any] = {
        "attention.sliding_window": config.size("local_attention", 128),
        "attention.sliding_window_pattern": every,
        "rope.freq_base": float(full_theta),
        "rope.freq_base_swa": float(local_theta),
    }
    if is_reranker(config):
        keys["classifier.pooling_type"] = MEAN if config.get("classifier_pooling") == "mean" else CLS
    return keys


def pooling_keys(folder: Path, config: HubConfig) -> dict[str, int]:
    """How vectors of tokens become one of the text, as the folder's modules.json and the file of its pooling say."""
    path = folder / "1_Pooling" / "config.json"
    if is_reranker(config) or not path.is_file():
        return {}
    given: Mapping[str, Any] = read_json(path)
    modes = {"pooling_mode_cls_token": CLS, "pooling_mode_mean_tokens": MEAN, "pooling_mode_lasttoken": LAST}
    found = next((kind for name, kind in modes.items() if given.get(name) is True), None)
    return {} if found is None else {"pooling_type": found}
