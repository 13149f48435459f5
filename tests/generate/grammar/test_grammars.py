"""Generating by a grammar: the text has the form, ends with it, and is the same alone, in a batch and beside other requests."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any

import numpy as np
import pytest

from camshaft import GenerateOptions, Grammar, LanguageModel, Sampling
from camshaft.errors import SettingError
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Update
from tests.generate.conftest import whole_text
from tests.generate.grammar.conftest import PROMPT, drawn
from tests.support.quick import quick_of
from tests.support.random_schemas import random_schema

pytest.importorskip("llguidance")
SEEDS = range(6)
PATTERN = r"[0-9]{3}-[a-f]{2,5}"
EXPRESSION = 'start: term ("+" term)~0..2\nterm: NUMBER | "(" NUMBER ")"\nNUMBER: /[1-9][0-9]{0,2}/'
RULES = 'root ::= item ("," item)?\nitem ::= [a-c] [0-9]+ "." | "none"'
# Grammar -> the regular expression that its texts match.
FORMS = {
    Grammar.regex(PATTERN): PATTERN,
    Grammar.choice(["yes", "no, never", "a+b", "hello\nworld"]): r"yes|no, never|a\+b|hello\nworld",
    Grammar.lark(EXPRESSION): r"([1-9]\d{0,2}|\([1-9]\d{0,2}\))(\+([1-9]\d{0,2}|\([1-9]\d{0,2}\))){0,2}",
    Grammar.gbnf(RULES): r"([a-c]\d+\.|none)(,([a-c]\d+\.|none))?",
}


@pytest.mark.parametrize("grammar", FORMS, ids=lambda grammar: grammar.kind)
def test_texts_have_the_form_and_end_with_it(lm: LanguageModel, grammar: Grammar) -> None:
    texts = set()
    for seed in SEEDS:
        generation = lm.generate(PROMPT, drawn(seed, grammar))
        text = "".join(generation)
        assert re.fullmatch(FORMS[grammar], text), text
        assert generation.finish_reason == "stop"
        assert whole_text(lm, generation.ids) == text
        texts.add(text)
    assert len(texts) > 1


def test_what_nothing_may_follow_ends_without_a_further_run(lm: LanguageModel) -> None:
    with lm.session() as session:
        generation = session.generate(PROMPT, drawn(0, Grammar.regex("[0-9]{4}")), ignore_eos=True)
        text = "".join(generation)
        assert (len(text), generation.finish_reason) == (4, "stop")
        assert session.position == len(PROMPT) + generation.tokens - 1  # the last token was not processed


def test_stop_strings_and_limits_end_it_earlier(lm: LanguageModel) -> None:
    cut = lm.generate(PROMPT, drawn(0, Grammar.regex("[0-9]{8}")), max_tokens=5)
    assert re.fullmatch("[0-9]{5}", "".join(cut))
    assert cut.finish_reason == "length"
    stopped = lm.generate(PROMPT, drawn(0, Grammar.regex("[0-9]{3}ab[0-9]{3}")), stop="b")
    assert re.fullmatch("[0-9]{3}a", "".join(stopped))


SAMPLINGS = ({"repeat_penalty": 2.0}, {}, {"mirostat": 2}, {"typical_p": 0.5, "xtc_probability": 1.0})


@pytest.mark.parametrize("more", quick_of(SAMPLINGS, SAMPLINGS[:1]))
def test_biases_and_penalties_cannot_leave_the_form(lm: LanguageModel, more: dict[str, Any]) -> None:
    inf = float("inf")
    bias = {5: inf, 6: 1e6, **dict.fromkeys(lm.tokenizer.encode("7", add_special=False), -inf)}
    wanted = GenerateOptions(sampling=Sampling(seed=1, logit_bias=bias, **more), grammar=Grammar.regex("[78]{6}"))
    assert "".join(lm.generate(PROMPT, wanted)) == "888888"


def test_neighbours_change_nothing(lm: LanguageModel) -> None:
    grammars = [None, *FORMS, Grammar.json_schema({"type": "array", "items": {"type": "boolean"}, "maxItems": 3})]
    options = [drawn(seed, grammar, max_tokens=24) for seed, grammar in enumerate(grammars)]
    wanted = ["".join(lm.generate(PROMPT, each)) for each in options]
    assert lm.generate_batch([PROMPT] * len(options), options).texts() == wanted
    told: list[list[Update]] = [[] for _ in options]
    with Engine(lm) as engine:
        engine.submit_all([(PROMPT, each, heard.append) for each, heard in zip(options, told, strict=True)])
        while engine.n_running or engine.n_waiting:
            engine.step()
    assert ["".join(update.text for update in updates) for updates in told] == wanted
    assert {updates[-1].finish_reason for updates in told[1:3]} == {"stop"}


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(i, marks=pytest.mark.full) for i in range(12, 200))])
def test_json_of_random_schemas_is_valid(lm: LanguageModel, seed: int) -> None:
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    schema = random_schema(np.random.default_rng(seed))
    validator.check_schema(schema)
    generation = lm.generate(PROMPT, drawn(seed, Grammar.json_schema(schema)), max_tokens=-1)
    text = "".join(generation)
    assert generation.finish_reason == "stop", text
    validator(schema, format_checker=validator.FORMAT_CHECKER).validate(json.loads(text))


def test_schemas_as_texts_classes_and_booleans() -> None:
    class Model:
        @staticmethod
        def model_json_schema() -> dict[str, Any]:
            return {"type": "string"}

    assert Grammar.json_schema(Model) == Grammar.json_schema('{"type":"string"}')
    assert Grammar.json_schema(True) == Grammar.json_schema({})  # llguidance takes no boolean
    with pytest.raises(SettingError, match="the JSON schema is false, which no value has; wanted an object or true"):
        Grammar.json_schema(False)
    assert repr(Grammar.json()) == "Grammar('json_schema', '{\"type\": \"object\"}')"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_generates_by_a_grammar(lm: LanguageModel) -> None:
    grammar = Grammar.regex("[0-9]{3}")
    wanted = "".join(lm.generate(PROMPT, drawn(1, grammar)))  # now the parent has the thread that compiles
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        os._exit("".join(lm.generate(PROMPT, drawn(1, grammar))) != wanted)
    assert os.waitpid(pid, 0)[1] == 0


def test_conversations_go_on_after_a_grammar(lm: LanguageModel) -> None:
    with lm.conversation(max_tokens=8) as chat:
        assert re.fullmatch("[0-9]{3}", "".join(chat.say("a", grammar=Grammar.regex("[0-9]{3}"))))
        assert re.fullmatch("[a-f]{3}", "".join(chat.say("b", grammar=Grammar.regex("[a-f]{3}"))))
        assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2
