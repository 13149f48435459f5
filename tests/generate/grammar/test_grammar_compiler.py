"""Grammars compiled for a vocabulary: masks of the tokens that may follow, tokens that must, and what is remembered."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from camshaft import Grammar, LanguageModel
from camshaft.generate.grammar.matcher import MOST_KEPT, GrammarCompiler
from camshaft.text.tokenizer import Tokenizer
from tests.support.models.vocabularies import byte_level, sentencepiece
from tests.support.quick import full

pytest.importorskip("llguidance")
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
