"""PictureToken: a token whose embedding is of a picture and not of the vocabulary.

It is an int, the id of the marker in the text, so that it goes wherever token ids go: prompts, sessions, batches, requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Span:
    """The tokens of a picture, or of one tile of it, that follow each other: `rows` f32 [tokens, width] are their embeddings.
    Spans of equal digests have equal rows. They are `columns` wide."""

    rows: Array
    digest: bytes
    columns: int

    @property
    def extent(self) -> int:
        """The positions that the span takes where positions have axes: its longer side."""
        return max(self.columns, len(self.rows) // self.columns)


@dataclass(frozen=True)
class Seeing:
    """How a text model takes pictures: embeddings of `width` numbers (0: none), all tokens of a picture in one run if they see
    each other `together` (in layers with a window alone: `windows_only`), positions with `axes` axes (0: one for all)."""

    width: int = 0
    together: bool = False
    axes: int = 0
    windows_only: bool = False


BLIND = Seeing()


class PictureToken(int):
    """A token of a picture, number `index` of its span. Equal to a token of the same number of an equal span, and to no int."""

    span: Span
    index: int

    def __new__(cls, marker: int, span: Span, index: int) -> PictureToken:
        """`marker` is the id of a token in the vocabulary, which stands for the picture where only ids count."""
        made = super().__new__(cls, marker)
        made.span, made.index = span, index
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PictureToken) and (other.index, other.span.digest) == (self.index, self.span.digest)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.index, self.span.digest))

    @property
    def name(self) -> bytes:
        """Bytes that no other token has: the span's digest and the number."""
        return self.span.digest + self.index.to_bytes(4, "little")


def tokens_of(span: Span, marker: int) -> list[int]:
    """All tokens of a span."""
    return [PictureToken(marker, span, i) for i in range(len(span.rows))]


def is_end(token: int) -> bool:
    """Whether a token is the last one of its picture, or of none."""
    return not isinstance(token, PictureToken) or token.index == len(token.span.rows) - 1


def has_pictures(ids: Iterable[int]) -> bool:
    """Whether some of the tokens are of pictures."""
    return any(isinstance(i, PictureToken) for i in ids)


def names_of(ids: Sequence[int]) -> bytes:
    """Returns the identities of the pictures whose tokens are among these, in order; empty without pictures."""
    return b"".join(i.name for i in ids if isinstance(i, PictureToken))


def part_length(ids: Sequence[int], first: int, most: int) -> int:
    """How many tokens from number `first` on one run has: at most `most`, without a cut in a picture's; of a longer picture all
    of its tokens."""
    last = min(first + most, len(ids))
    if last == len(ids) or not _goes_on(ids, last):
        return last - first
    start = end = last
    while start > first and _goes_on(ids, start):
        start -= 1
    while end < len(ids) and _goes_on(ids, end):
        end += 1
    return (start if start > first else end) - first


def _goes_on(ids: Sequence[int], at: int) -> bool:
    """Whether token number `at` is of the same picture as the one before."""
    here, before = ids[at], ids[at - 1]
    return (
        isinstance(here, PictureToken)
        and here.index > 0
        and isinstance(before, PictureToken)
        and here.span is before.span
    )


def stretches(ids: Sequence[int]) -> list[tuple[int, int, bool]]:
    """The ids as stretches (first, last, of a picture) of tokens of one picture, and of others, in order."""
    edges = [0]
    for at in range(1, len(ids)):
        here, before = (isinstance(ids[i], PictureToken) for i in (at, at - 1))
        if here != before or (here and not _goes_on(ids, at)):
            edges.append(at)
    ends = zip(edges, [*edges[1:], len(ids)], strict=True)
    return [(first, last, isinstance(ids[first], PictureToken)) for first, last in ends]


def fill_rows(ids: Sequence[int], rows: Array, mask: Array) -> None:
    """Set the embeddings [tokens, width] of the tokens of pictures, and the mask [tokens] of which these are."""
    mask[: len(ids)] = 0
    for at, i in enumerate(ids):
        if isinstance(i, PictureToken):
            rows[at], mask[at] = i.span.rows[i.index], 1
