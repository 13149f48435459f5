"""One side of a comparison: a process that waits on a pipe, without a spin, and runs what it is told. Needs no camshaft.

Run by language_model.py as `python bench/side.py llama.cpp|camshaft MODEL THREADS CONTEXT`. Each line that comes is
{"prompt": ids}, {"generate": n, "after": ids} or {"together": sequences, "generate": n, "after": ids}; each line back is
{"s": seconds}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

MOST_SEQUENCES = 16


class Side(Protocol):
    """A program that runs the model. `read` starts anew and gives the likeliest token after the ids; `after` goes on with one."""

    def read(self, ids: list[int]) -> int: ...
    def generate(self, ids: list[int], n: int) -> float: ...
    def together(self, sequences: int, ids: list[int], n: int) -> float: ...


class LlamaCpp:
    """llama.cpp through the C API that llama-cpp-python wraps, so that no Python object stands between two tokens."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        import llama_cpp
        import numpy as np

        self.api, self.numpy = llama_cpp, np
        self.llama = llama_cpp.Llama(model, n_ctx=64, n_gpu_layers=0, verbose=False)
        asked = llama_cpp.llama_context_default_params()
        asked.n_ctx, asked.n_seq_max, asked.kv_unified = context, MOST_SEQUENCES, True
        asked.n_batch = asked.n_ubatch = 512
        asked.n_threads = asked.n_threads_batch = threads
        self.context: Any = llama_cpp.llama_init_from_model(self.llama.model, asked)
        self.batch = llama_cpp.llama_batch_init(MOST_SEQUENCES, 0, 1)
        self.n_vocab = self.llama.n_vocab()
        self.version = f"llama-cpp-python {llama_cpp.__version__}"
        self.built_for = llama_cpp.llama_print_system_info().decode().strip()

    def read(self, ids: list[int]) -> int:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        for first in range(0, len(ids), 512):
            token = self.step(ids[first : first + 512])
        return token

    def step(self, ids: list[int]) -> int:
        tokens = (self.api.llama_token * len(ids))(*ids)
        if self.api.llama_decode(self.context, self.api.llama_batch_get_one(tokens, len(ids))):
            raise RuntimeError("llama_decode failed")
        return self.likeliest(-1)

    def likeliest(self, row: int) -> int:
        logits = self.numpy.ctypeslib.as_array(self.api.llama_get_logits_ith(self.context, row), (self.n_vocab,))
        return int(logits.argmax())

    def step_together(self, tokens: list[int], position: int) -> list[int]:
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, True
            batch.seq_id[i][0] = i
        if self.api.llama_decode(self.context, batch):
            raise RuntimeError("llama_decode failed")
        return [self.likeliest(i) for i in range(len(tokens))]

    def together(self, sequences: int, ids: list[int], n: int) -> float:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        tokens = self.step_together([ids[0]] * sequences, 0)
        started = time.perf_counter()
        for position in range(1, n):
            tokens = self.step_together(tokens, position)
        return (time.perf_counter() - started) * n / (n - 1)

    def generate(self, ids: list[int], n: int) -> float:
        token = self.read(ids)
        started = time.perf_counter()
        for _ in range(n - 1):
            token = self.step([token])
        return (time.perf_counter() - started) * n / (n - 1)


class Camshaft:
    """camshaft as its users call it: LanguageModel.generate, greedy."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        import camshaft

        self.sampling = camshaft.Sampling(greedy=True)
        self.model = camshaft.LanguageModel(model, threads=threads, context=context, sessions=MOST_SEQUENCES)
        self.version = f"camshaft {self.model.backend}"
        self.built_for = "this CPU"

    def read(self, ids: list[int]) -> int:
        return int(self.run(ids, 1).ids[0])

    def run(self, ids: list[int], n: int) -> Any:
        generation = self.model.generate(ids, max_tokens=n, sampling=self.sampling, ignore_eos=True)
        for _ in generation:
            pass
        return generation

    def generate(self, ids: list[int], n: int) -> float:
        return n / float(self.run(ids, n).timings.generated_tokens_per_s)

    def together(self, sequences: int, ids: list[int], n: int) -> float:
        batch = self.model.generate_batch([ids[:1]] * sequences, max_tokens=n, sampling=self.sampling, ignore_eos=True)
        batch.texts()
        return n / float(batch.generations[-1].timings.generated_tokens_per_s)


SIDES: dict[str, Callable[[str, int, int], Any]] = {"llama.cpp": LlamaCpp, "camshaft": Camshaft}


def seconds(side: Side, order: dict[str, Any]) -> float:
    """How long an order takes: a prompt up to the token after it, or `n` tokens (of each sequence) at the rate of all but the
    first."""
    if "together" in order:
        return side.together(order["together"], order["after"], order["generate"])
    if "generate" in order:
        return side.generate(order["after"], order["generate"])
    started = time.perf_counter()
    side.read(order["prompt"])
    return time.perf_counter() - started


def main() -> None:
    """Opens the model, says what runs it, then answers line by line until the pipe ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not lie between the answers
    name, model, threads, context = sys.argv[1:]
    side = SIDES[name](model, int(threads), int(context))
    print(json.dumps({"version": side.version, "built_for": side.built_for}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps({"s": seconds(side, json.loads(line))}), file=answers, flush=True)


if __name__ == "__main__":
    main()
