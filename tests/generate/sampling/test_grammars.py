"""Generating by a grammar: the text has the form, ends with it, and is the same alone, in a batch and beside other requests."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from camshaft import GenerateOptions, Grammar, LanguageModel, Sampling
from camshaft.errors import GrammarError, MissingExtraError, SettingError
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Update
from camshaft.generate.grammar.grammar import MOST_CHARACTERS
from camshaft.generate.grammar.matcher import MOST_KEPT, GrammarCompiler
from camshaft.text.tokenizer import Tokenizer
from tests.generate.conftest import whole_text
from tests.support.fixtures import tiny_model
from tests.support.models.vocabularies import byte_level, sentencepiece
from tests.support.quick import full, quick_of
from tests.support.random_schemas import random_schema

pytest.importorskip("llguidance")

PROMPT = [40, 7, 81]
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


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    """A tiny llama with room for JSON."""
    path = tiny_model("llama", tmp_path_factory.mktemp("grammars"))
    with LanguageModel(path, threads=1, context=400, activations="f32", sessions=3) as made:
        yield made


def drawn(seed: int, grammar: Grammar | None, **others: Any) -> GenerateOptions:
    return GenerateOptions(sampling=Sampling(seed=seed, temperature=3, min_p=0), grammar=grammar, **others)


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
    assert Grammar.json_schema(True).text == "true"
    assert repr(Grammar.json()) == "Grammar('json_schema', '{\"type\": \"object\"}')"


WRONG: list[tuple[Any, str]] = [
    (lambda: Grammar("ebnf", ""), "kind='ebnf': wanted one of json_schema, regex, lark, gbnf"),
    (lambda: Grammar.regex(5), "Grammar.regex got int; wanted a text"),  # type: ignore[arg-type]
    (lambda: Grammar.lark("x" * (MOST_CHARACTERS + 1)), "got 262,145 characters; wanted at most 262,144"),
    (lambda: Grammar.choice("yes"), "Grammar.choice got 'yes'; wanted a list of texts"),
    (lambda: Grammar.choice([]), r"Grammar.choice got \[\]"),
    (lambda: Grammar.json_schema("{"), "the JSON schema is no JSON"),
    (lambda: Grammar.json_schema({1: {2}}), "the JSON schema is no JSON"),
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


# Each needs more than the 8 MB of a usual thread's stack.
CHAINS = [
    Grammar.lark("start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(18_000)) + '\nr18000: "a"'),
    Grammar.gbnf("root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(1500)) + '\nr1500 ::= "a"'),
    Grammar.json_schema(
        {
            "$ref": "#/$defs/a0",
            "$defs": {f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(4500)} | {"a4500": {}},
        }
    ),
]


@pytest.mark.parametrize("grammar", [CHAINS[0], *map(full, CHAINS[1:])], ids=lambda grammar: grammar.kind)
def test_long_chains_of_rules_are_followed(grammar: Grammar) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    assert GrammarCompiler(tokenizer, tokenizer.n_vocab).compile(grammar).mask().any()


def test_a_compiled_grammar_keeps_its_matcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a request which waited does not have it compiled again between the tokens of others."""
    tokenizer = Tokenizer.from_gguf(byte_level())
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    first = compiler.compiled(Grammar.regex("first"))
    for i in range(MOST_KEPT + 1):
        compiler.compile(Grammar.regex(f"a{i}"))
    monkeypatch.setattr(compiler, "_compile", None)
    assert compiler.compile(first).mask().any()
    assert repr(first) == "Grammar('regex', 'first')"
    freed = weakref.ref(compiler)
    del compiler
    monkeypatch.undo()
    assert freed() is None  # with its thread, though a grammar is left


def test_requests_at_once_compile_a_grammar_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    compile, compiled = compiler._compile, []
    monkeypatch.setattr(compiler, "_compile", lambda key: compiled.append(key) or compile(key))
    grammar = Grammar.regex("[a-z]{2,1000}")
    with ThreadPoolExecutor(8) as several:
        masks = list(several.map(lambda _: compiler.compile(grammar).mask(), range(40)))
    assert compiled == [grammar]
    assert all((mask == masks[0]).all() for mask in masks)


