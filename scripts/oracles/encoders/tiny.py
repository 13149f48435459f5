"""Tiny random encoders and rerankers, made and run by transformers, as GGUF files as llama.cpp's converter writes them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from scripts.oracles import llama
from scripts.oracles.encoders.plain import PlainEncoder, draw
from scripts.oracles.encoders.rows import ENCODERS as ENCODERS
from scripts.oracles.encoders.rows import (
    HEADS,
    NOMIC,
    PAIRS,
    POOLINGS,
    TEXTS,
    WITHOUT_TYPES,
    TinyEncoder,
    vocabulary,
)
from scripts.oracles.tiny.files import finish
from tests.support.models.vocabularies import unigram, write_metadata


def build(model: TinyEncoder, seed: int) -> Any:
    """The transformers model with every parameter drawn at random, to values that bfloat16 represents."""
    if not model.family:
        return draw(model.arch, model.n_tokens, model.dim, seed, model.head)
    sizes = {
        "vocab_size": model.n_tokens,
        "hidden_size": model.dim,
        "intermediate_size": 2 * model.dim,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": model.dim // model.head,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-6,
        "attn_implementation": "eager",
    }
    config = getattr(transformers, f"{model.family.removesuffix('Encoder')}Config")(**sizes | model.options)
    kind = "ForSequenceClassification" if model.is_reranker else "Model"
    network = getattr(transformers, f"{model.family}{kind}")(config).eval().float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if "orm" in name and name.endswith("weight"):
                values = values.abs() + 0.5
            elif "relative_attention_bias" in name:
                values = values * 2
            elif name.endswith("bias") or "token_type" in name:
                values = values * 0.3  # else the vectors of all texts are much the same
            elif name.endswith("weight") and "embed" not in name:
                values = values * 1.6 / math.sqrt(parameter.shape[-1])
            parameter.copy_(values.bfloat16().float())
    return network


def vectors(model: TinyEncoder, network: Any, ids: list[list[int]]) -> np.ndarray:
    """The pooled vectors, float32 [n, dim], of length 1, computed in float64."""
    made = []
    for one in ids:
        hidden = _hidden(network, one)
        vector = hidden[0] if model.pooling == "cls" else hidden.mean(axis=0)
        for weight in dense_layers(model):
            vector = weight.astype(np.float64) @ vector
        made.append(vector / np.linalg.norm(vector))
    return np.array(made, np.float32)


def _hidden(network: Any, ids: list[int]) -> np.ndarray:
    """The last layer's results, float64 [tokens, dim]."""
    if isinstance(network, PlainEncoder):
        return network.hidden(ids)
    with torch.no_grad():
        return network.double()(torch.tensor([ids])).last_hidden_state[0].numpy()


def dense_layers(model: TinyEncoder) -> list[np.ndarray]:
    """The layers after pooling of EmbeddingGemma: dense_2 and dense_3."""
    if model.arch != "gemma-embedding":
        return []
    rng, inner = np.random.default_rng(7), 3 * model.dim // 2
    bits = (
        rng.normal(size=shape).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        for shape in ((inner, model.dim), (model.dim, inner))
    )
    return [each.view(np.float32) for each in bits]


def scores(network: Any, pairs: list[tuple[list[int], int]], *, types: bool = True) -> np.ndarray:
    """The logits of pairs as token ids with the number of the first text's, float32 [n], computed in float64.

    Without `types` all tokens are of the first one, as llama.cpp has it."""
    network, made = network.double(), []
    with torch.no_grad():
        for ids, first in pairs:
            several = getattr(network.config, "type_vocab_size", 1) > 1
            kinds = [int(types and several and i >= first) for i in range(len(ids))]
            given = {"token_type_ids": torch.tensor([kinds])} if hasattr(network.config, "type_vocab_size") else {}
            made.append(network(torch.tensor([ids]), **given).logits[0, 0].item())
    return np.array(made, np.float32)


def compared(model: TinyEncoder, network: Any, path: Path) -> tuple[dict[str, np.ndarray], float]:
    """What transformers says of TEXTS or PAIRS, by name, and how far llama.cpp is from it on the file of the model."""
    if not model.is_reranker:
        tokens, theirs = llama.vectors(path, TEXTS)
        wanted = vectors(model, network, tokens)
        return {"vectors": wanted}, float(np.abs(theirs - wanted).max())
    pairs = tokenized_pairs(model, llama.Vocabulary(path))
    theirs = llama.scores(path, [ids for ids, _ in pairs])
    difference = float(np.abs(theirs - scores(network, pairs, types=False)).max())
    return {"scores": scores(network, pairs)}, difference


def written(model: TinyEncoder, seed: int, path: Path) -> tuple[dict[str, np.ndarray], float]:
    """Make the model's network of a seed and write its file. Returns as `compared`."""
    network = build(model, seed)
    write_gguf(model, network, path)
    return compared(model, network, path)


