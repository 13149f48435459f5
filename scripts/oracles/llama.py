"""llama.cpp, through llama-cpp-python: tokens, end tokens and logits of a GGUF file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from unittest.mock import patch

import llama_cpp
import numpy as np

P, R = ParamSpec("P"), TypeVar("R")


def _open(path: Path, *, packs: bool = True, **options: Any) -> llama_cpp.Llama:
    """`packs`: weights are packed for the CPU's kernels as they are read. Python's interface has no argument for it."""
    parameters = llama_cpp.llama_model_default_params()
    parameters.use_extra_bufts = packs
    with patch.object(llama_cpp.llama_cpp, "llama_model_default_params", lambda: parameters):
        return llama_cpp.Llama(str(path), verbose=False, **options)


def on_a_new_thread(compute: Callable[P, R]) -> Callable[P, R]:
    """Runs `compute` on a thread of its own.

    ggml configures AMX's tiles once per thread and takes them for configured from then on. A thread on which other
    kernels released them since, as the ABI lets them, ends with an illegal instruction.
    """

    @functools.wraps(compute)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with ThreadPoolExecutor(1) as own:
            return own.submit(compute, *args, **kwargs).result()

    return run


class Vocabulary:
    """The tokenizer of a GGUF file, without its weights."""

    def __init__(self, path: Path) -> None:
        self._llama = _open(path, vocab_only=True)

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        """The tokens of `text`."""
        return list(self._llama.tokenize(text, add_bos=add_special, special=parse_special))

    def end_ids(self) -> list[int]:
        """The tokens at which llama.cpp stops generating, in order."""
        vocabulary = self._llama._model.vocab
        return [i for i in range(self._llama.n_vocab()) if llama_cpp.llama_vocab_is_eog(vocabulary, i)]


def logits(path: Path, tokens: list[int], *, exact: bool) -> np.ndarray:
    """The logits of every position, float32 [n, vocab]; `exact` keeps the KV cache in float32 (default: float16)."""
    return logits_of_each(path, [tokens], exact=exact)[0]


@on_a_new_thread
def logits_of_each(path: Path, texts: Sequence[list[int]], *, exact: bool, packs: bool = True) -> list[np.ndarray]:
    """`logits` of several texts, each from the beginning; weights are packed for kernels or, not `packs`, left as in the file."""
    cache = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32, "flash_attn": False} if exact else {}
    longest = max(64, *(len(tokens) for tokens in texts))
    options = {"n_ctx": longest, "n_threads": 2, "n_threads_batch": 2, "logits_all": True, **cache}
    llama, found = _open(path, packs=packs, **options), []
    for tokens in texts:
        llama.reset()
        llama._ctx.kv_cache_clear()
        llama.eval(tokens)
        found.append(np.array(llama.scores[: len(tokens)], np.float32))
    return found


@on_a_new_thread
def vectors(path: Path, texts: list[str]) -> tuple[list[list[int]], np.ndarray]:
    """The tokens of texts, and the vectors of an embedding model, float32 [n, dim], of length 1."""
    llama = _open(path, n_ctx=64, embedding=True)
    tokens = [llama.tokenize(text.encode(), add_bos=True, special=False) for text in texts]
    made = np.array([llama.create_embedding(text)["data"][0]["embedding"] for text in texts], np.float32)
    return tokens, made / np.linalg.norm(made, axis=1, keepdims=True)


@on_a_new_thread
def scores(path: Path, texts: list[list[int]]) -> np.ndarray:
    """A reranker's scores of texts as token ids, float32 [n]: logits, or for Qwen3 probabilities."""
    llama = _open(path, n_ctx=256, embedding=True, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_RANK)
    made = []
    for ids in texts:
        llama._ctx.kv_cache_clear()
        llama._batch.reset()
        llama._batch.add_sequence(ids, 0, True)
        llama._ctx.decode(llama._batch)
        made.append(llama_cpp.llama_get_embeddings_seq(llama._ctx.ctx, 0)[0])
    return np.array(made, np.float32)
