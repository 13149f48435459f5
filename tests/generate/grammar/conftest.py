"""A tiny llama with room for JSON, and options that draw by a grammar."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from camshaft import GenerateOptions, Grammar, LanguageModel, Sampling
from tests.support.fixtures import tiny_model

PROMPT = [40, 7, 81]


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    """A tiny llama with room for JSON."""
    path = tiny_model("llama", tmp_path_factory.mktemp("grammars"))
    with LanguageModel(path, threads=1, context=400, activations="f32", sessions=3) as made:
        yield made


def drawn(seed: int, grammar: Grammar | None, **others: Any) -> GenerateOptions:
    return GenerateOptions(sampling=Sampling(seed=seed, temperature=3, min_p=0), grammar=grammar, **others)
