"""The tokenizer on vocabularies small enough to check by hand; llama.cpp gives the same ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from camshaft.errors import ModelError
from camshaft.text.tokenizer import Tokenizer
from camshaft.text.vocabulary import MAX_MERGES, MAX_TOKENS, fill_tokens, read_vocabulary, vocabulary_size
from tests.support.models.vocabularies import CONTROL, byte_level, sentencepiece

BYTE_LEVEL = {
    b"": [],
    b"hello world": [263, 266, 112, 104],
    b"hello  world's 123123": [263, 36, 266, 112, 104, 270, 36, 268, 268],
    b"hell\xc3\xb6 \xff\xf0\x9f": [262, 199, 186, 36, 243, 195, 193, 243, 195, 193, 243, 195, 193],
    b"<|long|><|end|>x<|end|>": [2, 124, 0],
    b"a[tool]b": [101, 3, 102],
    b"\xed\xa0\x80": [241, 164, 132],
}
SENTENCEPIECE = {
    b"": [1],
    b"hello world": [1, 271, 273, 262, 266],
    b" hello wor": [1, 259, 271, 273],
    b"hell\xc3\xb6 \xff\xf0\x9f": [1, 270, 198, 185, 259, 258, 243, 162],
    b"<s>hello</s> hello": [1, 1, 271, 2, 259, 271],
    "é▁h<0x41>".encode(): [1, 259, 276, 267, 63, 51, 123, 55, 52, 65],
    b"\xffhello": [1, 259, 258, 107, 104, 111, 262, 263],
}


@pytest.mark.parametrize(("text", "ids"), BYTE_LEVEL.items())
def test_byte_level(text: bytes, ids: list[int]) -> None:
    assert Tokenizer.from_gguf(byte_level()).encode(text) == ids


@pytest.mark.parametrize(("text", "ids"), SENTENCEPIECE.items())
def test_sentencepiece(text: bytes, ids: list[int]) -> None:
    assert Tokenizer.from_gguf(sentencepiece()).encode(text) == ids


def test_digits_are_cut_as_the_pretokenizer_says() -> None:
    assert Tokenizer.from_gguf(byte_level("smollm")).encode("123") == [53, 54, 55]
    assert Tokenizer.from_gguf(byte_level("llama-bpe")).encode("123", add_special=False) == [268]


def test_control_tokens_in_text_are_text_unless_parsed() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    assert tokenizer.encode("<|end|>") == [0]
    spelled = tokenizer.encode("<|end|>", parse_special=False)
    assert 0 not in spelled
    assert tokenizer.decode(spelled) == "<|end|>"
    assert tokenizer.encode("[tool]", parse_special=False) == [3]


@pytest.mark.parametrize("flag", [True, False])
def test_first_and_last_token_as_the_file_asks(flag: bool) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(add_bos_token=flag, add_eos_token=flag))
    assert tokenizer.encode("he") == ([1, 260, 0] if flag else [260])
    assert tokenizer.encode("he", add_special=False) == [260]


def test_no_space_before_the_text_where_the_file_says_so() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece(add_space_prefix=False))
    assert tokenizer.encode("hello", add_special=False) == [260, 269, 263]
    assert tokenizer.decode([271]) == " hello"


def test_neighbours_of_a_byte_that_the_vocabulary_lacks_do_not_merge() -> None:
    metadata = byte_level()
    metadata["tokenizer.ggml.tokens"][4 + ord("-")] = "no byte"
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode("h-e") == tokenizer.encode("h") + tokenizer.encode("e")
    assert tokenizer.encode("he") == [260]


@given(st.text())
def test_byte_level_text_comes_back(text: str) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text


@given(st.text().filter(lambda text: "▁" not in text))
def test_sentencepiece_text_comes_back(text: str) -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece())
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text


def test_control_tokens_are_not_shown_unless_asked_for() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    assert tokenizer.decode([1, 263, 3, 0]) == "hello[tool]"
    assert tokenizer.decode([1, 263, 0], special=True) == "<|start|>hello<|end|>"
    assert [tokenizer.decode_bytes([i]) for i in (0, 3)] == [b"", b"[tool]"]


def test_a_token_outside_the_vocabulary_is_an_error() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    for wrong in (-1, tokenizer.n_vocab):
        with pytest.raises(ModelError, match=f"no token {wrong}"):
            tokenizer.decode([wrong])


def test_end_tokens_are_those_named_and_those_that_look_like_it() -> None:
    tokens = byte_level()["tokenizer.ggml.tokens"]
    tokens[300 - 40] = "<|im_end|>"
    tokenizer = Tokenizer.from_gguf(byte_level(tokens=tokens, merges=[], eot_token_id=2))
    assert tokenizer.eos_ids == {0, 2, 260}
    assert tokenizer.vocabulary.types[260] == CONTROL


def test_arrays_of_numpy_will_do() -> None:
    metadata = byte_level()
    metadata["tokenizer.ggml.token_type"] = np.array(metadata["tokenizer.ggml.token_type"], np.int32)
    metadata["tokenizer.ggml.bos_token_id"] = np.uint32(1)
    assert Tokenizer.from_gguf(metadata).bos_id == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "word2vec"}, "unknown tokenizer model 'word2vec'"),
        ({"model": None}, "tokenizer.ggml.model"),
        ({"pre": "nobody"}, "unknown pre-tokenizer 'nobody'"),
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokens": [1, 2]}, "array of texts"),
        ({"tokens": ["a", "b", "a"]}, "occur twice"),
        ({"merges": None}, "tokenizer.ggml.merges"),
        ({"token_type": [1, 1]}, "2 entries"),
        ({"token_type": ["a"] * 300}, "array of integers"),
        ({"bos_token_id": 10**6}, "bos_token_id is 1000000"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"eot_token_id": "x"}, "eot_token_id is 'x'"),
        ({"add_bos_token": True, "bos_token_id": None}, "add_bos_token asks"),
        ({"model": [1]}, r"tokenizer.ggml.model is \[1\]; wanted a text"),
        ({"model": "a\x1b[2J" + "b" * 500}, r"unknown tokenizer model 'a\\x1b\[2Jb{60,75}\.\.\.' "),
        ({"tokens": "a"}, "tokenizer.ggml.tokens is 'a'; wanted an array"),
        ({"token_type": 3}, "tokenizer.ggml.token_type is 3; wanted an array"),
        ({"token_type": [1.5] * 300}, "array of integers"),
        ({"token_type": [True] * 300}, "array of integers"),
        ({"token_type": [[1], [2, 3]] * 300}, "array of integers"),
        ({"token_type": np.full(300, np.nan, np.float32)}, "array of integers"),
        ({"token_type": np.full(300, 2**40)}, "not a finite number of 32 bits"),
        ({"token_type": [10**30] * 300}, "array of integers"),
        ({"bos_token_id": True}, "bos_token_id is True: wanted a token id below"),
        ({"bos_token_id": 1.0}, "bos_token_id is 1.0: wanted a token id"),
        ({"bos_token_id": np.arange(900).reshape(30, 30)}, r"bos_token_id is \[\[.{60,80}: wanted a token id"),
        ({"eos_token_id": 2**64 - 1}, "eos_token_id is 18446744073709551615"),
        ({"add_bos_token": np.ones(2, bool)}, r"add_bos_token is \[True, True\]; wanted true or false"),
        ({"add_eos_token": "no"}, "add_eos_token is 'no'; wanted true or false"),
        ({"add_bos_token": 2}, "add_bos_token is 2; wanted true or false"),
    ],
)
def test_what_is_missing_or_wrong_is_named(change: dict[str, Any], message: str) -> None:
    change = dict(change)
    pre = change.pop("pre", "gpt-2")
    with pytest.raises(ModelError, match=message) as caught:
        Tokenizer.from_gguf(byte_level(pre, **change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": [float("nan")] * 300}, "tokenizer.ggml.scores has a value that is not a finite number"),
        ({"scores": np.full(300, 1e300)}, "not a finite number of 32 bits"),
        ({"scores": ["a"] * 300}, "array of numbers"),
        ({"add_space_prefix": np.ones(2, bool)}, "wanted true or false"),
    ],
)
def test_what_is_wrong_in_a_sentencepiece_vocabulary_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_gguf(sentencepiece(**change))


def test_a_vocabulary_has_at_most_a_million_tokens() -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.tokens has 1048577 tokens; wanted 1 to 1048576"):
        vocabulary_size({"tokenizer.ggml.tokens": range(MAX_TOKENS + 1)})
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.merges has 4194305 entries; wanted at most 4194304"):
        read_vocabulary(byte_level(merges=range(MAX_MERGES + 1)))


def test_merges_of_unknown_tokens_are_an_error() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(merges=["xx yy"]))
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.merges"):
        tokenizer.encode("x")


def test_missing_byte_tokens_are_an_error() -> None:
    tokens = sentencepiece()["tokenizer.ggml.tokens"]
    tokens[3 + 0x41] = "no byte"
    with pytest.raises(ModelError, match="<0x41>"):
        Tokenizer.from_gguf(sentencepiece(tokens=tokens))


def test_end_of_a_message_is_no_end_of_an_answer_that_has_several() -> None:
    metadata = byte_level()
    ends = {ord("+"): "<|return|>", ord("-"): "<|call|>"}
    for code, text in ends.items():
        metadata["tokenizer.ggml.tokens"][4 + code] = text
    metadata["tokenizer.ggml.eos_token_id"] = 4 + ord("+")
    assert Tokenizer.from_gguf(metadata).eos_ids == {4 + code for code in ends}
    metadata["tokenizer.ggml.tokens"][4 + ord("-")] = "no call"
    assert Tokenizer.from_gguf(metadata).eos_ids == {0, 4 + ord("+")}


def test_tokens_to_fill_in_are_found_by_name_or_text() -> None:
    metadata = byte_level() | {"tokenizer.ggml.fim_pre_token_id": 7}
    ids = {**{str(i): i for i in range(8)}, "<|fim_suffix|>": 8, "<|fim_prefix|>": 9}
    assert fill_tokens(metadata, ids) == {"fim_pre": 7, "fim_suf": 8}


def test_control_tokens_that_are_shown() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    ids = [0, 101, 2, 0]
    assert "".join(map(tokenizer.stream().push, ids)) == "a"
    assert "".join(map(tokenizer.stream(shown=["<|end|>", "<none>"]).push, ids)) == "<|end|>a<|end|>"
