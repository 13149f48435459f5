"""The words into which each pre-tokenizer splits text."""

from __future__ import annotations

import pytest

from camshaft.errors import ModelError
from camshaft.text.tokenizers.pretokenizers import PRETOKENIZERS, pretokenizer

TEXT = "I've 1234  it'S\n\n x!="
WORDS = {
    "gpt-2": ["I", "'ve", " 1234", " ", " it", "'", "S", "\n\n", " x", "!="],
    "smollm": ["I", "'ve", " ", "1", "2", "3", "4", " ", " it", "'", "S", "\n\n", " x", "!="],
    "qwen2": ["I", "'ve", " ", "1", "2", "3", "4", " ", " it", "'S", "\n\n", " x", "!="],
    "llama-bpe": ["I", "'ve", " ", "123", "4", " ", " it", "'S", "\n\n", " x", "!="],
    "default": ["I", "'", "ve", " ", "123", "4", " ", " it", "'", "S", "\n\n", " x", "!="],
}


@pytest.mark.parametrize("name", WORDS)
def test_words(name: str) -> None:
    assert [word for word, _ in pretokenizer(name).splitter().pre_tokenize_str(TEXT)] == WORDS[name]


CASED = "aBigWord isn't A/b: HTTPServer 12345 Éa//\n x"
CASED_WORDS = {
    "gpt-4o": ["a", "Big", "Word", " isn't", " A", "/b", ":", " HTTPServer", " ", "123", "45", " Éa", "//\n", " x"],
    "tekken": ["a", "Big", "Word", " isn", "'t", " A", "/b", ":", " HTTPServer", " ", *"12345", " Éa", "//\n", " x"],
    "seed-coder": ["aBigWord", " isn", "'t", " A", "/b", ":", " HTTPServer", " ", *"12345", " Éa", "//", "\n", " x"],
}


@pytest.mark.parametrize("name", CASED_WORDS)
def test_words_end_where_capitals_follow_small_letters(name: str) -> None:
    assert [word for word, _ in pretokenizer(name).splitter().pre_tokenize_str(CASED)] == CASED_WORDS[name]


MARKED = "I've 1234 it'S\n !=a e\u0301x 中文ab xFF"
MARKED_WORDS = {
    "glm4": ["I", "'ve", " ", "123", "4", " it", "'S", "\n", " !=", "a", " e", "\u0301x", " 中文ab", " xFF"],
    "qwen35": ["I", "'ve", " ", *"1234", " it", "'S", "\n", " !=", "a", " e\u0301x", " 中文ab", " xFF"],
    "deepseek-v3": ["I", "'ve", " ", "123", "4", " it", "'S", "\n", " !=", "a", " e\u0301x", " ", "中文", "ab", " xFF"],
    "afmoe": ["I", "'ve", " ", "1", "234", " it", "'S", "\n", " !=", "a", " e\u0301x", " ", "中文", "ab", " xFF"],
    "bloom": ["I've", " 1234", " it'S", "\n !", "=a", " e\u0301x", " 中文ab", " xFF"],
    "kimi-k2": ["I've", " ", "123", "4", " it'S", "\n", " !=", "a", " e\u0301x", " ", "中文", "ab", " x", "FF"],
    "deepseek-coder": [
        *("I", "'", "ve", " "),
        *"1234",
        *(" it", "'", "S", "\n", " !", "=", "a", " e", "\u0301", "x"),
        " ",
        "中文",
        "ab",
        " xFF",
    ],
    "falcon": [
        "I",
        "'",
        "ve",
        " ",
        "123",
        "4",
        " it",
        "'",
        "S",
        "\n ",
        "!=",
        "a",
        " e",
        "\u0301",
        "x",
        " 中文ab",
        " xFF",
    ],
}


@pytest.mark.parametrize("name", MARKED_WORDS)
def test_marks_and_han_characters_join_words_or_not(name: str) -> None:
    assert [word for word, _ in pretokenizer(name).splitter().pre_tokenize_str(MARKED)] == MARKED_WORDS[name]


@pytest.mark.parametrize("name", PRETOKENIZERS)
def test_no_character_is_lost(name: str) -> None:
    text = "  a\t b\u00a0c\r\n\r\n 12ⅷ½ ſ's 'ſ é\u0301 ... 中文 \U0001f600\U0001f3fd\x00"
    assert "".join(word for word, _ in pretokenizer(name).splitter().pre_tokenize_str(text)) == text


def test_an_unknown_one_is_named() -> None:
    with pytest.raises(ModelError, match=r"'tekken9' .*known, such as tekken"):
        pretokenizer("tekken9")
