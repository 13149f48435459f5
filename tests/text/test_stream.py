"""The streaming detokenizer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from camshaft.text.tokenizer import Tokenizer
from tests.support.models.vocabularies import byte_level, sentencepiece


def test_a_character_comes_when_it_is_whole() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    stream = tokenizer.stream()
    assert [stream.push(4 + b) for b in "a😀é".encode()] == ["a", "", "", "", "😀", "", "é"]
    assert stream.flush() == ""


def test_what_is_held_back_comes_at_the_end_as_replacement() -> None:
    stream = Tokenizer.from_gguf(byte_level()).stream()
    assert [stream.push(4 + b) for b in b"x\xf0\x9f"] == ["x", "", ""]
    assert stream.flush() == "\ufffd"
    assert stream.push(4 + ord("y")) == "y"


def test_a_broken_byte_does_not_swallow_what_follows() -> None:
    stream = Tokenizer.from_gguf(byte_level()).stream()
    assert "".join(stream.push(4 + b) for b in b"\xf0\x9fab\xff!") == "\ufffdab\ufffd!"


@given(st.text())
def test_pieces_add_up_to_the_text(text: str) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    stream = tokenizer.stream()
    pieces = [stream.push(i) for i in tokenizer.encode(text, parse_special=False)]
    assert "".join(pieces) + stream.flush() == text


def test_only_the_start_of_a_text_loses_its_space() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece())
    at_start, after = tokenizer.stream(at_start=True), tokenizer.stream()
    assert [at_start.push(i) for i in (1, 271, 271)] == ["", "hello", " hello"]
    assert [after.push(i) for i in (1, 271, 271)] == ["", " hello", " hello"]


def test_control_tokens_on_request() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    assert tokenizer.stream().push(0) == ""
    assert tokenizer.stream(special=True).push(0) == "<|end|>"
