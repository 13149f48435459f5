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
    Spans of equal digests have equal rows."""

    rows: Array
    digest: bytes


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


def has_pictures(ids: Iterable[int]) -> bool:
    """Whether some of the tokens are of pictures."""
    return any(isinstance(i, PictureToken) for i in ids)


def names_of(ids: Sequence[int]) -> bytes:
    """What tells the tokens of pictures among these from those of others, in order; empty without."""
    return b"".join(i.name for i in ids if isinstance(i, PictureToken))


def fill_rows(ids: Sequence[int], rows: Array, mask: Array) -> None:
    """Set the embeddings [tokens, width] of the tokens of pictures, and the mask [tokens] of which these are."""
    mask[: len(ids)] = 0
    for at, i in enumerate(ids):
        if isinstance(i, PictureToken):
            rows[at], mask[at] = i.span.rows[i.index], 1
