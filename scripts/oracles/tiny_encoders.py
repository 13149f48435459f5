"""Tiny random encoders and rerankers, made and run by transformers, as GGUF files as llama.cpp's converter writes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from scripts.oracles import llama
from scripts.oracles.plain_encoders import N_EXPERTS, N_USED, THETA, PlainEncoder, draw
from tests.support.vocabularies import unigram, write_metadata

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
    "fc1": "ffn_up",
    "fc2": "ffn_down",
}
PAIRS = [("the cat", "The cat sat on the mat"), ("the cat", "Hello world!"), ("a", "b"), ("hello mat", "a b c " * 9)]
# A reranker's first layer, which of BERT is the pooler that encoders leave out, and its last one.
HEADS = {
    "pooler.dense": "cls",
    "classifier": "cls.output",
    "classifier.dense": "cls",
    "classifier.out_proj": "cls.output",
    "head.dense": "cls",
    "head.norm": "cls.norm",
}
WITHOUT_TYPES = ("modern-bert", "gemma-embedding")
POOLINGS = {"mean": 1, "cls": 2, "rank": 4}


@dataclass(frozen=True)
class TinyEncoder:
    """One encoder to make; `options` are more arguments of its config, `agreement` is how far llama.cpp may be.

    A reranker has the pooling "rank". `tokenizer` is that of the file, `pair` the tokens before, between and after two
    texts, `keys` are further ones of its architecture.
    Without a `family` of transformers it is a PlainEncoder.
    `dim` is the width, of which the feed-forward has twice as much."""

    name: str
    family: str
    arch: str
    pooling: str
    agreement: float
    options: dict[str, Any] = field(default_factory=dict)
    dim: int = 16
    tokenizer: str = "bert"
    pair: tuple[tuple[int, ...], ...] = ((2,), (3,), (3,))
    n_layers: int = 2
    keys: dict[str, Any] = field(default_factory=dict)

    @property
    def n_tokens(self) -> int:
        """The size of the vocabulary."""
        return len(vocabulary() if self.tokenizer == "bert" else unigram()["tokenizer.ggml.tokens"])

    @property
    def is_reranker(self) -> bool:
        """Whether it scores pairs."""
        return self.pooling == "rank"


MODERN = {
    "local_attention": 6,
    "norm_eps": 1e-6,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "cls_token_id": 2,
    "sep_token_id": 3,
}
MODERN_KEYS = {
    "attention.sliding_window": 6,
    "attention.sliding_window_pattern": 3,
    "rope.freq_base": 160000.0,
    "rope.freq_base_swa": 10000.0,
}
ENCODERS = (
    TinyEncoder("bert", "Bert", "bert", "cls", 1e-3, dim=32),  # its gelu is a table in 16 bits
    TinyEncoder(
        "nomic-bert",
        "NomicBert",
        "nomic-bert",
        "mean",
        1e-5,
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
        dim=32,
    ),
    TinyEncoder("bert-rerank", "Bert", "bert", "rank", 2e-2, {"num_labels": 1}),
    TinyEncoder(
        "xlm-r-rerank",
        "XLMRoberta",
        "bert",
        "rank",
        2e-2,
        # its positions begin after that of the padding
        {"num_labels": 1, "max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1},
        tokenizer="t5",
        pair=((0,), (2, 2), (2,)),
    ),
    TinyEncoder("modern-bert", "ModernBert", "modern-bert", "mean", 1e-2, MODERN, n_layers=4, keys=MODERN_KEYS),
    TinyEncoder(
        "modern-bert-rerank",
        "ModernBert",
        "modern-bert",
        "rank",
        2e-2,
        MODERN | {"num_labels": 1, "classifier_pooling": "mean"},
        keys=MODERN_KEYS,
    ),
    TinyEncoder(
        "jina-bert-v3",
        "JinaEmbeddingsV3",
        "jina-bert-v3",
        "mean",
        1e-2,
        {"type_vocab_size": 1},
        keys={"rope.freq_base": 20000.0},
    ),
    TinyEncoder(
        "gemma-embedding",
        "Gemma3Text",
        "gemma-embedding",
        "mean",
        1e-2,
        # a token sees 3 before it and 3 after it
        {
            "sliding_window": 6,
            "use_bidirectional_attention": True,
            "sliding_window_pattern": 3,
            "head_dim": 8,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1e-6,
            "query_pre_attn_scalar": 8,
        },
        n_layers=3,
        keys={
            "attention.sliding_window": 6,
            "attention.sliding_window_pattern": 3,
            "rope.freq_base": 1000000.0,
            "attention.key_length": 8,
            "attention.value_length": 8,
            "attention.head_count_kv": 1,
            "dense_2_feat_in": 16,
            "dense_2_feat_out": 24,
            "dense_3_feat_in": 24,
            "dense_3_feat_out": 16,
        },
    ),
    TinyEncoder("jina-bert-v2", "", "jina-bert-v2", "mean", 1e-2),
    TinyEncoder(
        "nomic-bert-moe",
        "",
        "nomic-bert-moe",
        "mean",
        1e-2,
        keys={"rope.freq_base": THETA, "moe_every_n_layers": 2, "expert_count": N_EXPERTS, "expert_used_count": N_USED},
    ),
    TinyEncoder(
        "t5encoder",
        "T5Encoder",
        "t5encoder",
        "mean",
        1e-2,
        {
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 32,
            "num_layers": 2,
            "num_heads": 2,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 128,
            "feed_forward_proj": "gated-gelu",
        },
        keys={"attention.relative_buckets_count": 8, "attention.key_length": 8, "attention.value_length": 8},
        tokenizer="t5",
    ),
)


def vocabulary() -> list[str]:
    """The tokens as transformers spells them."""
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *(f"##{piece}" for piece in PIECES)]


def build(model: TinyEncoder, seed: int) -> Any:
    """The transformers model with every parameter drawn at random, to values that bfloat16 represents."""
    if not model.family:
        return draw(model.arch, model.n_tokens, model.dim, seed)
    sizes = {
        "vocab_size": model.n_tokens,
        "hidden_size": model.dim,
        "intermediate_size": 2 * model.dim,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": model.dim // 8,
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
    rng = np.random.default_rng(7)
    bits = (
        rng.normal(size=shape).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        for shape in ((24, 16), (16, 24))
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
    writer.add_head_count(model.dim // 8)
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
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
