"""Grammars that are wrong, unusable or too complex say why in a line, and end their own request alone."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from camshaft import GenerateOptions, Grammar, LanguageModel
from camshaft.errors import GrammarError, MissingExtraError, SettingError
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Update
from camshaft.generate.grammar.grammar import MOST_CHARACTERS
from camshaft.generate.grammar.matcher import GrammarCompiler
from camshaft.text.tokenizer import Tokenizer
from tests.generate.grammar.conftest import PROMPT, drawn
from tests.support.models.vocabularies import byte_level

pytest.importorskip("llguidance")
WRONG: list[tuple[Any, str]] = [
    (lambda: Grammar("ebnf", ""), "kind='ebnf': wanted one of json_schema, regex, lark, gbnf"),
    (lambda: Grammar.regex(5), "Grammar.regex got int; wanted a text"),  # type: ignore[arg-type]
    (lambda: Grammar.lark("x" * (MOST_CHARACTERS + 1)), "got 262,145 characters; wanted at most 262,144"),
    (lambda: Grammar.choice("yes"), "Grammar.choice got 'yes'; wanted a list of texts"),
    (lambda: Grammar.choice([]), r"Grammar.choice got \[\]"),
    (lambda: Grammar.json_schema("{"), "the JSON schema is not JSON"),
    (lambda: Grammar.json_schema({1: {2}}), "the JSON schema is not JSON"),
    (lambda: Grammar.json_schema([1]), r"the JSON schema is \[1\]; wanted an object"),
    (lambda: GenerateOptions(grammar="[0-9]"), r"grammar='\[0-9\]': wanted a camshaft.Grammar or None"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_arguments_are_refused_at_once(make: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()


UNUSABLE = [
    (Grammar.regex("("), "the regular expression cannot be used: .*unclosed group"),
    (Grammar.lark("start: A"), "the Lark grammar cannot be used: .*unknown name"),
    (Grammar.gbnf("root := 5"), "the GBNF grammar cannot be used: Expected ::="),
    (Grammar.gbnf("root ::= " + "(" * 20_000), "the GBNF grammar cannot be used: "),
    (Grammar.gbnf("a ::= b"), "the GBNF grammar cannot be used: Rule 'b' not found"),
    (Grammar.gbnf("root ::= \\"), "the GBNF grammar cannot be used: "),
    (Grammar.gbnf('root ::= root "a"'), "no token can follow"),
    (Grammar.json_schema({"$ref": "#"}), "no token can follow"),
    (Grammar.regex("(" * 5000 + ")" * 5000), "the regular expression cannot be used: .*nest"),
    (Grammar.json_schema({"not": {}}), 'Unimplemented keys: \\["not"\\]'),
    (Grammar.json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
    (Grammar.json_schema({"type": "string", "format": "colour"}), "Unknown format: colour"),
    (Grammar.json_schema({"enum": []}), "Unsatisfiable"),
    (Grammar.json_schema({"type": "integer", "minimum": 5, "maximum": 3}), "Unsatisfiable"),
    (Grammar.json_schema({"$ref": "http://localhost/schema"}), "not present"),
]


@pytest.mark.parametrize(("grammar", "message"), UNUSABLE, ids=lambda v: v.kind if isinstance(v, Grammar) else "")
def test_grammars_that_cannot_be_used_say_why_in_a_line(lm: LanguageModel, grammar: Grammar, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as error:
        list(lm.generate(PROMPT, grammar=grammar))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_a_grammar_that_becomes_too_complex_ends_its_request_alone(
    lm: LanguageModel, capfd: pytest.CaptureFixture[str]
) -> None:
    grammar = Grammar.lark("start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(40)) + '\nr40: "a"')
    ended: list[Update] = []
    others: list[Update] = []
    with Engine(lm) as engine:
        engine.submit(PROMPT, drawn(0, grammar, max_tokens=9), ended.append)
        engine.submit(PROMPT, drawn(0, None, max_tokens=9, ignore_eos=True), others.append)
        while engine.n_running or engine.n_waiting:
            engine.step()
    assert isinstance(ended[-1].error, GrammarError)
    assert re.match("the grammar failed after [0-9] tokens: ", str(ended[-1].error))
    assert others[-1].finish_reason == "length"
    with pytest.raises(GrammarError, match=r"the grammar failed after [0-9] tokens: [^\n]*$"):
        list(lm.generate(PROMPT, drawn(0, grammar)))
    assert capfd.readouterr() == ("", "")  # llguidance warns of it by itself


def test_forbidding_each_token_that_may_follow_is_named(lm: LanguageModel) -> None:
    (seven,) = lm.tokenizer.encode("7", add_special=False)
    with pytest.raises(GrammarError, match="after 0 tokens: each token that may follow has a logit of -inf"):
        list(lm.generate(PROMPT, grammar=Grammar.regex("7{3}"), logit_bias={seven: float("-inf")}))


def test_a_vocabulary_without_an_end_and_a_missing_package(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(eos_token_id=None))
    tokenizer.eos_ids = frozenset()
    with pytest.raises(GrammarError, match="needs an end token"):
        GrammarCompiler(tokenizer, tokenizer.n_vocab)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.setattr(lm, "_grammars", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'camshaft\[grammar\]'"):
        lm.generate(PROMPT, grammar=Grammar.json())
