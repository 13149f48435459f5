"""Two prompts, what a model generates after them, and how many tokens its runs were given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from camshaft import LanguageModel, Sampling

GREEDY = Sampling(greedy=True)
A = [40, 7, 81, 200, 13, 99, 3, 150, 61, 44]
B = [9, 9, 120, 33, 250, 18, 77, 5, 6, 31, 222, 101, 64]


def generated(lm: LanguageModel, prompt: Sequence[int], n: int, sampling: Sampling = GREEDY) -> list[int]:
    generation = lm.generate(prompt, max_tokens=n, sampling=sampling, ignore_eos=True)
    list(generation)
    return generation.ids


class CountedRuns:
    """How many tokens each run of a model was given."""

    def __init__(self, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens: list[int] = []
        run = lm.plans.run

        def counted(ids: Sequence[int], *rest: Sequence[int], **how: bool) -> np.ndarray:
            self.tokens.append(len(ids))
            return run(ids, *rest, **how)

        monkeypatch.setattr(lm.plans, "run", counted)
