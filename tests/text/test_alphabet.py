"""The byte-level alphabet, and decoding of invalid UTF-8."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from camshaft.text.tokenizers.byte_level import BYTE_TO_CHAR, decode_leniently, from_byte_level, to_byte_level


def test_every_byte_has_a_character_of_its_own() -> None:
    assert len(set(BYTE_TO_CHAR.values())) == 256
    assert to_byte_level(b" a\n\xad!") == "ĠaĊŃ!"


@given(st.binary())
def test_byte_level_goes_there_and_back(data: bytes) -> None:
    assert from_byte_level(to_byte_level(data)) == data


def test_a_character_outside_the_alphabet_stands_for_its_own_bytes() -> None:
    assert from_byte_level("aĠ中") == b"a \xe4\xb8\xad"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        ("häß 中 😀".encode(), "häß 中 😀"),
        (b"a\xffb", "a\ufffdb"),
        (b"\xe2\x82", "\ufffd\ufffd"),
        (b"\xf0\x9f\x98 \xc3", "\ufffd\ufffd\ufffd \ufffd"),
        (b"\xc0\x80\xe0\x80\xaf", "\x00/"),
        (b"\xed\xa0\x80", "\ud800"),
        (b"\xf4\x90\x80\x80", "\ufffd" * 4),
        (b"\xfc\x80", "\ufffd\ufffd"),
    ],
)
def test_broken_text_is_read_byte_by_byte(data: bytes, text: str) -> None:
    assert decode_leniently(data) == text


@given(st.text())
def test_whole_text_is_read_as_it_is(text: str) -> None:
    assert decode_leniently(text.encode()) == text


@given(st.binary())
def test_any_bytes_can_be_read(data: bytes) -> None:
    assert len(decode_leniently(data)) <= len(data)
