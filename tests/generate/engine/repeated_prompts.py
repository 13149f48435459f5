"""Prompts that repeat themselves, answered by an engine with and without drafts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Statistics, Update
from camshaft.generate.speculation.pace import MOST_ROWS, RunCosts
from camshaft.generate.speculation.speculator import Speculate
from tests.generate.conftest import CONTEXT, SESSIONS
from tests.support.fixtures import tiny_model


def asked(seed: int) -> tuple[list[int], GenerateOptions]:
    """A prompt that repeats itself, and how to go on."""
    drawn = random.Random(seed)
    ids = [drawn.randrange(30, 40) for _ in range(4)] * 4
    sampling = Sampling(temperature=drawn.choice((0, 0.7)), seed=seed, repeat_penalty=drawn.choice((1.0, 1.1)))
    logprobs, most, stop = drawn.choice((None, 2)), drawn.choice((0, 1, 7, -1)), drawn.choice(((), ("e",)))
    return ids, GenerateOptions(max_tokens=most, sampling=sampling, logprobs=logprobs, stop=stop)


def as_long_as_may_be(offers: list[tuple[float, int]], rows: int, costs: RunCosts, each: float) -> list[int]:
    found = []
    for _, most in offers:
        found.append(max(min(most, MOST_ROWS - rows), 0))
        rows += found[-1]
    return found


def told(lm: LanguageModel, speculate: Speculate | None, n: int) -> tuple[list[list[Update]], Statistics]:
    with Engine(lm, speculate=speculate, prefix_cache=False) as engine:
        updates: list[list[Update]] = [[] for _ in range(n)]
        for i, each in enumerate(updates):
            engine.submit(*asked(i), each.append)
        while engine.n_waiting or engine.n_running:
            engine.step()
        assert lm.plans.cache.n_free == SESSIONS
        return updates, engine.statistics


def opened(name: str, folder: Path, **options: Any) -> LanguageModel:
    given = {"threads": 1, "context": CONTEXT, "activations": "f32", "sessions": SESSIONS} | options
    return LanguageModel(tiny_model(name, folder), **given)
