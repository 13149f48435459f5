"""Byte-level BPE encoder (tokenizer.ggml.model = gpt2)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

from tokenizers import Tokenizer as Merger
from tokenizers import models, pre_tokenizers

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown
from camshaft.text.tokenizers.pretokenizers import pretokenizer
from camshaft.text.vocabulary import Vocabulary, as_dict

REPLACEMENT = "\ufffd"

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_SHIFTED = tuple(b for b in range(256) if b not in _PRINTABLE)

# Byte -> the character that represents it in a byte-level vocabulary, and the reverse.
BYTE_TO_CHAR: dict[int, str] = {
    **{b: chr(b) for b in _PRINTABLE},
    **{b: chr(256 + i) for i, b in enumerate(_SHIFTED)},
}
CHAR_TO_BYTE: dict[str, int] = {c: b for b, c in BYTE_TO_CHAR.items()}

# A lead byte with its continuation bytes, including overlong forms and surrogates, or any single byte.
_CHARACTER = re.compile(
    rb"[\x00-\x7f]+|[\xc0-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf7][\x80-\xbf]{3}|.", re.DOTALL
)
_LEAD_BITS = {2: 0x1F, 3: 0x0F, 4: 0x07}


def to_byte_level(data: bytes) -> str:
    """Represent each byte of `data` by one character of GPT-2's byte alphabet."""
    return "".join(map(BYTE_TO_CHAR.__getitem__, data))


def from_byte_level(text: str) -> bytes:
    """The bytes of a byte-level token; characters outside the alphabet give their UTF-8."""
    try:
        return bytes(map(CHAR_TO_BYTE.__getitem__, text))
    except KeyError:
        return b"".join(bytes((CHAR_TO_BYTE[c],)) if c in CHAR_TO_BYTE else c.encode() for c in text)


def decode_leniently(data: bytes) -> str:
    """Decode UTF-8 as llama.cpp does, with one U+FFFD per invalid byte.

    Overlong forms are decoded, and surrogates stay lone surrogates. Code points above U+10FFFF, for which llama.cpp aborts, give
    one U+FFFD per byte.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(_lenient_character(m.group()) for m in _CHARACTER.finditer(data))


def _lenient_character(unit: bytes) -> str:
    if unit[0] < 0x80:
        return unit.decode("ascii")
    if len(unit) == 1:
        return REPLACEMENT
    code = unit[0] & _LEAD_BITS[len(unit)]
    for byte in unit[1:]:
        code = code << 6 | byte & 0x3F
    return chr(code) if code <= 0x10FFFF else REPLACEMENT * len(unit)


_SURROGATE = re.compile("[\ud800-\udfff]")
# Replaces surrogates while splitting: like them it is not a letter, number, space, punctuation or symbol in any pattern.
_REPLACEMENT = "\ue000"
# Token for bytes missing from the vocabulary: prevents merges across them and is removed afterwards.
_ABSENT = "\x00absent"


# Texts above these lengths use the library's merge table, which takes 50 ms to build for 49k merges; ranks take 15 ms.
SHORT_TEXT, SHORT_WORD = 2000, 100
Ranks = Mapping[str, int]


def read_ranks(merges: Sequence[str], ids: Mapping[str, int]) -> Ranks:
    """Returns the rank of each merge, for duplicates the last one's. Raises ModelError for a merge whose result is not a token.

    The halves need no check: words start as single-byte tokens, and every merge gives a token."""
    results = [merge.replace(" ", "") for merge in merges]
    if not ids.keys() >= set(results):
        merge = next(m for m, text in zip(merges, results, strict=True) if text not in ids)
        raise ModelError(f"tokenizer.ggml.merges: the result of {shown(merge)} is not a token")
    return dict(zip(merges, range(len(merges)), strict=True))


def merged(word: str, ranks: Ranks) -> list[str]:
    """Split a byte-level word into tokens: repeatedly join the adjacent pair of lowest rank, leftmost first."""
    parts = list(word)
    while len(parts) > 1:
        ranked = [(ranks[pair], i) for i, pair in enumerate(map(" ".join, pairwise(parts))) if pair in ranks]
        if not ranked:
            break
        _, at = min(ranked)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


class ByteLevel:
    """The encoder of a byte-level vocabulary. The library's merge table is built only for the first long text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._pretokenizer = pretokenizer(vocabulary.pre)

    @cached_property
    def _model(self) -> models.BPE:
        ids, merges = as_dict(self._vocabulary.ids), [_pair(merge) for merge in self._vocabulary.merges]
        options: dict[str, Any] = {"ignore_merges": self._pretokenizer.ignore_merges}
        if not ids.keys() >= set(BYTE_TO_CHAR.values()):
            ids, options["unk_token"] = {**ids, _ABSENT: len(ids)}, _ABSENT
        try:
            return models.BPE(ids, merges, **options)
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"tokenizer.ggml.merges: {shown(str(error), 200)}") from error

    @cached_property
    def _speller(self) -> pre_tokenizers.PreTokenizer:
        """Splits a text into words in byte-level spelling."""
        spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([self._pretokenizer.splitter(), spelling])

    @cached_property
    def _merger(self) -> Merger:
        merger = Merger(self._model)
        merger.pre_tokenizer = self._speller
        return merger

    @cached_property
    def _ranks(self) -> Ranks:
        known = self._vocabulary.ranks
        return read_ranks(self._vocabulary.merges, self._vocabulary.ids) if known is None else known

    def _short(self, text: str) -> list[int] | None:
        """Encode a short text without the library's merge table. None if the table exists already, the text is too long, or it
        has bytes missing from the vocabulary."""
        if len(text) > SHORT_TEXT or "_model" in self.__dict__:
            return None
        ids, ranks, tokens = self._vocabulary.ids, self._ranks, list[int]()
        words = [word for word, _ in self._speller.pre_tokenize_str(text)]
        if any(len(word) > SHORT_WORD or not ids.keys() >= set(word) for word in words):
            return None
        for word in words:
            is_token = self._pretokenizer.ignore_merges and word in ids
            tokens += [ids[part] for part in ([word] if is_token else merged(word, ranks))]
        return tokens

    def encode(self, data: bytes, after_special: bool) -> list[int]:
        """Encode a text fragment. `after_special` is not used here."""
        text = decode_leniently(data)
        if _SURROGATE.search(text):
            return self._encode_with_surrogates(text)
        short = self._short(text)
        return self._present(self._merger.encode(text, add_special_tokens=False).ids) if short is None else short

    def _encode_with_surrogates(self, text: str) -> list[int]:
        """Encode word by word: the library's strings cannot hold lone surrogates."""
        words = self._pretokenizer.splitter().pre_tokenize_str(_SURROGATE.sub(_REPLACEMENT, text))
        spellings = (to_byte_level(text[a:b].encode("utf-8", "surrogatepass")) for _, (a, b) in words)
        return self._present([token.id for spelling in spellings for token in self._model.tokenize(spelling)])

    def _present(self, ids: list[int]) -> list[int]:
        absent = len(self._vocabulary.tokens)
        return [i for i in ids if i != absent] if absent in ids else ids

    def piece(self, token_id: int) -> bytes:
        """The bytes of a normal token."""
        return from_byte_level(self._vocabulary.tokens[token_id])
