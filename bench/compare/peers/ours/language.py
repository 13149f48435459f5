"""A language model in camshaft through LanguageModel, with greedy sampling."""

from __future__ import annotations

import time
from typing import Any

from bench.compare.peers.orders import Orders
from camshaft.generate.language_model import LanguageModel
from camshaft.generate.sampling.parameters import Sampling

MOST_SEQUENCES = 16


class Camshaft(Orders):
    """Takes the orders of llama_language.LlamaCpp and measures the same."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        self.sampling = Sampling(greedy=True)
        self.model = LanguageModel(model, threads=threads, context=context, sessions=MOST_SEQUENCES)
        self.version = f"camshaft {self.model.backend}"
        self.built_for = "this CPU"

    def prompt(self, ids: list[int], then: int | None) -> float:
        """Seconds of a prompt including the next token; then those of `then` tokens after it are known."""
        n = 1 if then is None else then
        started = time.perf_counter()
        timings = self.run(ids, n)
        seconds = time.perf_counter() - started
        self.went_on_s = None if then is None else n / float(timings.generated_tokens_per_s)
        return seconds if self.went_on_s is None else seconds - self.went_on_s * (n - 1) / n

    def generated(self, ids: list[int], n: int) -> float:
        """Seconds of n tokens after a prompt."""
        return n / float(self.run(ids, n).generated_tokens_per_s)

    def run(self, ids: list[int], n: int) -> Any:
        generation = self.model.generate(ids, max_tokens=n, sampling=self.sampling, ignore_eos=True, speculate=None)
        for _ in generation:
            pass
        return generation.timings

    def together(self, sequences: int, ids: list[int], n: int) -> float:
        batch = self.model.generate_batch([ids[:1]] * sequences, max_tokens=n, sampling=self.sampling, ignore_eos=True)
        batch.texts()
        return n / float(batch.generations[-1].timings.generated_tokens_per_s)
