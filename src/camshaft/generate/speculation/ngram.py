"""Prompt lookup: draft what followed the same tokens earlier in the text (Saxena, 2023)."""

from __future__ import annotations

from collections.abc import Sequence

SHORTEST = 2  # tokens at the text's end that must have occurred together before
LONGEST = 16  # tokens that are compared
MOST_PLACES = 8  # earlier places of the last SHORTEST tokens that are compared, the latest first
# Lengths of repeated texts; within a class, all are equally likely to continue (pace.py).
CLASSES = (2, 3, 5, 9)


class NgramIndex:
    """The positions of each pair of tokens in a growing text; a draft costs a few microseconds."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}  # the tokens -> positions after them

    def follow(self, tokens: Sequence[int]) -> None:
        """Make `tokens` the text. If it continues the previous text, only the new tokens cost time; that is recognized by the
        previous last tokens. A text that was changed further back only gives worse drafts."""
        n = len(self._tokens)
        if len(tokens) < n or tokens[max(n - LONGEST, 0) : n] != self._tokens[-LONGEST:]:
            self._tokens, self._ends, n = [], {}, 0
        self._tokens += tokens[n:]
        for end in range(max(n, SHORTEST), len(self._tokens)):  # the text's own end does not count
            self._ends.setdefault(tuple(self._tokens[end - SHORTEST : end]), []).append(end)

    def draft(self, most: int) -> tuple[list[int], int]:
        """Up to `most` tokens that followed the longest repetition of the text's end, and its length; nothing if the last
        tokens are new. A repetition that reaches the text's end is repeated."""
        text = self._tokens
        places = self._ends.get(tuple(text[-SHORTEST:]), ())[-MOST_PLACES:]
        best, length = 0, 0
        for end in reversed(places):
            n = self._repeated(end)
            if n > length:
                best, length = end, n
            if n == LONGEST:
                break
        if not length:
            return [], 0
        period, found = len(text) - best, text[best : best + most]
        while len(found) < most:
            found.append(found[len(found) - period])
        return found, length

    def _repeated(self, end: int) -> int:
        """How many tokens before `end` equal those at the text's end."""
        text, n = self._tokens, SHORTEST
        while n < LONGEST and n < end and text[end - n - 1] == text[-n - 1]:
            n += 1
        return n


def length_class(length: int) -> int:
    """The index in CLASSES of a repetition of `length` tokens."""
    return max(least for least in CLASSES if least <= length)
