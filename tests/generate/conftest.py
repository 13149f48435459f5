"""A tiny model for tests of sessions and generation; every test releases what it opens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from camshaft import LanguageModel
from camshaft.generate.sampling.parameters import Sampling
from tests.support.fixtures import tiny_model

CONTEXT, SESSIONS = 48, 3
GREEDY = Sampling(greedy=True)


class PlainTemplate:
    """Renders the content of each message and a blank."""

    source = ""

    def render(self, messages: list[dict[str, str]], *, add_generation_prompt: bool) -> str:
        return "".join(message["content"] + " " for message in messages)


def whole_text(lm: LanguageModel, ids: Sequence[int]) -> str:
    """The text of tokens without a character that they end inside."""
    stream = lm.tokenizer.stream()
    return "".join(map(stream.push, ids))


def opened_in_f32(path: Path, **options: Any) -> LanguageModel:
    """A model on one thread with f32 activations."""
    return LanguageModel(path, **{"threads": 1, "activations": "f32"} | options)


def alone(lm: LanguageModel, prompt: Sequence[int], n: int, sampling: Sampling = GREEDY, **how: Any) -> list[int]:
    """The ids of `n` tokens after a prompt, generated without others."""
    generation = lm.generate(prompt, max_tokens=n, sampling=sampling, ignore_eos=True, **how)
    list(generation)
    return generation.ids


def check_batch(lm: LanguageModel, prompts: Sequence[Sequence[int]], n: int) -> None:
    """Asserts that a batch says of each prompt what it says alone."""
    batch = lm.generate_batch(prompts, max_tokens=n, sampling=GREEDY, ignore_eos=True)
    batch.texts()
    assert [generation.ids for generation in batch.generations] == [alone(lm, prompt, n) for prompt in prompts]


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a module's tiny models are written."""
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def tiny_path(tiny_folder: Path) -> Path:
    return tiny_model("llama", tiny_folder)


@pytest.fixture(scope="module")
def _shared(tiny_path: Path) -> Iterator[LanguageModel]:
    with LanguageModel(tiny_path, threads=1, context=CONTEXT, activations="f32", sessions=SESSIONS) as lm:
        yield lm


@pytest.fixture
def lm(_shared: LanguageModel) -> Iterator[LanguageModel]:
    """The tiny llama with a context of 48 tokens and 3 sessions, all free before and after."""
    yield _shared
    opened = [_shared.session() for _ in range(SESSIONS)]
    for session in opened:
        session.close()
