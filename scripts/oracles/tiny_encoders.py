"""Tiny random encoders, made and run by transformers, as GGUF files as llama.cpp's converter writes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

WORDS = ["hello", "world", "a", "b", "c", "the", "cat", "sat", "on", "mat", "!", "un", "known"]
PIECES = ["lo", "s", "ing", "ly", "d", "e"]
TEXTS = ["Hello world!", "The cat sat on the mat", "a", "unknown words, unknowningly sats on a b c the cat"]
NOMIC = {
    "post_attention_layernorm": "attn_output_norm",
    "post_mlp_layernorm": "layer_output_norm",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}
POOLINGS = {"mean": 1, "cls": 2}


@dataclass(frozen=True)
class TinyEncoder:
    """One encoder to make; `options` are more arguments of its config, `agreement` is how far llama.cpp may be."""

    name: str
    family: str
    arch: str
    pooling: str
    agreement: float
    options: dict[str, Any] = field(default_factory=dict)


ENCODERS = (
    TinyEncoder("bert", "Bert", "bert", "cls", 1e-3),  # its gelu is a table in 16 bits
    TinyEncoder(
        "nomic-bert",
        "NomicBert",
        "nomic-bert",
        "mean",
        1e-5,
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
    ),
)


def vocabulary() -> list[str]:
    """The tokens as transformers spells them."""
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *(f"##{piece}" for piece in PIECES)]


def build(model: TinyEncoder, seed: int) -> Any:
    """The transformers model with every parameter drawn at random, to values that bfloat16 represents."""
    config = getattr(transformers, f"{model.family}Config")(
        vocab_size=len(vocabulary()),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        type_vocab_size=2,
        layer_norm_eps=1e-6,
        attn_implementation="eager",
        **model.options,
    )
    network = getattr(transformers, f"{model.family}Model")(config).eval().float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if "orm" in name and name.endswith("weight"):
                values = values.abs() + 0.5
            elif name.endswith("bias") or "token_type" in name:
                values = values * 0.3  # else the vectors of all texts are much the same
            elif name.endswith("weight") and "embed" not in name:
                values = values * 1.6 / math.sqrt(parameter.shape[-1])
            parameter.copy_(values.bfloat16().float())
    return network


def vectors(model: TinyEncoder, network: Any, ids: list[list[int]]) -> np.ndarray:
    """The pooled vectors, float32 [n, dim], of length 1, computed in float64."""
    network = network.double()
    made = []
    with torch.no_grad():
        for one in ids:
            hidden = network(torch.tensor([one])).last_hidden_state[0].numpy()
            vector = hidden[0] if model.pooling == "cls" else hidden.mean(axis=0)
            made.append(vector / np.linalg.norm(vector))
    return np.array(made, np.float32)


def write_gguf(model: TinyEncoder, network: Any, path: Path) -> None:
    """The model as an F32 GGUF file at `path`."""
    writer = gguf.GGUFWriter(path, model.arch)
    writer.add_name(f"tiny random {model.name}")
    writer.add_context_length(64)
    writer.add_block_count(2)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_layer_norm_eps(1e-6)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(POOLINGS[model.pooling]))
    if "rope_parameters" in model.options:
        writer.add_rope_freq_base(model.options["rope_parameters"]["rope_theta"])
    writer.add_tokenizer_model("bert")
    tokens = [t if t.startswith("[") else t[2:] if t.startswith("##") else f"▁{t}" for t in vocabulary()]
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 5 + [1] * (len(tokens) - 5))
    writer.add_token_type_count(2)
    for name, number in (("bos", 2), ("unk", 1), ("sep", 3), ("pad", 0), ("mask", 4)):
        getattr(writer, f"add_{name}_token_id")(number)
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == model.arch)
    names, joined = gguf.get_tensor_name_map(arch, 2), {}
    for name, parameter in network.state_dict().items():
        values = parameter.float().numpy()
        if "position_ids" in name or "pooler" in name or "inv_freq" in name:
            continue
        if model.arch == "nomic-bert" and any(f"{part}_proj" in name for part in "qkv"):
            joined[name] = values
            continue
        parts = name.split(".")
        found = f"blk.{parts[1]}.{NOMIC[parts[-2]]}.{parts[-1]}" if parts[-2] in NOMIC else None
        found = found or names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise ValueError(f"{model.name}: no GGUF name for {name}")
        writer.add_tensor(found, np.ascontiguousarray(values))
    for layer in range(2 if joined else 0):
        rows = [v for part in "qkv" for n, v in joined.items() if f".{layer}." in n and f"{part}_proj" in n]
        writer.add_tensor(f"blk.{layer}.attn_qkv.weight", np.concatenate(rows))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