def tokenized_pairs(model: TinyEncoder, vocabulary: llama.Vocabulary) -> list[tuple[list[int], int]]:
    """PAIRS with the tokens around them, as llama.cpp's server has them, and the number of tokens before the second text."""
    before, between, after = model.pair
    each = [
        [vocabulary.tokenize(text.encode(), add_special=False, parse_special=False) for text in pair] for pair in PAIRS
    ]
    return [([*before, *a, *between, *b, *after], len(before + between) + len(a)) for a, b in each]


def write_gguf(model: TinyEncoder, network: Any, path: Path) -> None:
    """The model as an F32 GGUF file at `path`."""
    writer = gguf.GGUFWriter(path, model.arch)
    writer.add_name(f"tiny random {model.name}")
    writer.add_context_length(64)
    writer.add_block_count(model.n_layers)
    writer.add_embedding_length(model.dim)
    writer.add_feed_forward_length(2 * model.dim)
    writer.add_head_count(model.dim // model.head)
    (writer.add_layer_norm_rms_eps if model.arch.startswith(("gemma", "t5")) else writer.add_layer_norm_eps)(1e-6)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(POOLINGS[model.pooling]))
    if "rope_parameters" in model.options:
        writer.add_rope_freq_base(model.options["rope_parameters"]["rope_theta"])
    for key, value in model.keys.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{model.arch}.{key}", value)
    VOCABULARIES[model.tokenizer](writer, model)
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == model.arch)
    names, joined = gguf.get_tensor_name_map(arch, model.n_layers), {}
    for name, values in ({} if model.family else network.tensors).items():
        writer.add_tensor(name, values)
    for key, weight in zip(("dense_2", "dense_3"), dense_layers(model), strict=False):
        writer.add_tensor(f"{key}.weight", weight)
    for name, parameter in (network.state_dict() if model.family else {}).items():
        values = parameter.float().numpy()
        for prefix in ("bert.", "roberta.", "model."):
            name = name.removeprefix(prefix)
        if model.arch == "gemma-embedding" and "norm" in name:
            values = values + 1
        if name == "embeddings.position_embeddings.weight":
            values = values[-64:]
        if (
            name == "encoder.embed_tokens.weight"
            or "position_ids" in name
            or ("pooler" in name and not model.is_reranker)
            or "inv_freq" in name
        ):
            continue
        stem, _, last = name.rpartition(".")
        if stem in HEADS:
            writer.add_tensor(f"{HEADS[stem]}.{last}", np.ascontiguousarray(values))
            continue
        if model.arch in ("nomic-bert", "jina-bert-v3") and any(f"{part}_proj" in name for part in "qkv"):
            joined[name] = values
            continue
        parts = name.split(".")
        is_nomic = parts[-2] in NOMIC and model.arch in ("nomic-bert", "jina-bert-v3")
        found = f"blk.{parts[1]}.{NOMIC[parts[-2]]}.{parts[-1]}" if is_nomic else None
        found = found or names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise ValueError(f"{model.name}: no GGUF name for {name}")
        writer.add_tensor(found, np.ascontiguousarray(values))
    kinds = {name.rpartition(".")[2]: None for name in joined}
    for layer, kind in ((layer, kind) for layer in range(model.n_layers) for kind in kinds):
        rows = [joined[n] for part in "qkv" for n in joined if f".{layer}." in n and n.endswith(f"{part}_proj.{kind}")]
        writer.add_tensor(f"blk.{layer}.attn_qkv.{kind}", np.concatenate(rows))
    finish(writer)


def _write_word_pieces(writer: gguf.GGUFWriter, model: TinyEncoder) -> None:
    """Rerankers also have what gguf's SpecialVocab writes of a tokenizer whose pairs are [CLS] a [SEP] b [SEP]."""
    writer.add_tokenizer_model("bert")
    tokens = [t if t.startswith("[") else t[2:] if t.startswith("##") else f"▁{t}" for t in vocabulary()]
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 5 + [1] * (len(tokens) - 5))
    if model.arch not in WITHOUT_TYPES:
        writer.add_token_type_count(model.options.get("type_vocab_size", 2))
    for name, number in (("bos", 2), ("unk", 1), ("sep", 3), ("pad", 0), ("mask", 4)):
        getattr(writer, f"add_{name}_token_id")(number)
    if model.is_reranker:
        writer.add_eos_token_id(3)
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)
        writer.add_add_sep_token(False)


def _write_unigrams(writer: gguf.GGUFWriter, model: TinyEncoder) -> None:
    write_metadata(writer, unigram(add_sep_token=True))
    writer.add_token_type_count(1)


VOCABULARIES = {"bert": _write_word_pieces, "t5": _write_unigrams}
