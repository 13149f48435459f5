"""A language model in llama.cpp, a side of the comparison. Run by side.py in a Python that has llama-cpp-python."""

from __future__ import annotations

import time
from typing import Any

MOST_SEQUENCES = 16
BATCH = 512


class LlamaCpp:
    """llama.cpp through the C API that llama-cpp-python wraps, so that no Python object stands between two tokens.

    Orders: {"prompt": ids}, with "then": n to go on after it; {"last": True, "prompt": ids, "then": n}, the seconds of that;
    {"generate": n, "after": ids}; {"together": sequences, "generate": n, "after": ids}.
    """

    def __init__(self, model: str, threads: int, context: int) -> None:
        import llama_cpp
        import numpy as np

        self.api, self.numpy = llama_cpp, np
        self.llama = llama_cpp.Llama(model, n_ctx=64, n_gpu_layers=0, verbose=False)
        asked = llama_cpp.llama_context_default_params()
        asked.n_ctx, asked.n_seq_max, asked.kv_unified = context, MOST_SEQUENCES, True
        asked.n_batch = asked.n_ubatch = BATCH
        asked.n_threads = asked.n_threads_batch = threads
        self.context: Any = llama_cpp.llama_init_from_model(self.llama.model, asked)
        self.batch = llama_cpp.llama_batch_init(MOST_SEQUENCES, 0, 1)
        self.n_vocab = self.llama.n_vocab()
        self.version = f"llama-cpp-python {llama_cpp.__version__}"
        self.built_for = llama_cpp.llama_print_system_info().decode().strip()
        self.went_on_s: float | None = None

    def seconds(self, order: dict[str, Any]) -> float:
        """A prompt up to the token after it, or n tokens (of each sequence) at the rate of all but the first."""
        if "last" in order:
            return self.last(order)
        if "together" in order:
            return self.together(order["together"], order["after"], order["generate"])
        if "generate" in order:
            return self.go_on(self.read(order["after"]), order["generate"])
        started = time.perf_counter()
        token = self.read(order["prompt"])
        seconds = time.perf_counter() - started
        self.went_on_s = self.go_on(token, order["then"]) if "then" in order else None
        return seconds

    def last(self, order: dict[str, Any]) -> float:
        """What going on took after the last prompt; where none was read since, it is read now."""
        if self.went_on_s is None:
            self.seconds({"prompt": order["prompt"], "then": order["then"]})
        seconds, self.went_on_s = self.went_on_s, None
        assert seconds is not None
        return seconds

    def clear(self) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def read(self, ids: list[int]) -> int:
        """Starts anew; the likeliest token after the ids."""
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
        """Seconds of n tokens, by n - 1 after the given one."""
        started = time.perf_counter()
        for _ in range(n - 1):
            token = self.step([token])
        return (time.perf_counter() - started) * n / (n - 1)

    def together(self, sequences: int, ids: list[int], n: int) -> float:
        """Seconds of n tokens of each sequence, all of them a step in one batch."""
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
