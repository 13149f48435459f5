"""The tiny random encoders and rerankers: a row for each, with the options of transformers' models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from scripts.oracles.encoders.plain import N_EXPERTS, N_USED, THETA
from tests.support.models.vocabularies import unigram

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


def vocabulary() -> list[str]:
    """The tokens as transformers spells them."""
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *(f"##{piece}" for piece in PIECES)]


@dataclass(frozen=True)
class TinyEncoder:
    """One encoder to make; `options` are more arguments of its config, `agreement` is how far llama.cpp may be.

    A reranker has the pooling "rank". `tokenizer` is that of the file, `pair` the tokens before, between and after two
    texts, `keys` are further ones of its architecture.
    Without a `family` of transformers it is a PlainEncoder.
    `dim` is the width, of which the feed-forward has twice as much, `head` that of one head."""

    name: str
    family: str
    arch: str
    pooling: str
    agreement: float
    options: dict[str, Any] = field(default_factory=dict)
    dim: int = 16
    head: int = 8
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
