"""A conversation with the tiny model, whose template takes few tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from camshaft import LanguageModel
from camshaft.generate.conversation import Conversation
from tests.generate.conversations.short_texts import HOW, Template


@pytest.fixture(autouse=True)
def short_template(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(lm), "chat_template", Template())


@pytest.fixture
def runs(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each run of the model was given."""
    sizes: list[int] = []
    run = lm.plans.run
    monkeypatch.setattr(lm.plans, "run", lambda ids, *rest, **how: (sizes.append(len(ids)), run(ids, *rest, **how))[1])
    return sizes


@pytest.fixture
def conversation(lm: LanguageModel) -> Iterator[Conversation]:
    with lm.conversation(**HOW) as made:
        yield made
