"""A language model in llama.cpp, through llama-cpp-python's C API."""

from __future__ import annotations

import time
from typing import Any

from bench.compare.peers.orders import Orders

MOST_SEQUENCES = 16
BATCH = 512


class LlamaCpp(Orders):
    """llama.cpp through the C API of llama-cpp-python, so that no Python objects are created per token."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        import llama_cpp
        import numpy as np

        self.api, self.numpy = llama_cpp, np
        self.llama = llama_cpp.Llama(model, n_ctx=64, n_gpu_layers=0, verbose=False)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = context, MOST_SEQUENCES, True
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = threads
        self.context: Any = llama_cpp.llama_init_from_model(self.llama.model, params)
        self.batch = llama_cpp.llama_batch_init(MOST_SEQUENCES, 0, 1)
        self.n_vocab = self.llama.n_vocab()
        self.version = f"llama-cpp-python {llama_cpp.__version__}"
        self.built_for = llama_cpp.llama_print_system_info().decode().strip()

    def prompt(self, ids: list[int], then: int | None) -> float:
        """Seconds of a prompt including the next token; then those of `then` tokens after it are known."""
        started = time.perf_counter()
        token = self.read(ids)
        seconds = time.perf_counter() - started
        self.went_on_s = None if then is None else self.go_on(token, then)
        return seconds

    def generated(self, ids: list[int], n: int) -> float:
        """Seconds of n tokens after a prompt, extrapolated from n - 1."""
        return self.go_on(self.read(ids), n)

    def clear(self) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def read(self, ids: list[int]) -> int:
        """Clear the cache, process the ids and return the most probable next token."""
        self.clear()
        for first in range(0, len(ids), BATCH):
            token = self.step(ids[first : first + BATCH])
        return token

    def step(self, ids: list[int]) -> int:
        tokens = (self.api.llama_token * len(ids))(*ids)
        if self.api.llama_decode(self.context, self.api.llama_batch_get_one(tokens, len(ids))):
            raise RuntimeError("llama_decode failed")
        return self.likeliest(-1)

    def likeliest(self, row: int) -> int:
        logits = self.numpy.ctypeslib.as_array(self.api.llama_get_logits_ith(self.context, row), (self.n_vocab,))
        return int(logits.argmax())

    def go_on(self, token: int, n: int) -> float:
        """Seconds of n tokens, extrapolated from n - 1."""
        started = time.perf_counter()
        for _ in range(n - 1):
            token = self.step([token])
        return (time.perf_counter() - started) * n / (n - 1)

    def together(self, sequences: int, ids: list[int], n: int) -> float:
        """Seconds of n tokens of each sequence, with one batch per step."""
        self.clear()
        tokens = self.step_together([ids[0]] * sequences, 0)
        started = time.perf_counter()
        for position in range(1, n):
            tokens = self.step_together(tokens, position)
        return (time.perf_counter() - started) * n / (n - 1)

    def step_together(self, tokens: list[int], position: int) -> list[int]:
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, True
            batch.seq_id[i][0] = i
        if self.api.llama_decode(self.context, batch):
            raise RuntimeError("llama_decode failed")
        return [self.likeliest(i) for i in range(len(tokens))]
