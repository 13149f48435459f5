"""A tiny random T5, made and run by transformers, written as llama.cpp's converter writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from scripts.oracles.tiny.files import finish

N_VOCAB, N_BUCKETS, CONTEXT = 131, 8, 160
_PIECES = ("▁the", "▁cat", "▁sat", "▁on", "▁mat", "he", "an", "in", "▁")
_ENDS = {
    "SelfAttention.q": "attn_q",
    "SelfAttention.k": "attn_k",
    "SelfAttention.v": "attn_v",
    "SelfAttention.o": "attn_o",
}
_ENDS |= {theirs.replace("Self", "EncDec"): f"cross_{ours}" for theirs, ours in _ENDS.items()}
_ENDS |= {"SelfAttention.relative_attention_bias": "attn_rel_b"}
_ENDS |= {
    f"DenseReluDense.{theirs}": ours
    for theirs, ours in (("wi_0", "ffn_gate"), ("wi_1", "ffn_up"), ("wo", "ffn_down"), ("wi", "ffn_up"))
}


def make(*, gated: bool, seed: int = 1) -> Any:
    """The network, with all parameters drawn: of version 1.1 (a gate, an output of its own), or the first one."""
    config = transformers.T5Config(
        vocab_size=N_VOCAB,
        d_model=32,
        d_kv=12,
        d_ff=40,
        num_layers=2 if gated else 1,
        num_decoder_layers=3 if gated else 1,
        num_heads=4,
        relative_attention_num_buckets=N_BUCKETS,
        feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=not gated,
        decoder_start_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    network = transformers.T5ForConditionalGeneration(config).eval()
    if gated:  # transformers 5 ties it until a file has one
        network.lm_head = torch.nn.Linear(config.d_model, N_VOCAB, bias=False)
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            plain = parameter.ndim == 1 or "bias" in name or "shared" in name
            scale = 2.0 if plain else 1.3 * parameter.shape[-1] ** -0.5
            values = torch.randn(parameter.shape, generator=drawn) * scale
            values = 1 + values / 8 if "layer_norm" in name else values
            parameter.copy_(values.to(torch.float8_e4m3fn).float())  # they pack better
    return network


def write(network: Any, path: Path) -> None:
    """The model as an F32 file."""
    config, writer = network.config, gguf.GGUFWriter(path, "t5")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_block_count(config.num_layers)
    writer.add_decoder_block_count(config.num_decoder_layers)
    writer.add_head_count(config.num_heads)
    writer.add_key_length(config.d_kv)
    writer.add_value_length(config.d_kv)
    writer.add_relative_attn_buckets_count(N_BUCKETS)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_decoder_start_token_id(config.decoder_start_token_id)
    tokens = ["<pad>", "</s>", "<unk>", *_PIECES]
    tokens += [chr(c) for c in range(33, 33 + N_VOCAB - len(tokens))]
    writer.add_tokenizer_model("t5")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0, 0.0, 0.0, *(-2.0 - i / 8 for i in range(len(tokens) - 3))])
    writer.add_token_types([3, 3, 2, *[1] * (len(tokens) - 3)])
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(True)
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
    for name, values in tensors(network):
        writer.add_tensor(name, values)
    finish(writer)


def tensors(network: Any) -> Any:
    """(GGUF name, float32 values) of each parameter."""
    for name, parameter in network.named_parameters():
        values, words = parameter.detach().numpy(), name.split(".")
        if name == "shared.weight":
            yield "token_embd.weight", values
        elif name == "lm_head.weight":
            yield "output.weight", values
        elif "final_layer_norm" in name:
            yield f"{words[0][:3]}.output_norm.weight", values
        else:
            side, _, layer, _, part, *rest = words
            norms = ("attn_norm", "ffn_norm") if side == "encoder" else ("attn_norm", "cross_attn_norm", "ffn_norm")
            role = norms[int(part)] if rest[0] == "layer_norm" else _ENDS[".".join(rest[:-1])]
            yield f"{side[:3]}.blk.{layer}.{role}.weight", values


def facts(network: Any) -> dict[str, np.ndarray[Any, Any]]:
    """What transformers says: logits of an answer to a prompt longer than the farthest bucket, and the answer that it gives."""
    rng = np.random.default_rng(4)
    prompt, answer = rng.integers(3, N_VOCAB, size=140), rng.integers(3, N_VOCAB, size=20)
    answer[0] = network.config.decoder_start_token_id
    given = torch.tensor(prompt[None])
    with torch.no_grad():
        greedy = network.generate(given, max_new_tokens=24, do_sample=False, num_beams=1, use_cache=False)[0].numpy()
        out = network.double()(input_ids=given, use_cache=False, decoder_input_ids=torch.tensor(answer[None]))
    network.float()
    return {
        "prompt": prompt.astype(np.int32),
        "answer": answer.astype(np.int32),
        "logits": out.logits[0].float().numpy(),
        "greedy": greedy.astype(np.int32),
    }
