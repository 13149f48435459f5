"""Conversations: what is processed again, full contexts, turns that fail, options of a turn, places shared with others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel, Sampling
from camshaft.errors import ContextError, LogitsError, ModelError, SettingError
from camshaft.generate.conversation import Conversation
from tests.generate.conftest import CONTEXT, SESSIONS
from tests.support.models.files import changed_model

GREEDY = Sampling(greedy=True)
HOW: Any = {"sampling": GREEDY, "ignore_eos": True, "max_tokens": 4}


class Template:
    """Renders a message as a letter for its role and its content, so that a tiny context holds several."""

    source = ""

    def render(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return "".join(f"<{m['role'][0]}>{m['content']}" for m in messages) + "<a>" * add_generation_prompt


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


def roles(conversation: Conversation) -> str:
    return "".join(message["role"][0] for message in conversation.messages)


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


class NaN:
    """Puts a NaN into the logits of every run from the n-th on."""

    def __init__(self, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
        self.left = n
        for name in ("run", "run_decode"):
            monkeypatch.setattr(lm.plans, name, self.wrapped(lm, getattr(lm.plans, name)))

    def wrapped(self, lm: LanguageModel, run: Any) -> Any:
        def spoiled(*given: Any, **how: bool) -> Any:
            result = run(*given, **how)
            self.left -= 1
            if self.left <= 0:
                assert isinstance(lm.plans.logits, np.ndarray)
                lm.plans.logits[0, 100] = np.nan
            return result

        return spoiled


@pytest.mark.parametrize(
    "sampling", [GREEDY, Sampling(), Sampling(temperature=0), Sampling(top_k=0, top_p=1, min_p=0, repeat_penalty=1.2)]
)
def test_nan_logits_end_a_generation_by_an_error(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, sampling: Sampling
) -> None:
    how: Any = HOW | {"sampling": sampling}
    with monkeypatch.context() as patch:
        NaN(lm, patch, 3)
        generation = lm.generate([5, 6, 7], **how)
        with pytest.raises(LogitsError, match=r"NaN logits for the token at position 5 \(after 2 generated tokens\)"):
            list(generation)
        assert (generation.tokens, generation.finish_reason) == (2, None)
    with monkeypatch.context() as patch:
        NaN(lm, patch, 1)
        with pytest.raises(LogitsError, match=r"prompt 0: .* position 3 \(after 0 generated tokens\)"):
            lm.generate_batch([[5, 6, 7], [8, 9]], **how).texts()
    with monkeypatch.context() as patch, lm.conversation(**how) as conversation:
        NaN(lm, patch, 2)
        with pytest.raises(LogitsError):
            list(conversation.say("ab"))
        assert conversation.messages == []


def test_a_model_with_nan_weights_gives_nan_logits_and_no_text(tiny_path: Any, tmp_path: Any) -> None:
    with LanguageModel(tiny_path, threads=1, context=CONTEXT, activations="f32") as whole:
        norm = np.full(whole.config.dim, np.nan, np.float32)
    path = changed_model("llama", tmp_path, tensors={"output_norm.weight": norm})
    with LanguageModel(path, threads=1, context=CONTEXT, activations="f32") as lm:
        assert np.isnan(lm.logits([5, 6])).all()
        for sampling in (GREEDY, Sampling()):
            with pytest.raises(LogitsError, match="position 2"):
                list(lm.generate([5, 6], sampling=sampling))


@pytest.mark.parametrize("n", [0, 1, 5, 10**6])
def test_logprobs_are_a_softmax_of_the_logits(lm: LanguageModel, n: int) -> None:
    how: Any = HOW | {"sampling": Sampling(seed=3, temperature=1.5, repeat_penalty=1.3), "logprobs": n}
    alone = lm.generate([5, 6, 7], **how)
    list(alone)
    batch = lm.generate_batch([[5, 6, 7], [9]], **how)
    batch.texts()
    logits = lm.logits([5, 6, 7, *alone.ids])[2:-1].astype(np.float64)
    truth = logits - logits.max(-1, keepdims=True)
    truth -= np.log(np.exp(truth).sum(-1, keepdims=True))
    for generation in (alone, batch.generations[0]):
        assert [each.id for each in generation.logprobs] == generation.ids == alone.ids
        for row, each in zip(truth, generation.logprobs, strict=True):
            assert each.logprob == pytest.approx(row[each.id], abs=1e-4)
            assert len(each.top) == min(n, len(row))
            assert [t.logprob for t in each.top] == pytest.approx(np.sort(row)[::-1][:n], abs=1e-4)
            assert {t.id: t.logprob for t in each.top} == pytest.approx({t.id: row[t.id] for t in each.top}, abs=1e-4)
            assert each.token == lm.tokenizer.spelling(each.id)
    silent = lm.generate([5], **HOW)
    list(silent)
    assert silent.logprobs == []


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
