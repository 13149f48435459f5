"""Conversations: what is processed again, turns that fail, options of a turn, places shared with others."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft import LanguageModel
from camshaft.errors import ContextError, ModelError, SettingError
from camshaft.generate.conversation import Conversation
from tests.generate.conftest import CONTEXT, SESSIONS
from tests.generate.conversations.short_texts import HOW, Template, roles


def test_a_turn_processes_only_what_is_new(lm: LanguageModel, conversation: Conversation, runs: list[int]) -> None:
    answer = conversation.say("ab")
    assert "".join(answer) == answer.text == conversation.messages[1]["content"]
    assert (answer.finish_reason, answer.tokens) == ("length", 4)
    del runs[:]
    "".join(conversation.say("cd"))
    assert runs[0] <= len(lm.tokenize("<u>cd<a>", add_special=False)) + 1  # and the last token of the answer before it
    assert roles(conversation) == "uaua"


def test_an_answer_is_what_generate_says_to_the_same_messages(lm: LanguageModel) -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "ab"}]
    with lm.conversation(system="S", **HOW) as conversation:
        said = "".join(conversation.say("ab"))
        assert said == "".join(lm.generate(messages=messages, **HOW))
        again = [*conversation.messages, {"role": "user", "content": "c"}]
        with lm.conversation(messages=conversation.messages, **HOW) as other:
            assert "".join(other.say("c")) == "".join(lm.generate(messages=again, **HOW))
    with lm.conversation(system="S", messages=messages[1:], **HOW) as conversation:
        assert conversation.messages == messages
        assert conversation.messages[1] is not messages[1]


def test_options_are_for_one_answer(lm: LanguageModel, conversation: Conversation) -> None:
    whole = "".join(conversation.say("ab", max_tokens=8))
    conversation.messages.clear()
    stop = whole[3]
    answer = conversation.say("ab", max_tokens=8, stop=stop)
    assert "".join(answer) == whole[: whole.index(stop)]
    assert answer.finish_reason == "stop"
    assert conversation.say("x").tokens == 0
    answer = conversation.say("x")
    list(answer)
    assert (answer.finish_reason, answer.tokens) == ("length", 4)


def test_after_a_stop_string_only_the_answer_is_processed_again(
    lm: LanguageModel, conversation: Conversation, runs: list[int]
) -> None:
    whole = "".join(conversation.say("ab", max_tokens=8))
    conversation.messages.clear()
    "".join(conversation.say("ab", max_tokens=8, stop=whole[4]))
    messages = [*conversation.messages, {"role": "user", "content": "c"}]
    del runs[:]
    said = "".join(conversation.say("c"))
    assert runs[0] <= len(lm.tokenize(whole[:4] + "<u>c<a>", add_special=False)) + 1
    assert said == "".join(lm.generate(messages=messages, **HOW))


def end_by_error(conversation: Conversation, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    lm = conversation._lm
    answer = conversation.say("cd")
    next(answer)
    with monkeypatch.context() as patch:
        patch.setattr(lm.plans, "run", lambda *_, **how: (_ for _ in ()).throw(error))
        with pytest.raises(type(error)):
            list(answer)


ENDS = {
    "closed": lambda conversation, _: (lambda answer: (next(answer), answer.close()))(conversation.say("cd")),
    "left": lambda conversation, _: next(conversation.say("cd")),
    "not begun": lambda conversation, _: conversation.say("cd"),
    "Ctrl-C": lambda conversation, patch: end_by_error(conversation, patch, KeyboardInterrupt()),
    "error": lambda conversation, patch: end_by_error(conversation, patch, ZeroDivisionError()),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_turn_that_fails_leaves_the_conversation_as_it_was(
    lm: LanguageModel, conversation: Conversation, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    "".join(conversation.say("ab"))
    before = [dict(message) for message in conversation.messages]
    ENDS[end](conversation, monkeypatch)
    assert conversation.messages == before
    said = "".join(conversation.say("ef"))
    assert said == "".join(lm.generate(messages=[*before, {"role": "user", "content": "ef"}], **HOW))
    assert lm.plans.cache.n_free == SESSIONS - 1


def test_a_new_message_ends_an_answer_that_is_not_finished(conversation: Conversation) -> None:
    first = conversation.say("ab")
    next(first)
    second = conversation.say("cd")
    assert list(first) == []
    assert first.finish_reason is None
    list(second)
    assert [message["content"] for message in conversation.messages][:1] == ["cd"]


@pytest.mark.parametrize("text", [5, None, b"x", ["x"]])
def test_types_are_checked_at_once(lm: LanguageModel, conversation: Conversation, text: Any) -> None:
    with pytest.raises(SettingError, match=f"the message came as {type(text).__name__}; wanted a text"):
        conversation.say(text)
    with pytest.raises(SettingError, match="GenerateOptions stop=5: wanted"):
        conversation.say("ab", stop=5)  # type: ignore[arg-type]
    assert conversation.messages == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"system": 5}, "system came as int; wanted a text"),
        ({"messages": "hi"}, "messages came as str"),
        ({"messages": {"role": "user", "content": "x"}}, "messages came as dict"),
        ({"messages": [{"role": "user"}]}, "message 0 is .*; wanted"),
        ({"messages": [{"role": "user", "content": "x"}, 7]}, "message 1 is 7; wanted"),
        ({"context_shift": "off"}, "context_shift='off'; wanted True or False"),
    ],
)
def test_what_a_conversation_cannot_begin_with_is_refused(lm: LanguageModel, given: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        lm.conversation(**given)


def test_generate_takes_a_prompt_or_messages(lm: LanguageModel) -> None:
    chat = [{"role": "user", "content": "x"}]
    for given in ({}, {"prompt": "x", "messages": chat}, {"messages": chat, "raw": True}, {"messages": []}):
        with pytest.raises(SettingError, match="generate got"):
            lm.generate(**given)  # type: ignore[arg-type]


def test_a_closed_conversation_says_so(lm: LanguageModel) -> None:
    conversation = lm.conversation(**HOW)
    list(conversation.say("ab"))
    conversation.close()
    conversation.close()
    with pytest.raises(ContextError, match="the conversation is closed"):
        conversation.say("cd")


def test_conversations_between_turns_give_their_places_to_others(lm: LanguageModel) -> None:
    talks = [lm.conversation(**HOW) for _ in range(2 * SESSIONS)]
    for text in ("ab", "cd"):
        said = ["".join(talk.say(text)) for talk in talks]
        assert len(set(said)) == 1
    batch = lm.generate_batch([[5, i] for i in range(SESSIONS)], **HOW)
    next(batch)
    assert len(batch._active) == SESSIONS
    batch.close()
    with lm.session(), lm.session(), lm.session(), pytest.raises(ContextError, match=f"all {SESSIONS} sessions"):
        next(talks[0].say("ef"))
    assert list(talks[0].say("ef"))
    for talk in talks:
        talk.close()


def test_a_closed_model_ends_a_conversation(tiny_path: Any) -> None:
    with LanguageModel(tiny_path, threads=1, context=CONTEXT) as lm:
        vars(lm)["chat_template"] = Template()
        conversation = lm.conversation(**HOW)
        answer = conversation.say("ab")
        next(answer)
    for call in (lambda: list(answer), lambda: conversation.say("cd"), lambda: lm.conversation()):
        with pytest.raises(ModelError, match="is closed"):
            call()


def test_sessions_and_what_they_generate_print_as_one_short_line(lm: LanguageModel, conversation: Conversation) -> None:
    assert repr(conversation) == "Conversation(0 messages, open)"
    answer = conversation.say("ab")
    assert repr(answer) == "Generation('', 0 tokens, in progress)"
    "".join(answer)
    assert repr(answer).endswith("', 4 tokens, length)")
    conversation.close()
    assert repr(conversation) == "Conversation(2 messages, closed)"
    with lm.session() as session:
        assert repr(session) == "Session(0 tokens in the cache, open)"
    assert repr(session) == "Session(0 tokens in the cache, closed)"
    with lm.generate_batch(["a", "b"], **HOW) as batch:
        batch.texts()
        assert repr(batch) == "Batch(2 sequences, 2 ended)"
