"""Vectors of texts per second beside llama.cpp and torch, in interleaved rounds, by a random encoder of bge-small's shape.

    python -m bench.models.embeddings [--texts 200] [--threads 1 2] [--formats Q8_0 F16] [--rounds 3] [--json FILE]

Needs the package gguf. llama.cpp (llama-cpp-python) runs the same file; sentence-transformers a model of the same shape in f32,
with its own batches of 32 texts; torch (transformers' BertModel, in f32) such batches without a tokenizer. Each is measured
where it is installed. Texts have 10 to 41 tokens. llama.cpp and sentence-transformers get texts and stand beside camshaft with
texts, torch gets token ids and stands beside camshaft with those.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import string
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from camshaft import EmbeddingModel

LAYERS, DIM, FEED_FORWARD, HEADS, VOCABULARY, CONTEXT = 12, 384, 1536, 12, 30522, 512
BATCH = 32
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
Run = Callable[[], object]


def vocabulary() -> list[str]:
    """Letters and combinations of three, at the start of a word and within it."""
    pieces = [*string.ascii_lowercase, *map("".join, itertools.product(string.ascii_lowercase, repeat=3))]
    return [*SPECIAL, *(f"▁{piece}" for piece in pieces), *pieces][:VOCABULARY]


def write_model(path: Path, name: str) -> None:
    """An encoder with weights drawn at random, in the format of that name."""
    import gguf

    rng, kind = np.random.default_rng(0), gguf.GGMLQuantizationType[name]
    writer, tokens = gguf.GGUFWriter(path, "bert"), vocabulary()
    writer.add_context_length(CONTEXT)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(DIM)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.CLS)
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_type_count(2)
    for part, number in (("bos", 2), ("unk", 1), ("sep", 3), ("pad", 0), ("mask", 4)):
        getattr(writer, f"add_{part}_token_id")(number)
    for tensor, shape in shapes().items():
        values = rng.normal(float("norm.weight" in tensor), 0.05, shape).astype(np.float32)
        plain = len(shape) == 1 or tensor in ("position_embd.weight", "token_types.weight")
        if plain:
            writer.add_tensor(tensor, values)
        else:
            writer.add_tensor(tensor, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def shapes() -> dict[str, tuple[int, ...]]:
    """The shape of each tensor."""
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCABULARY, DIM),
        "position_embd.weight": (CONTEXT, DIM),
        "token_types.weight": (2, DIM),
    }
    norms = ["token_embd_norm"]
    for layer in range(LAYERS):
        matrices = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (DIM, DIM))
        matrices |= {"ffn_up": (FEED_FORWARD, DIM), "ffn_down": (DIM, FEED_FORWARD)}
        for name, shape in matrices.items():
            found |= {f"blk.{layer}.{name}.weight": shape, f"blk.{layer}.{name}.bias": shape[:1]}
        norms += [f"blk.{layer}.attn_output_norm", f"blk.{layer}.layer_output_norm"]
    return found | {f"{norm}.{part}": (DIM,) for norm in norms for part in ("weight", "bias")}


def of_llama(path: Path, ids: Sequence[list[int]], texts: Sequence[str], threads: int) -> Run:
    """llama.cpp, text by text as its interface has it, on a thread of its own: ggml configures AMX's tiles once per thread, and
    camshaft's kernels release those of the threads that they run on."""
    import llama_cpp

    options: dict[str, Any] = {"n_ctx": CONTEXT, "n_threads": threads, "n_threads_batch": threads}
    model = llama_cpp.Llama(str(path), embedding=True, verbose=False, **options)
    assert model.tokenize(texts[0].encode(), add_bos=True, special=False) == list(ids[0])
    own = ThreadPoolExecutor(1)
    return lambda: own.submit(model.embed, list(texts), normalize=True).result()


