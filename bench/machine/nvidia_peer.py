"""A Llama of a GGUF file's shape by transformers on an NVIDIA GPU, in bf16 with random weights: the peer in bench.machine.nvidia.

Generation is measured as transformers runs it by default, kernel by kernel from Python, and with a static cache as one captured
CUDA graph per token, without sampling: what its compiled mode can reach at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.rows import Spread
from camshaft.models.config import ModelConfig

LENGTH = 1024


def rates(config: ModelConfig, prompt_tokens: int, generated: int, repeats: int) -> dict[str, Spread]:
    """Tokens per second of prompts and of generating, by name."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = LlamaConfig(
        hidden_size=config.dim,
        intermediate_size=config.ffn_dim,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        num_key_value_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        max_position_embeddings=LENGTH,
        attn_implementation="sdpa",
    )
    with torch.device("cuda"), torch.inference_mode():
        model = LlamaForCausalLM(sizes).to(torch.bfloat16).eval()
        ids = torch.randint(0, config.vocab_size, (1, prompt_tokens))
        return {
            "prompt_tokens_per_s": _rate(lambda: model(ids, logits_to_keep=1), prompt_tokens, repeats),
            "generated_tokens_per_s": _rate(_generate(model, ids[:, :1], generated), generated, repeats),
            "graph_tokens_per_s": _rate(_replay(model, generated), generated, repeats),
        }


def product_tflops(dtype: str, n: int, runs: int) -> float:
    """TFLOP/s of torch's product of two random squares, by GPU events: the best of so many runs after two."""
    import torch

    kind = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[dtype]
    a, b = (torch.randn((n, n), device="cuda").to(kind) for _ in range(2))
    least = float("inf")
    for run in range(runs + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        a @ b
        end.record()
        torch.cuda.synchronize()
        least = min(least, start.elapsed_time(end)) if run >= 2 else least
    return 2 * n**3 / least / 1e9


def _rate(call: Callable[[], object], tokens: int, repeats: int) -> Spread:
    import torch

    found = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(tokens / (time.perf_counter() - started))
    return Spread.of(found[1:])


def _generate(model: Any, first: Any, n: int) -> Callable[[], object]:
    how = {"max_new_tokens": n, "min_new_tokens": n, "do_sample": False, "pad_token_id": 0}
    return lambda: model.generate(first, **how)


def _replay(model: Any, n: int) -> Callable[[], object]:
    """Runs of a graph of one token at the middle of a static cache."""
    import torch
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=LENGTH)
    token, place = torch.zeros((1, 1), dtype=torch.long), torch.full((1,), n, dtype=torch.long)

    def step() -> Any:
        return model(
            token, past_key_values=cache, cache_position=place, position_ids=place[None], use_cache=True
        ).logits

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def run() -> None:
        for _ in range(n):
            graph.replay()
            torch.cuda.synchronize()  # the next token depends on the last one's logits

    return run
