"""Folders in Hugging Face's layout, made of frozen tiny models: what their conversion must give is the frozen file."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.formats.gguf.file import GGUFFile, open_gguf
from camshaft.formats.safetensors import write_safetensors
from camshaft.formats.safetensors_folder import INDEX
from scripts.oracles.tiny.vocabulary import write_tokenizer
from tests.support.fixtures import tiny_model

CONTROL, USER_DEFINED = 3, 4
Array = np.ndarray[Any, Any]
_SIZES = {"max_position_embeddings": 512, "rms_norm_eps": 1e-5, "vocab_size": 273, "num_hidden_layers": 2}
_SIZES |= {"rope_theta": 10000.0}  # as transformers 4 wrote it
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention"],
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 20.0,
        "query_pre_attn_scalar": 16,
        "tie_word_embeddings": True,
    },
    "qwen3moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
}
_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_norm": "post_attention_layernorm",
}
_GEMMA = {"ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_GEMMA |= {"post_attention_norm": "post_attention_layernorm"}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def halves(values: Array, heads: int) -> Array:
    """Rows of each head from pairs to halves: transformers' order."""
    return values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _theirs(name: str, values: Array, family: str) -> Iterator[tuple[str, Array]]:
    """The tensors that transformers has for one of the file."""
    parts = name.removesuffix(".weight").split(".")
    if parts[0] != "blk":
        yield f"{_TOP[parts[0]]}.weight", values - 1 if family == "gemma2" and "norm" in name else values
        return
    prefix, role = f"model.layers.{parts[1]}", parts[2]
    if role.endswith("_exps"):
        for i, one in enumerate(values):
            yield f"{prefix}.mlp.experts.{i}.{role.split('_')[1]}_proj.weight", one
        return
    if family == "llama" and role in ("attn_q", "attn_k"):
        values = halves(values, CONFIGS[family]["num_attention_heads" if role == "attn_q" else "num_key_value_heads"])
    if family == "gemma2" and role.endswith("norm"):
        values = values - 1
    names = {**_NAMES, **(_GEMMA if family == "gemma2" else {})}
    yield f"{prefix}.{names[role]}.weight", values


def hub_folder(
    family: str, folder: Path, *, shards: int = 1, change: Callable[[dict[str, Array]], Mapping[str, Array]] = dict
) -> tuple[Path, Path]:
    """The folder of a family of CONFIGS, its tensors in so many files, and the frozen GGUF file. `change` replaces tensors."""
    frozen, made = tiny_model(family, folder), folder / f"hub-{family}"
    made.mkdir()
    with open_gguf(frozen) as file:
        found = dict(pair for t in file.tensors.values() for pair in _theirs(t.name, t.dequantize(), family))
        write_tokenizer(made, str(file.metadata["tokenizer.ggml.pre"]))
    tensors = change(found)
    (made / "config.json").write_text(json.dumps(_SIZES | CONFIGS[family]))
    names = list(tensors)
    files = {f"model-{i + 1}.safetensors": names[i::shards] for i in range(shards)}
    for name, some in files.items():
        write_safetensors(made / name, {one: tensors[one] for one in some})
    if shards > 1:
        where = {one: name for name, some in files.items() for one in some}
        (made / INDEX).write_text(json.dumps({"weight_map": where}))
    return made, frozen


def write_encoder_tokenizer(folder: Path, frozen: GGUFFile, pooling: str) -> None:
    """The vocabulary of a frozen encoder as tokenizer.json has it, and how its vectors are pooled."""
    keys = {key.removeprefix("tokenizer.ggml."): frozen.metadata[key] for key in frozen.metadata}
    tokens, types = list(keys["tokens"]), list(keys["token_type"])
    control = [i for i, kind in enumerate(types) if kind == CONTROL]
    if keys["model"] == "bert":
        spelled = [t if i in control else t[1:] if t.startswith("▁") else f"##{t}" for i, t in enumerate(tokens)]
        made: dict[str, Any] = {"model": {"type": "WordPiece", "vocab": {text: i for i, text in enumerate(spelled)}}}
    else:
        spelled = tokens
        vocab = [[t, float(s)] for t, s in zip(tokens, keys["scores"], strict=True)]
        charsmap = base64.b64encode(np.asarray(keys["precompiled_charsmap"], np.uint8).tobytes()).decode()
        made = {"model": {"type": "Unigram", "unk_id": int(keys["unknown_token_id"]), "vocab": vocab}}
        made["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    added = [i for i, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED)]
    made["added_tokens"] = [{"id": i, "content": spelled[i], "special": i in control} for i in added]
    if "add_sep_token" in keys:
        names = ["A", *["separator"] * (1 + bool(keys["add_sep_token"])), "B", "separator"]
        pair = [{"Sequence" if name in "AB" else "SpecialToken": {"id": name}} for name in names]
        made["post_processor"] = {"type": "TemplateProcessing", "pair": pair, "single": pair[:2]}
    names = {"unk": "unknown", "pad": "padding", "mask": "mask", "sep": "seperator", "bos": "bos", "eos": "eos"}
    settings = {
        f"{theirs}_token": spelled[int(keys[f"{ours}_token_id"])]
        for theirs, ours in names.items()
        if f"{ours}_token_id" in keys
    }
    settings |= {name: bool(keys[name]) for name in ("add_bos_token", "add_eos_token") if name in keys}
    (folder / "tokenizer.json").write_text(json.dumps(made))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if pooling != "rank":
        (folder / "1_Pooling").mkdir()
        mode = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}[pooling]
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({mode: True}))
