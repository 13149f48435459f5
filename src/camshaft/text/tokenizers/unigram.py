"""Unigram encoder (tokenizer.ggml.model = t5; Kudo, 2018): the pieces of a normalized text whose scores have the largest sum."""

from __future__ import annotations

import functools
import math
import re
from functools import cached_property
from itertools import groupby

import numpy as np

from camshaft.errors import ModelError
from camshaft.text.tokenizers.byte_level import REPLACEMENT
from camshaft.text.tokenizers.charsmap import Charsmap
from camshaft.text.tokenizers.sentencepiece import SPACE
from camshaft.text.vocabulary import TokenType, Vocabulary

_INVALID = re.compile("[\ud800-\udfff]")  # bytes that are not UTF-8, as surrogateescape decodes them
_UNKNOWN_PENALTY = 10.0  # SentencePiece's
_WORDS = 1 << 14  # whose pieces are kept
_SPELLED = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)


class Unigram:
    """The encoder of a unigram vocabulary. Characters that no piece spells are the unknown token, once for a run of them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        if vocabulary.unk_id is None:
            raise ModelError("tokenizer.ggml.unknown_token_id: no unknown token")
        self._unk_id = vocabulary.unk_id
        self._charsmap = Charsmap(vocabulary.charsmap) if vocabulary.charsmap else None
        self._cached_pieces = functools.lru_cache(_WORDS)(self._pieces)

    @cached_property
    def _known(self) -> dict[str, tuple[int, float]]:
        """The pieces, with id and score: that of a user's own token is the largest."""
        vocabulary = self._vocabulary
        own = np.asarray(vocabulary.types) == TokenType.USER_DEFINED
        scores = np.where(own, 0.0, vocabulary.scores.astype(np.float64)).tolist()
        ids = np.flatnonzero(np.isin(vocabulary.types, _SPELLED)).tolist()
        tokens = list(vocabulary.tokens)
        return {tokens[i]: (i, scores[i]) for i in ids}

    @cached_property
    def _longest(self) -> dict[str, int]:
        """The length of the longest piece that begins with a character."""
        found: dict[str, int] = {}
        for piece in self._known:
            found[piece[0]] = max(len(piece), found.get(piece[0], 0))
        return found

    @cached_property
    def _unknown_score(self) -> float:
        normal = self._vocabulary.scores[np.asarray(self._vocabulary.types) == TokenType.NORMAL]
        return float(normal.min(initial=np.finfo(np.float32).max)) - _UNKNOWN_PENALTY

    @cached_property
    def _has_words(self) -> bool:
        """Whether no piece goes from one word to the next, so that words can be cut apart."""
        return not any(SPACE in piece[1:] for piece in self._known)

    def encode(self, data: bytes, after_special: bool) -> list[int]:
        """Encode a text fragment."""
        text = data.decode("utf-8", "surrogateescape")
        text = self._spaced(text if self._charsmap is None else self._charsmap(text))
        text = _INVALID.sub(REPLACEMENT, text)
        words = [SPACE + word for word in text.split(SPACE)] if self._has_words else [SPACE + text]
        words[0] = words[0].removeprefix(SPACE)
        found = (token for word in words for token in self._cached_pieces(word))
        runs = ((token, len(list(run))) for token, run in groupby(found))
        return [token for token, n in runs for _ in range(1 if token == self._unk_id else n)]

    def _spaced(self, text: str) -> str:
        """Words after marks of spaces: one for each run of spaces, or for each space and, if the file asks for it, one
        more before the first word."""
        if self._vocabulary.merges_spaces:
            return "".join(SPACE + word for word in text.split(" ") if word)
        first = len(text) - len(text.lstrip(" "))
        prefix = SPACE if self._vocabulary.add_space_prefix and first < len(text) else ""
        return SPACE * first + prefix + text[first:].replace(" ", SPACE)

    def _pieces(self, text: str) -> tuple[int, ...]:
        """The pieces with the largest sum of scores (Viterbi): the first ones found, of equal sums."""
        known, longest, n = self._known, self._longest, len(text)
        sums, origins, tokens = [0.0] + [-math.inf] * n, [0] * (n + 1), [self._unk_id] * (n + 1)
        for i, character in enumerate(text):
            single = False
            for end in range(i + 1, min(n, i + longest.get(character, 0)) + 1):
                if (piece := known.get(text[i:end])) is not None:
                    single |= end == i + 1
                    if sums[i] + piece[1] > sums[end]:
                        sums[end], origins[end], tokens[end] = sums[i] + piece[1], i, piece[0]
            if not single and sums[i] + self._unknown_score > sums[i + 1]:
                sums[i + 1], origins[i + 1], tokens[i + 1] = sums[i] + self._unknown_score, i, self._unk_id
        found, at = [], n
        while at:
            found.append(tokens[at])
            at = origins[at]
        return tuple(reversed(found))

    def piece(self, token_id: int) -> bytes:
        """The bytes of a token."""
        return self._vocabulary.tokens[token_id].replace(SPACE, " ").encode("utf-8", "surrogatepass")
