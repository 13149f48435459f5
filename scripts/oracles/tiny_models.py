"""Tiny random models of each family: made and run by transformers, written as llama.cpp's converter writes them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

N_LAYERS = 2
N_TOKENS = 24
ORIGINAL_CONTEXT = 32


@dataclass(frozen=True)
class TinyModel:
    """One model to make: a transformers class, sizes, and rope parameters in the words of transformers."""

    name: str
    family: str  # Llama, Mistral, Qwen2, Qwen3
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool = False
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default"})
    theta: float = 10000.0

    @property
    def arch(self) -> str:
        return "llama" if self.family in ("Llama", "Mistral") else self.family.lower()

    @property
    def permutes(self) -> bool:
        """Whether q and k rows go from halves to neighbours on the way to GGUF."""
        return self.arch == "llama"


LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0}
OLD = {"original_max_position_embeddings": ORIGINAL_CONTEXT}

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

MODELS = (
    TinyModel("llama", "Llama", 64, 96, heads=4, kv_heads=2, head_dim=16),
    TinyModel("llama-tied", "Llama", 32, 64, heads=4, kv_heads=1, head_dim=16, tied=True),
    TinyModel(
        "llama-linear", "Llama", 32, 96, heads=2, kv_heads=2, head_dim=16, rope={"rope_type": "linear", "factor": 4.0}
    ),
    TinyModel(
        "llama3-rope", "Llama", 32, 64, heads=2, kv_heads=1, head_dim=32, rope={**LLAMA3_ROPE, **OLD}, theta=500.0
    ),
    TinyModel("llama-yarn", "Llama", 32, 64, heads=2, kv_heads=1, head_dim=32, rope={**YARN_ROPE, **OLD}),
    TinyModel("mistral", "Mistral", 32, 64, heads=6, kv_heads=2, head_dim=16, theta=1000.0),
    TinyModel("qwen2", "Qwen2", 64, 32, heads=4, kv_heads=2, head_dim=16),
    TinyModel("qwen2-yarn", "Qwen2", 32, 96, heads=2, kv_heads=1, head_dim=16, tied=True, rope={**YARN_ROPE, **OLD}),
    TinyModel("qwen3", "Qwen3", 32, 64, heads=4, kv_heads=2, head_dim=32, tied=True, theta=1e6),
)


def make_tokens() -> tuple[list[str], list[int], list[str]]:
    """A byte-level vocabulary of odd size: (tokens, types, merges)."""
    alphabet = [chr(c) for c in gguf_byte_alphabet()]
    merges = ["Ġ t", "h e", "i n", "Ġt he", "Ġ a", "a n", "e r", "o n", "r e", "Ġ w", "in g", "Ġa n", "an d", "Ċ Ċ"]
    merged = list(dict.fromkeys(m.replace(" ", "") for m in merges))
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*special, *alphabet, *merged]
    types = [3] * len(special) + [1] * (len(tokens) - len(special))
    return tokens, types, merges


def gguf_byte_alphabet() -> list[int]:
    """Code points that stand for bytes 0 to 255, as GPT-2 chose them."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [b if b in printable else 256 + sum(1 for c in range(b) if c not in printable) for b in range(256)]


N_VOCAB = len(make_tokens()[0])


def build(model: TinyModel, seed: int) -> Any:
    """The transformers model with every parameter drawn at random, to values that bfloat16 represents (they pack well)."""
    config = getattr(transformers, f"{model.family}Config")(
        vocab_size=N_VOCAB,
        hidden_size=model.hidden,
        intermediate_size=model.ffn,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        tie_word_embeddings=model.tied,
        rope_parameters={**model.rope, "rope_theta": model.theta},
        attn_implementation="eager",
        **({"sliding_window": None} if model.family == "Mistral" else {}),
    )
    network = getattr(transformers, f"{model.family}ForCausalLM")(config).eval().float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(_draw(name, parameter.shape, model, generator).bfloat16().float())
    return network


def _draw(name: str, shape: torch.Size, model: TinyModel, generator: torch.Generator) -> torch.Tensor:
    if "norm" in name:
        return torch.rand(shape, generator=generator) + 0.5
    values = torch.randn(shape, generator=generator)
    if name.endswith("bias"):
        return values
    if "embed_tokens" in name:
        return values * (0.4 if model.tied else 1.0)
    gain = 1.6 if "q_proj" in name or "k_proj" in name or "lm_head" in name else 1.0
    return values * gain / math.sqrt(shape[-1])


def sequence(seed: int) -> list[int]:
    """N_TOKENS token ids, drawn over the whole vocabulary."""
    return [int(i) for i in np.random.default_rng(seed).integers(0, N_VOCAB, N_TOKENS)]


def logits(network: Any, tokens: list[int]) -> np.ndarray:
    """The logits of every position, float32 [n, vocab], computed in float64."""
    with torch.no_grad():
        return network.double()(torch.tensor([tokens])).logits[0].numpy().astype(np.float32)


def write_gguf(model: TinyModel, network: Any, path: Path) -> None:
    """The model as an F32 GGUF file at `path`."""
    writer = gguf.GGUFWriter(path, model.arch)
    _write_sizes(writer, model)
    _write_rope(writer, model)
    _write_vocabulary(writer, model)
    for name, values in tensors(model, network):
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_sizes(writer: gguf.GGUFWriter, model: TinyModel) -> None:
    writer.add_name(f"tiny random {model.name}")
    writer.add_context_length(512)
    writer.add_block_count(N_LAYERS)
    writer.add_embedding_length(model.hidden)
    writer.add_feed_forward_length(model.ffn)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_key_length(model.head_dim)
    writer.add_value_length(model.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if model.arch == "llama":
        writer.add_vocab_size(N_VOCAB)
        writer.add_rope_dimension_count(model.head_dim)


def _write_rope(writer: gguf.GGUFWriter, model: TinyModel) -> None:
    writer.add_rope_freq_base(model.theta)
    kind = model.rope["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(model.rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(ORIGINAL_CONTEXT)


def _write_vocabulary(writer: gguf.GGUFWriter, model: TinyModel) -> None:
    tokens, types, merges = make_tokens()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if model.arch.startswith("qwen") else "smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def tensors(model: TinyModel, network: Any) -> Iterator[tuple[str, np.ndarray]]:
    """(GGUF name, float32 values) of every tensor of the file."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[model.arch.upper()], N_LAYERS)
    for name, parameter in network.state_dict().items():
        if model.tied and name == "lm_head.weight":
            continue
        values = parameter.float().numpy()
        if model.permutes and (".q_proj." in name or ".k_proj." in name):
            values = _neighbours(values, model.heads if ".q_proj." in name else model.kv_heads)
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise ValueError(f"{model.name}: no GGUF name for {name}")
        yield found, values
    if model.rope["rope_type"] == "llama3":
        yield "rope_freqs.weight", llama3_factors(model)


def _neighbours(values: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows i and i + d/2 of each head side by side, as the interleaved rotation of llama.cpp wants them."""
    return (
        values.reshape(n_heads, 2, values.shape[0] // n_heads // 2, *values.shape[1:])
        .swapaxes(1, 2)
        .reshape(values.shape)
    )


def llama3_factors(model: TinyModel) -> np.ndarray:
    """What each rotation frequency is divided by: 1 for short waves, `factor` for long ones, smooth in between."""
    rope = model.rope
    frequency = model.theta ** -(np.arange(0, model.head_dim, 2) / model.head_dim)
    waves = ORIGINAL_CONTEXT * frequency / (2 * math.pi)
    smooth = np.clip((waves - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"]), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)
