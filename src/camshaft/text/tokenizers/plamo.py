"""PLaMo 2's encoder (tokenizer.ggml.model = plamo2): splits a text into the tokens, or bytes, with the highest total score."""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np

from camshaft.errors import ModelError
from camshaft.text.tokenizers.byte_level import decode_leniently
from camshaft.text.vocabulary import TokenType, Vocabulary

# Scores are compared in integer units of 1e-4. A character without a token costs more than any token.
UNIT, UNKNOWN, INVALID = 1e4, -10_000_000, -20_000_000
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_MARK = "\ufeff"
NOT_TEXT = (TokenType.BYTE, TokenType.CONTROL, TokenType.UNKNOWN)


class Plamo:
    """The encoder of a PLaMo vocabulary. Raises ModelError, when the first text is encoded, unless each byte has a token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @cached_property
    def _bytes(self) -> dict[int, int]:
        """The token of each byte."""
        ids = np.flatnonzero(np.asarray(self._vocabulary.types) == TokenType.BYTE).tolist()
        matches = ((_BYTE.fullmatch(self._vocabulary.tokens[i]), i) for i in ids)
        found = {int(match[1], 16): i for match, i in matches if match}
        lacking = [b for b in range(256) if b not in found]
        if lacking:
            raise ModelError(f"tokenizer.ggml.tokens: no token <0x{lacking[0]:02X}>; wanted one for each byte")
        return found

    @cached_property
    def _known(self) -> dict[str, tuple[int, int]]:
        """Returns (id, score) of each text token: no byte, control or unknown tokens, which text cannot spell."""
        vocabulary = self._vocabulary
        own = np.flatnonzero(~np.isin(vocabulary.types, NOT_TEXT)).tolist()
        scaled = vocabulary.scores.astype(np.float64) * UNIT
        scores = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int64).tolist()
        return {vocabulary.tokens[i]: (i, scores[i]) for i in own if scores[i] > INVALID}

    @cached_property
    def _lengths(self) -> dict[str, list[int]]:
        """Returns the lengths of tokens by first character, longest first."""
        found: dict[str, set[int]] = {}
        for token in self._known:
            found.setdefault(token[0], set()).add(len(token))
        return {first: sorted(lengths, reverse=True) for first, lengths in found.items()}

    def encode(self, data: bytes, after_special: bool) -> list[int]:
        """Encode a text fragment, by dynamic programming from its end; of equal scores, the longest first token wins."""
        text = decode_leniently(data).removeprefix(_MARK)
        n, known, lengths = len(text), self._known, self._lengths
        costs, steps = [0] * (n + 1), [1] * n
        for at in range(n - 1, -1, -1):
            best = None
            for length in lengths.get(text[at], ()):
                piece = known.get(text[at : at + length]) if at + length <= n else None
                if piece is not None and (best is None or costs[at + length] - piece[1] < best):
                    best, steps[at] = costs[at + length] - piece[1], length
            if best is None or costs[at + 1] - UNKNOWN < best:
                best, steps[at] = costs[at + 1] - UNKNOWN, 0
            costs[at] = best
        return self._tokens_of(text, steps)

    def _tokens_of(self, text: str, steps: list[int]) -> list[int]:
        """Returns the tokens of a path; a step of 0 is a character spelled in bytes."""
        tokens, at = [], 0
        while at < len(text):
            if steps[at]:
                tokens.append(self._known[text[at : at + steps[at]]][0])
            else:
                tokens += [self._bytes[b] for b in text[at].encode("utf-8", "surrogatepass")]
            at += steps[at] or 1
        return tokens

    def piece(self, token_id: int) -> bytes:
        """The bytes of a token."""
        token = self._vocabulary.tokens[token_id]
        match = _BYTE.fullmatch(token) if self._vocabulary.types[token_id] == TokenType.BYTE else None
        return bytes([int(match[1], 16)]) if match else token.encode("utf-8", "surrogatepass")
