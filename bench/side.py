"""One side of a comparison: a process that waits on a pipe, without a spin, and runs what it is told. Needs no camshaft.

Run by language_model.py as `python bench/side.py llama.cpp|camshaft MODEL THREADS CONTEXT`. Each line that comes is
{"prompt": ids} or {"generate": n, "after": ids}; each line back is {"s": seconds}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol


class Side(Protocol):
    """A program that runs the model. `read` starts anew and gives the likeliest token after the ids; `after` goes on with one."""

    def read(self, ids: list[int]) -> int: ...
    def generate(self, ids: list[int], n: int) -> float: ...


class LlamaCpp:
    """llama.cpp through the C API that llama-cpp-python wraps, so that no Python object stands between two tokens."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        import llama_cpp
        import numpy as np

        self.api, self.numpy = llama_cpp, np
        self.llama = llama_cpp.Llama(
            model,
            n_ctx=context,
            n_batch=512,
            n_ubatch=512,
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=0,
            verbose=False,
        )
        self.context: Any = self.llama.ctx
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
        logits = self.numpy.ctypeslib.as_array(self.api.llama_get_logits_ith(self.context, -1), (self.n_vocab,))
        return int(logits.argmax())

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
        self.model = camshaft.LanguageModel(model, threads=threads, context=context)
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


SIDES: dict[str, Callable[[str, int, int], Any]] = {"llama.cpp": LlamaCpp, "camshaft": Camshaft}


def seconds(side: Side, order: dict[str, Any]) -> float:
    """How long an order takes: a prompt up to the token after it, or `n` tokens at the rate of all but the first."""
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
