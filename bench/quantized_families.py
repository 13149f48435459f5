"""Mean KL divergence of quantized models from their own f32, by family, beside llama.cpp's on the same files.

Run: python -m bench.quantized_families [--only WORD ...] [--types Q4_K_M Q8_0] [--json FILE]. Needs the extra `oracles`.
The models are random, made by transformers, with rows of 256 elements or more, so that every format has whole blocks. Both
libraries run the same file; each one's reference is its own f32 of the file that was quantized. Figures are means of several
texts of random tokens, of many for experts: a rounding that changes the choice of one counts more than all others, in about one
of 50 positions. Logits are divided so that their standard deviation is at most SPREAD: those of random models of this width would
leave one token a probability of 1. Wanted: at most 1.1 times llama.cpp's.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import rows
from camshaft import LanguageModel
from camshaft.formats.gguf.file import open_gguf
from camshaft.models.files.quantize import quantize
from scripts.oracles import llama, tiny_models
from scripts.oracles.tiny.files import write_gguf
from scripts.oracles.tiny.model import TinyModel
from scripts.oracles.tiny.vocabulary import N_VOCAB

HIDDEN, FFN, EXPERT, HEAD = 256, 512, 256, 64
N_TOKENS, N_DRAWS, N_DRAWS_OF_EXPERTS = 128, 5, 60
SPREAD = 2.0
USUAL = {"gpt-oss": "MXFP4"}  # of its experts; all else in Q8_0
# Sizes in the words of transformers and of GGUF that follow from those above.
_SIZES: dict[str, Any] = {
    "moe_intermediate_size": EXPERT,
    "shared_expert_intermediate_size": EXPERT,
    "shared_intermediate_size": EXPERT,
    "expert_feed_forward_length": EXPERT,
    "expert_shared_feed_forward_length": EXPERT,
    "query_pre_attn_scalar": HEAD,
    "n_inner": FFN,
    "ssm.inner_size": 2 * HIDDEN,
}
# What a family's sizes are beside those, where it has others.
_OF: dict[str, dict[str, Any]] = {
    "mamba2": {"num_heads": 8, "head_dim": 64, "intermediate_size": 512, "ssm.time_step_rank": 8},
    "mamba": {"intermediate_size": 512, "time_step_rank": 16, "ssm.time_step_rank": 16},
    "granitehybrid": {"mamba_n_heads": 8, "mamba_d_head": 64, "ssm.time_step_rank": 8},
    **{name: {"expert_feed_forward_length": FFN} for name in ("mixtral", "gpt-oss", "granitemoe")},
}
# Without ERNIE's experts between dense layers and DeepSeek of these sizes, whose files llama.cpp does not load.
FAMILIES = (
    *("llama", "qwen2", "qwen3", "gemma2", "gemma3", "olmo2", "exaone4", "smollm3", "seed-oss", "glm4", "granite"),
    *("command-r", "cohere2", "starcoder2", "stablelm", "gptneox", "gpt2", "hunyuan-dense", "ernie4_5"),
    *("mixtral", "qwen3moe", "olmoe", "granitemoe", "glm4moe", "gpt-oss"),
    *("lfm2", "mamba", "mamba2", "granitehybrid"),
)


def widened(model: TinyModel) -> TinyModel:
    """A tiny model with rows of whole blocks, and the vocabulary and the accuracy that the frozen ones may lack."""
    sizes = _SIZES | _OF.get(model.name, {})

    def with_sizes(given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: sizes.get(name, value) for name, value in given.items()}

    heads = {"heads": 4, "kv_heads": 4 if model.kv_heads == model.heads else 2, "head_dim": HEAD} if model.heads else {}
    return replace(
        model,
        hidden=HIDDEN,
        ffn=FFN if model.ffn else 0,
        **heads,
        options=with_sizes(model.options),
        keys=with_sizes(model.keys),
        values="bfloat16",
        n_vocab=N_VOCAB,
    )


def divergence(wanted: np.ndarray, came: np.ndarray) -> float:
    """The mean over positions of sum p (log p - log q)."""
    scale = SPREAD / max(SPREAD, float(wanted.std()))
    p, q = (_log_softmax(scale * x.astype(np.float64)) for x in (wanted, came))
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def ours(path: Path, tokens: list[int], activations: str) -> np.ndarray:
    """camshaft's logits of every token."""
    with LanguageModel(path, context=256, sessions=1, activations=activations) as lm:
        return lm.logits(tokens)


def measured(name: str, types: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each type of a family."""
    seed, tiny = tiny_models.SEEDED[name]
    model, source = widened(tiny), folder / f"{name}.gguf"
    write_gguf(model, tiny_models.build(model, seed), source)
    n = N_DRAWS_OF_EXPERTS if "expert_count" in model.keys else N_DRAWS
    draws = [np.random.default_rng(i).integers(3, N_VOCAB, N_TOKENS).tolist() for i in range(n)]
    exact = [ours(source, tokens, "f32") for tokens in draws]
    their_exact = [llama.logits(source, tokens, exact=True) for tokens in draws]
    for kind in (*types, *(kind for family, kind in USUAL.items() if family == name)):
        path = folder / f"{name}-{kind}.gguf"
        if kind == "MXFP4":
            quantize(source, path, "Q8_0", tensor_types=[("ffn_.*_exps", "MXFP4")])
        else:
            quantize(source, path, kind)
        with open_gguf(path) as file:
            formats = sorted({tensor.format.name for tensor in file.tensors.values()} - {"F32"})
        mine = [divergence(e, ours(path, tokens, "auto")) for e, tokens in zip(exact, draws, strict=True)]
        theirs = [divergence(e, llama.logits(path, t, exact=False)) for e, t in zip(their_exact, draws, strict=True)]
        kl, their_kl = float(np.mean(mine)), float(np.mean(theirs))
        far = max(float(np.abs(a - b).max()) for a, b in zip(exact, their_exact, strict=True))
        yield {"bench": "quantized_families", "family": name, "type": kind, "formats": formats, "kl": kl,
               "llama.cpp": their_kl, "ratio": kl / their_kl, "f32 differs by": far,
               "ratio of each": [a / b for a, b in zip(mine, theirs, strict=True)]}  # fmt: skip
        path.unlink()


def line_of(r: dict[str, Any]) -> str:
    """A row as a line; it says where both libraries' f32 differ much, as then they run different models."""
    far = f", f32 differs by {r['f32 differs by']:.2g}" if r["f32 differs by"] > 0.1 else ""
    figures = f"{r['kl']:10.2e} {r['llama.cpp']:10.2e} {r['ratio']:6.2f}"
    each = f"({min(r['ratio of each']):.2f} to {max(r['ratio of each']):.2f})"
    return f"{r['family']:16} {r['type']:10} {figures} {each}  {' '.join(r['formats'])}{far}"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="only families whose name contains one of these")
    parser.add_argument("--types", nargs="+", default=["Q4_K_M", "Q8_0"])
    parser.add_argument("--json", type=Path)
    options, made = parser.parse_args(), []
    print(f"{'family':16} {'type':10} {'KL':>10} {'llama.cpp':>10} {'ratio':>6}  formats")
    for name in (name for name in FAMILIES if any(word in name for word in options.only)):
        with tempfile.TemporaryDirectory() as folder:
            for r in measured(name, options.types, Path(folder)):
                made.append(r)
                print(line_of(r), flush=True)
    rows.write(options.json, made)


if __name__ == "__main__":
    main()
