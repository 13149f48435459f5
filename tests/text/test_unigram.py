"""Unigram tokenizers: a table of cases, the tokenizers library's search and replacements, and what is damaged, by name."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Theirs
from tokenizers import models, normalizers

from camshaft.errors import ModelError
from camshaft.text.tokenizer import Tokenizer
from camshaft.text.tokenizers.charsmap import Charsmap
from camshaft.text.vocabulary import read_vocabulary
from tests.support.fixtures import awkward_strings
from tests.support.models.vocabularies import REPLACED, UNIGRAMS, charsmap, unigram

CASES = [
    ("hello", "▁hello"),
    ("  hello \u3000 hello\n", "▁hello ▁hello"),
    ("world", "▁wor ld"),
    ("１２3 ﬁ", "▁ 123 ▁ fi"),
    ("e\u0301é…", "▁ é é . .."),
    ("xyz q", "▁ <unk> ▁ <unk>"),
    ("h\u200bello[tool]中", "▁hello [tool] ▁ 中"),
    ("", ""),
]


@pytest.mark.parametrize(("text", "pieces"), CASES)
def test_the_best_pieces_are_found(text: str, pieces: str) -> None:
    tokenizer = Tokenizer.from_gguf(unigram())
    ids = tokenizer.encode(text, add_special=False)
    assert " ".join(tokenizer.vocabulary.tokens[i] for i in ids) == pieces
    assert tokenizer.encode(text) == [0, *ids, 2]


def test_spaces_that_are_kept_stand_before_the_one_that_is_added() -> None:
    tokenizer = Tokenizer.from_gguf(unigram(remove_extra_whitespaces=False))
    ids = tokenizer.encode("  hello  o", add_special=False)
    assert [tokenizer.vocabulary.tokens[i] for i in ids] == ["▁", "▁", "▁hello", "▁", "▁", "o"]
    assert tokenizer.decode(tokenizer.encode("hello o")) == "hello o"


def test_the_search_is_that_of_the_tokenizers_library() -> None:
    tokenizer = Tokenizer.from_gguf(unigram())
    theirs = Theirs(models.Unigram([("<unk>", 0.0), *UNIGRAMS.items()], unk_id=0))
    replaced = Charsmap(charsmap(REPLACED))
    for data in awkward_strings():
        text = data.decode("utf-8", "ignore")
        if "[tool]" in text:
            continue
        spaced = "".join("▁" + word for word in replaced(text).split(" ") if word)
        found = theirs.encode(spaced).ids
        ours = tokenizer.encode(text, add_special=False, parse_special=False)
        assert ours == [i + 3 for i in found], text


def test_replacements_are_those_of_the_tokenizers_library() -> None:
    data = charsmap(REPLACED)
    ours, theirs = Charsmap(data), normalizers.Precompiled(data)
    for text in [*REPLACED, "a１２b", "x\u00a0…y", "ﬁﬁ fi", "ｅ", "e", "", "\0a", "中…"]:
        assert ours(text) == theirs.normalize_str(text), text
    assert ours("".join(REPLACED)) == "".join(REPLACED.values())
    assert ours("e\u0301\u0301") == "é\u0301"
    assert ours("\udce9") == "\udce9"


def test_bytes_that_are_no_text_are_unknown() -> None:
    tokenizer = Tokenizer.from_gguf(unigram())
    for data in (b"\xff", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80"):
        assert tokenizer.encode(b"o" + data + b"o", add_special=False) == tokenizer.encode(
            "o\u2603o", add_special=False
        )


def _map(units: list[int], texts: bytes = b"x\0") -> np.ndarray:
    return np.frombuffer(struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + texts, np.uint8)


TWO_TOKENS: dict[str, Any] = {
    **dict.fromkeys(("unknown_token_id", "padding_token_id", "seperator_token_id", "precompiled_charsmap")),
    "tokens": ["▁", "a"],
    "token_type": [1, 1],
    "scores": [0.0, 0.0],
    "bos_token_id": 0,
    "eos_token_id": 1,
}
# A root whose children stand from 1 on: "a" is at 1 ^ 97, ends, and has its replacement at 0x60 ^ 1 ^ 0x3f.
DAMAGED: list[tuple[dict[str, Any], str]] = [
    ({"precompiled_charsmap": np.zeros(3, np.uint8)}, "has 3 bytes; wanted an array of 0"),
    ({"precompiled_charsmap": np.full(9, 255, np.uint8)}, "has 9 bytes; wanted an array of 4294967295"),
    ({"precompiled_charsmap": _map([0], b"")}, "has 8 bytes; wanted an array of 4"),
    ({"precompiled_charsmap": np.zeros(4, np.float32)}, "wanted an array of bytes"),
    ({"precompiled_charsmap": [1, 2, 300, 4]}, "wanted an array of bytes"),
    ({"precompiled_charsmap": "nmt"}, "wanted an array"),
    ({"unknown_token_id": 9999}, "wanted a token id below"),
    (TWO_TOKENS, "no unknown token"),
    ({"scores": [0.0]}, "1 entries for"),
    ({"remove_extra_whitespaces": "yes"}, "wanted true or false"),
]


@pytest.mark.parametrize(("changes", "words"), DAMAGED)
def test_what_is_damaged_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        Tokenizer.from_gguf(unigram(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("base", "units", "texts"),
    [
        (1, {1 ^ 97: 97 | 1 << 8 | 200 << 10, 96 ^ 200: 7}, b"x\0"),
        (1, {1 ^ 97: 97 | 1 << 8 | 200 << 10, 96 ^ 200: 0}, b"xx"),
        (1, {1 ^ 97: 97 | 1 << 8 | 200 << 10, 96 ^ 200: 0}, b"\xff\0"),
        (1, {1 ^ 97: 97 | 1 << 8 | 900 << 10}, b"x\0"),
    ],
)
def test_a_replacement_that_is_not_there_is_named(base: int, units: dict[int, int], texts: bytes) -> None:
    made = [units.get(i, 0) for i in range(256)]
    made[0] = base << 10
    with pytest.raises(ModelError, match="precompiled_charsmap is damaged: it has no text at"):
        Charsmap(_map(made, texts).tobytes())("a")


def test_an_array_that_leads_back_to_itself_ends_with_the_text() -> None:
    units = [1 << 10] + [0] * 255
    units[1 ^ 97] = 97 | (96 ^ 1) << 10
    assert Charsmap(_map(units).tobytes())("a" * 500) == "a" * 500


def test_pairs_stand_as_xlm_roberta_reads_them() -> None:
    assert read_vocabulary(unigram()).pair == ((0,), (2,), (2,))
    assert read_vocabulary(unigram(add_sep_token=True)).pair == ((0,), (2, 2), (2,))
