"""A tiny model for tests of sessions and generation; every test releases what it opens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from camshaft import LanguageModel
from tests.support.fixtures import tiny_model

CONTEXT, SESSIONS = 48, 3


class PlainTemplate:
    """Renders the content of each message and a blank."""

    source = ""

    def render(self, messages: list[dict[str, str]], *, add_generation_prompt: bool) -> str:
        return "".join(message["content"] + " " for message in messages)


def whole_text(lm: LanguageModel, ids: Sequence[int]) -> str:
    """The text of tokens without a character that they end inside."""
    stream = lm.tokenizer.stream()
    return "".join(map(stream.push, ids))


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model("llama", tmp_path_factory.mktemp("tiny"))


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
