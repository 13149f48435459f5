"""WordPiece encoder (tokenizer.ggml.model = bert): lowercases, strips accents, takes the longest known pieces of each word."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator

from camshaft.errors import ModelError
from camshaft.text.tokenizers.byte_level import REPLACEMENT, decode_leniently
from camshaft.text.vocabulary import Vocabulary

# Marks the start of a word in GGUF files.
START = "▁"
UNKNOWN = "[UNK]"
# str.isspace is true for these; Unicode says control characters.
_SEPARATORS = "\x1c\x1d\x1e\x1f"
# Each ideograph is a word (Devlin et al., 2018).
_IDEOGRAPHS = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F)),
    *((0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)


class WordPiece:
    """The encoder of a WordPiece vocabulary. A word that has no split into pieces becomes one [UNK] token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        if UNKNOWN not in vocabulary.ids:
            raise ModelError(f"tokenizer.ggml.tokens: no token {UNKNOWN}")
        self._unknown = vocabulary.ids[UNKNOWN]
        self._longest = max(map(len, vocabulary.tokens))

    def encode(self, data: bytes, after_special: bool) -> list[int]:
        """Encode a text fragment."""
        return [token for word in words(decode_leniently(data)) for token in self._pieces(START + word)]

    def _pieces(self, word: str) -> list[int]:
        tokens, at = [], 0
        while at < len(word):
            ends = range(min(len(word), at + self._longest), at, -1)
            end = next((end for end in ends if word[at:end] in self._vocabulary.ids), 0)
            if not end:
                return [self._unknown]
            tokens.append(self._vocabulary.ids[word[at:end]])
            at = end
        return tokens

    def piece(self, token_id: int) -> bytes:
        """The bytes of a token, with a space before a word."""
        return self._vocabulary.tokens[token_id].replace(START, " ").encode("utf-8", "surrogatepass")


def words(text: str) -> Iterator[str]:
    """Yields the words of a text, lowercase and without accents. Each punctuation mark and each ideograph is a word."""
    word = ""
    for character in text:
        ends, given = _read(character)
        if not ends:
            word += given
            continue
        yield from filter(None, (word, given))
        word = ""
    if word:
        yield word


@functools.lru_cache(1 << 12)
def _read(character: str) -> tuple[bool, str]:
    """Returns whether a word ends at a character, and the normalized character ('' to drop it)."""
    base = unicodedata.normalize("NFD", character)[0]
    kind = unicodedata.category(base)
    if base.isspace() and base not in _SEPARATORS:
        return True, ""
    if base in ("\0", REPLACEMENT) or (kind[0] in "CM" and kind != "Cn"):
        return False, ""
    return _is_own_word(base, kind), base.lower()


def _is_own_word(character: str, kind: str) -> bool:
    """Whether a character is a word by itself."""
    code = ord(character)
    if kind.startswith("P") or (code < 0x7F and kind.startswith("S")):
        return True
    return code >= 0x3400 and any(first <= code <= last for first, last in _IDEOGRAPHS)
