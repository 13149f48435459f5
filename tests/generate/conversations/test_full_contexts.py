"""Conversations that fill the context: the oldest turns leave, or the answer ends; messages that never fit are refused."""

from __future__ import annotations

import pytest

from camshaft import LanguageModel
from camshaft.errors import ContextError
from camshaft.generate.conversation import Conversation
from tests.generate.conftest import CONTEXT
from tests.generate.conversations.short_texts import HOW, roles


def test_a_full_context_drops_the_oldest_turns_after_the_system_message(lm: LanguageModel) -> None:
    with lm.conversation(system="S", **HOW) as conversation:
        for turn in range(12):
            answer = conversation.say(f"{turn:02}")
            assert list(answer)
            assert answer.finish_reason == "length"
            assert answer.tokens == 4
            assert roles(conversation).startswith("sua")
            assert roles(conversation) == "s" + "ua" * (len(conversation.messages) // 2)
            assert len(conversation._session.tokens) <= CONTEXT + 1
        assert conversation.messages[0]["content"] == "S"
        assert conversation.dropped == 2 * 12 + 1 - len(conversation.messages) > 0
        assert conversation.messages[-2]["content"] == "11"


def test_an_answer_that_fills_the_context_goes_on_without_the_oldest_turns(lm: LanguageModel) -> None:
    with lm.conversation(**HOW) as conversation:
        for text in ("ab", "cd"):
            list(conversation.say(text))
        answer = conversation.say("ef", max_tokens=CONTEXT - 14)
        list(answer)
        assert (answer.finish_reason, answer.tokens) == ("length", CONTEXT - 14)
        assert conversation.dropped == 4
        assert [message["content"] for message in conversation.messages] == ["ef", answer.text]
        list(conversation.say("gh"))
        endless = lm.conversation(**HOW).say("ef", max_tokens=-1)  # there is nothing to drop
        list(endless)
        assert endless.finish_reason == "length"
        assert len(lm.tokenize("<u>ef<a>")) + endless.tokens == CONTEXT + 1


def test_without_context_shift_a_full_context_is_an_end_and_then_an_error(lm: LanguageModel) -> None:
    with lm.conversation(context_shift=False, **HOW) as conversation:
        list(conversation.say("ab"))
        answer = conversation.say("ef", max_tokens=CONTEXT)
        list(answer)
        assert answer.finish_reason == "length"
        assert conversation.dropped == 0
        before = list(conversation.messages)
        with pytest.raises(ContextError, match=rf"the conversation has \d+ tokens; the context is {CONTEXT}"):
            conversation.say("gh")
        assert conversation.messages == before


def test_a_message_that_never_fits_is_refused_at_once(lm: LanguageModel, conversation: Conversation) -> None:
    list(conversation.say("ab"))
    before = list(conversation.messages)
    with pytest.raises(ContextError, match=rf"the system message and this message have \d+ tokens; .* {CONTEXT}"):
        conversation.say("x" * 5 * CONTEXT)
    assert (conversation.messages, conversation.dropped) == (before, 0)
    assert list(conversation.say("cd"))
