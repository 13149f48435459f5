"""A language model in camshaft through LanguageModel, with greedy sampling."""

from __future__ import annotations

import time
from typing import Any

from camshaft.generate.language_model import LanguageModel
from camshaft.generate.sampling.parameters import Sampling

MOST_SEQUENCES = 16


class Camshaft:
    """Takes the orders of llama_language.LlamaCpp and measures the same."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        self.sampling = Sampling(greedy=True)
        self.model = LanguageModel(model, threads=threads, context=context, sessions=MOST_SEQUENCES)
        self.version = f"camshaft {self.model.backend}"
        self.built_for = "this CPU"
        self.went_on_s: float | None = None

    def seconds(self, order: dict[str, Any]) -> float:
        """Seconds of an order."""
        if "last" in order:
            return self.last(order)
        if "together" in order:
            return self.together(order["together"], order["after"], order["generate"])
        if "generate" in order:
            return float(order["generate"]) / float(self.run(order["after"], order["generate"]).generated_tokens_per_s)
        n = int(order.get("then", 1))
        started = time.perf_counter()
        timings = self.run(order["prompt"], n)
        seconds = time.perf_counter() - started
        if "then" not in order:
            return seconds
        self.went_on_s = n / float(timings.generated_tokens_per_s)
        return seconds - self.went_on_s * (n - 1) / n

    def last(self, order: dict[str, Any]) -> float:
        """Seconds of generating after the last prompt; processes the prompt first if it was not the last order."""
        if self.went_on_s is None:
            self.seconds({"prompt": order["prompt"], "then": order["then"]})
        seconds, self.went_on_s = self.went_on_s, None
        assert seconds is not None
        return seconds

    def run(self, ids: list[int], n: int) -> Any:
        generation = self.model.generate(ids, max_tokens=n, sampling=self.sampling, ignore_eos=True)
        for _ in generation:
            pass
        return generation.timings

    def together(self, sequences: int, ids: list[int], n: int) -> float:
        batch = self.model.generate_batch([ids[:1]] * sequences, max_tokens=n, sampling=self.sampling, ignore_eos=True)
        batch.texts()
        return n / float(batch.generations[-1].timings.generated_tokens_per_s)
