"""Tokenizers of RWKV and PLaMo 2: tables of cases, texts that come back, and what is damaged, by name."""

from __future__ import annotations

import pytest

from camshaft.errors import ModelError
from camshaft.text.tokenizer import Tokenizer
from camshaft.text.tokenizers.trie import unescaped
from tests.support.fixtures import awkward_strings
from tests.support.models.vocabularies import plamo2, rwkv

CASES = [
    ("hello world", ["hello", " wor", "l", "d"]),
    ("hell", ["hel", "l"]),
    ("12312", ["123", "12"]),
    ("中文中", ["中文", "中"]),
    ("\t\t\\'s", [r"\t\t", r"\\", "'s"]),
]


@pytest.mark.parametrize(("text", "pieces"), CASES)
def test_the_longest_token_is_taken(text: str, pieces: list[str]) -> None:
    tokenizer = Tokenizer.from_gguf(rwkv())
    ids = tokenizer.encode(text)
    spelled = [tokenizer.vocabulary.tokens[i].encode() for i in ids]
    assert [unescaped(token) for token in spelled] == [unescaped(piece.encode()) for piece in pieces]


@pytest.mark.parametrize("made", [rwkv, plamo2])
def test_awkward_texts_come_back(made: object) -> None:
    tokenizer = Tokenizer.from_gguf(made())  # type: ignore[operator]
    for data in awkward_strings():
        text = data.decode("utf-8", "ignore").removeprefix("\ufeff")
        ids = tokenizer.encode(text, parse_special=False, add_special=False)
        assert tokenizer.decode_bytes(ids) == text.encode("utf-8", "surrogatepass")


def test_bytes_that_are_no_text_are_tokens_of_rwkv() -> None:
    tokenizer = Tokenizer.from_gguf(rwkv())
    assert tokenizer.encode(b"\xff\x00\xe4\xb8\xe4") == [256, 1, tokenizer.vocabulary.ids[r"\xe4\xb8"], 0xE4 + 1]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [(rb"\xff\t\n\r\\\'a", b"\xff\t\n\r\\'a"), (rb"\x4", b""), (b"a\\", b"a"), (rb"\x", b""), (rb"\q", b"q")],
)
def test_escapes_of_rwkv(text: bytes, wanted: bytes) -> None:
    assert unescaped(text) == wanted


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("hello wor", ["hell", "o", " wor"]),
        ("12", ["12"]),
        ("d", ["<0x64>"]),
        ("中文é", ["中文", "é"]),
        ("\ufeffo", ["o"]),
        ("\u20ac", ["<0xE2>", "<0x82>", "<0xAC>"]),
    ],
)
def test_the_best_pieces_of_plamo_are_found(text: str, pieces: list[str]) -> None:
    tokenizer = Tokenizer.from_gguf(plamo2())
    assert [tokenizer.vocabulary.tokens[i] for i in tokenizer.encode(text)] == pieces


@pytest.mark.parametrize("made", [rwkv, plamo2])
def test_a_text_that_spells_a_control_token_is_text(made: object) -> None:
    tokenizer = Tokenizer.from_gguf(made())  # type: ignore[operator]
    for text in tokenizer.control_texts:
        assert len(tokenizer.encode(text)) == 1
        ids = tokenizer.encode(text, parse_special=False)
        assert tokenizer.shows_all(ids)
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("made", [rwkv, plamo2])
def test_a_byte_without_a_token_is_named(made: object) -> None:
    metadata = made()  # type: ignore[operator]
    place = metadata["tokenizer.ggml.tokens"].index("A" if made is rwkv else "<0x41>")
    metadata["tokenizer.ggml.tokens"][place] = "AAAA"
    with pytest.raises(ModelError, match=r"no token .*41"):
        Tokenizer.from_gguf(metadata).encode("\u20ac")