def test_a_long_text_that_must_follow_is_not_tokenized_to_its_end_for_each_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    encode, lengths = tokenizer.encode, []
    monkeypatch.setattr(
        tokenizer, "encode", lambda text, **options: lengths.append(len(text)) or encode(text, **options)
    )
    text = "hello wor 123 \N{SLIGHTLY SMILING FACE} " * 200
    matcher = GrammarCompiler(tokenizer, tokenizer.n_vocab).compile(Grammar.choice([text]))
    wanted = encode(text, add_special=False)
    for token in wanted:
        assert np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")) == [token]
        matcher.consume(token)
    assert max(lengths) <= 1000


def test_tokens_that_must_follow_are_known_without_a_mask() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    text, found = "hello wor 123 " * 9, list[int | None]()
    matcher = compiler.compile(Grammar.regex(f"{text}(hello|123)"))
    while (token := matcher.forced()) is not None:
        matcher.consume(token)
        found.append(token)
    assert not matcher.error
    assert found == tokenizer.encode(text, add_special=False)
    assert matcher.mask().any(), "where there is a choice"


def test_grammars_are_compiled_once_while_they_are_remembered(lm: LanguageModel) -> None:
    compiler = GrammarCompiler(lm.tokenizer, lm.config.vocab_size)
    first = compiler.compile(Grammar.regex("a1"))
    first.consume(5)
    assert first.error
    assert not compiler.compile(Grammar.regex("a1")).error
    for i in range(MOST_KEPT + 3):
        compiler.compile(Grammar.regex(f"a{i}"))
    assert len(compiler._kept) == MOST_KEPT


def allowed(compiler: GrammarCompiler, tokenizer: Tokenizer, grammar: Grammar) -> set[bytes]:
    bits = np.unpackbits(compiler.compile(grammar).mask().view(np.uint8), bitorder="little")
    return {tokenizer.spelled_bytes(int(i)) for i in np.flatnonzero(bits)}


def test_a_mask_has_the_tokens_that_may_follow() -> None:
    """Where only one text can follow, they are those of its own tokenization."""
    tokenizer = Tokenizer.from_gguf(byte_level())
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab + 40)
    first = {b"h", b"he", b"hell", b"hello", b"1", b"12", b"123", b" ", b" w", b" wor"}
    assert allowed(compiler, tokenizer, Grammar.regex("hello|12[0-9]| wor")) == first
    assert allowed(compiler, tokenizer, Grammar.regex("hello wor")) == {b"hello"}
    assert allowed(compiler, tokenizer, Grammar.regex("(hello)?")) >= {b"hello", b"<|end|>"}
    assert b"<|start|>" not in allowed(compiler, tokenizer, Grammar.regex(r"(.|\n)*"))
    assert b"[tool]" in allowed(compiler, tokenizer, Grammar.regex(r"(.|\n)*"))
    mask = compiler.compile(Grammar.regex(r"(.|\n)*")).mask()
    assert mask.shape == (-(-(tokenizer.n_vocab + 40) // 32),), "logits of no token have bits too"
    assert not mask[-(-tokenizer.n_vocab // 32) :].any()


def test_sentencepiece_texts_begin_without_a_blank() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece())
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    assert allowed(compiler, tokenizer, Grammar.regex("hello world")) == {b"h"}
    assert b" hello" in allowed(compiler, tokenizer, Grammar.regex(" hello( world)?"))


def test_a_vocabulary_without_an_end_and_a_missing_package(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(eos_token_id=None))
    tokenizer.eos_ids = frozenset()
    with pytest.raises(GrammarError, match="needs an end token"):
        GrammarCompiler(tokenizer, tokenizer.n_vocab)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.setattr(lm, "_grammars", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'camshaft\[grammar\]'"):
        lm.generate(PROMPT, grammar=Grammar.json())


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