def of_torch(path: Path, ids: Sequence[list[int]], texts: Sequence[str], threads: int) -> Run:
    """transformers' BertModel of the same shape in f32."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=DIM,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=FEED_FORWARD,
    )
    network = transformers.BertModel(config, add_pooling_layer=False).eval()
    ordered = sorted(ids, key=len)

    def run() -> None:
        for first in range(0, len(ordered), BATCH):
            part = ordered[first : first + BATCH]
            tokens = torch.zeros(len(part), len(part[-1]), dtype=torch.long)
            mask = torch.zeros_like(tokens)
            for row, one in enumerate(part):
                tokens[row, : len(one)], mask[row, : len(one)] = torch.tensor(one), 1
            with torch.inference_mode():
                hidden = network(input_ids=tokens, attention_mask=mask).last_hidden_state[:, 0]
                torch.nn.functional.normalize(hidden)

    return run


def of_sentence_transformers(path: Path, ids: Sequence[list[int]], texts: Sequence[str], threads: int) -> Run:
    """sentence-transformers with a model of the same shape in f32 and the same tokens."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer
    from tokenizers.implementations import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.set_num_threads(threads)
    sizes = {"hidden_size": DIM, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    words = [w if w in SPECIAL else w[1:] if w.startswith("▁") else f"##{w}" for w in vocabulary()]
    own = BertWordPieceTokenizer({word: i for i, word in enumerate(words)}, lowercase=True)
    special = {f"{word[1:-1].lower()}_token": word for word in SPECIAL}
    with tempfile.TemporaryDirectory() as folder:
        config = BertConfig(vocab_size=VOCABULARY, intermediate_size=FEED_FORWARD, **sizes)
        BertModel(config, add_pooling_layer=False).save_pretrained(folder)
        PreTrainedTokenizerFast(tokenizer_object=own._tokenizer, **special).save_pretrained(folder)
        network = Transformer(folder, max_seq_length=CONTEXT)
    model = SentenceTransformer(modules=[network, Pooling(DIM, pooling_mode="cls"), Normalize()], device="cpu")
    assert model.tokenize(texts[:1])["input_ids"][0].tolist() == list(ids[0])
    return lambda: model.encode(list(texts), batch_size=BATCH, show_progress_bar=False)


OURS, OURS_IDS = "camshaft", "camshaft, token ids"
# A peer's module, what makes its run, and the row of ours that it stands beside.
PEERS = {
    "llama.cpp": ("llama_cpp", of_llama, OURS),
    "sentence-transformers": ("sentence_transformers", of_sentence_transformers, OURS),
    "torch f32": ("transformers", of_torch, OURS_IDS),
}


def measure(path: Path, texts: Sequence[str], threads: int, rounds: int) -> dict[str, list[float]]:
    """The seconds of each library in each round."""
    with EmbeddingModel(path, threads=threads) as model:
        ids = [model.tokenize(text) for text in texts]
        runs: dict[str, Run] = {OURS: lambda: model.embed(texts), OURS_IDS: lambda: model.embed_ids(ids)}
        for name, (module, make, _) in PEERS.items():
            if importlib.util.find_spec(module) is not None:
                runs[name] = make(path, ids, texts, threads)
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(rounds + 1):
            for name, run in runs.items():
                begin = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - begin)
    return {name: found[1:] for name, found in seconds.items()}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--threads", type=int, nargs="+", default=(1, 2))
    parser.add_argument("--formats", nargs="+", default=("Q8_0", "F16"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rng, letters = np.random.default_rng(0), list(string.ascii_lowercase)
    texts = [
        " ".join("".join(rng.choice(letters, 3)) for _ in range(rng.integers(8, 40))) for _ in range(options.texts)
    ]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.formats:
            path = Path(folder) / f"{name}.gguf"
            write_model(path, name)
            for threads in options.threads:
                seconds = measure(path, texts, threads, options.rounds)
                results.append({"format": name, "threads": threads, "texts": len(texts), "seconds": seconds})
                middle = {k: median(s) for k, s in seconds.items()}
                ratios = {k: middle[k] / middle[beside] for k, (_, _, beside) in PEERS.items() if k in middle}
                others = ", ".join(f"{k} takes {ratio:.2f} times" for k, ratio in ratios.items())
                print(f"{name}, {threads} threads: {len(texts) / middle[OURS]:.0f} texts/s; {others}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
