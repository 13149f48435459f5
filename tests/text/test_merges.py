"""Merges of short texts equal the library's for any vocabulary."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from camshaft.errors import ModelError
from camshaft.formats.gguf.file import open_gguf
from camshaft.text.tokenizer import Tokenizer
from camshaft.text.tokenizers.byte_level import SHORT_TEXT, merged, read_ranks
from tests.support.models.files import require_default_model
from tests.support.models.vocabularies import byte_level

TEXTS = ("Why is the sky blue?", "  \n\tif (x) { return 0x1F; }\r\n", "naïve Straße 123456 привет 世界 🙂🙂", "a" * 90)


def both(tokenizer: Tokenizer, library: Tokenizer, text: str) -> tuple[list[int], list[int]]:
    """The tokens by ranks, and by the library's table."""
    _ = library._encoder._model
    assert "_model" not in tokenizer._encoder.__dict__
    return tokenizer.encode(text), library.encode(text)


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "gpt-2"])
@given(text=st.text(max_size=60))
def test_small_vocabularies(pre: str, text: str) -> None:
    metadata = byte_level(pre)
    ours, theirs = both(Tokenizer.from_gguf(metadata), Tokenizer.from_gguf(metadata), text)
    assert ours == theirs


def test_the_default_models_vocabulary() -> None:
    with open_gguf(require_default_model()) as file:
        ours, theirs = (Tokenizer.from_gguf(file.metadata) for _ in range(2))
    rng = random.Random(1)
    drawn = ["".join(rng.choices("etaoin shrdlu'THE.,\n0123é世🙂", k=rng.randrange(200))) for _ in range(200)]
    for text in (*TEXTS, *drawn):
        short, long = both(ours, theirs, text)
        assert short == long, text


def test_a_long_text_takes_the_librarys_table() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    tokenizer.encode("hello " * (SHORT_TEXT // 6))
    assert "_model" not in tokenizer._encoder.__dict__
    tokenizer.encode("hello " * (SHORT_TEXT // 6 + 1))
    assert "_model" in tokenizer._encoder.__dict__


def test_the_lowest_rank_goes_first_and_then_the_leftmost() -> None:
    ids = {text: i for i, text in enumerate(["a", "b", "c", "ab", "bc", "aa", "abc"])}
    assert merged("abc", read_ranks(["b c", "a b"], ids)) == ["a", "bc"]
    assert merged("abc", read_ranks(["a b", "b c", "ab c"], ids)) == ["abc"]
    assert merged("aaa", read_ranks(["a a"], ids)) == ["aa", "a"]


def test_a_merge_that_makes_no_token_is_refused() -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.merges: the result of 'a b' is not a token"):
        read_ranks(["a b"], {"a": 0, "b": 1})
