"""ImageToken: a token whose embedding comes from an image, not from the vocabulary.

It is an int, the id of the marker in the text, so it can be used wherever token ids are: prompts, sessions, batches, requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Span:
    """Consecutive tokens of an image or one of its tiles: `rows` f32 [tokens, width] are their embeddings.
    Spans of equal digests have equal rows. They are `columns` wide."""

    rows: Array
    digest: bytes
    columns: int

    @property
    def extent(self) -> int:
        """The positions that the span takes if positions have several axes: its longer side."""
        return max(self.columns, len(self.rows) // self.columns)


@dataclass(frozen=True)
class Seeing:
    """How a text model takes images: embeddings of `width` elements (0: none), all tokens of an image in one run if they
    attend to each other `together` (in layers with a window alone: `windows_only`), positions with `axes` axes (0: one for
    all)."""

    width: int = 0
    together: bool = False
    axes: int = 0
    windows_only: bool = False


BLIND = Seeing()


class ImageToken(int):
    """A token of an image, number `index` of its span. It equals the token of the same index of an equal span, and no int."""

    span: Span
    index: int

    def __new__(cls, marker: int, span: Span, index: int) -> ImageToken:
        """`marker` is the id of the vocabulary's token that represents the image where only ids matter."""
        made = super().__new__(cls, marker)
        made.span, made.index = span, index
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ImageToken) and (other.index, other.span.digest) == (self.index, self.span.digest)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.index, self.span.digest))

    @property
    def name(self) -> bytes:
        """A unique name: the span's digest and the index."""
        return self.span.digest + self.index.to_bytes(4, "little")


def tokens_of(span: Span, marker: int) -> list[int]:
    """All tokens of a span."""
    return [ImageToken(marker, span, i) for i in range(len(span.rows))]


def is_end(token: int) -> bool:
    """Whether a token is the last one of its image, or no image's."""
    return not isinstance(token, ImageToken) or token.index == len(token.span.rows) - 1


def has_images(ids: Iterable[int]) -> bool:
    """Whether some of the tokens are of images."""
    return any(isinstance(i, ImageToken) for i in ids)


def names_of(ids: Sequence[int]) -> bytes:
    """Returns the identities of the images whose tokens are among these, in order; empty without images."""
    return b"".join(i.name for i in ids if isinstance(i, ImageToken))


def part_length(ids: Sequence[int], first: int, most: int) -> int:
    """How many tokens from ids[first] on a run takes: at most `most`, without splitting an image; of a longer image all
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
    """Whether ids[at] belongs to the same image as the token before."""
    here, before = ids[at], ids[at - 1]
    return (
        isinstance(here, ImageToken) and here.index > 0 and isinstance(before, ImageToken) and here.span is before.span
    )


def stretches(ids: Sequence[int]) -> list[tuple[int, int, bool]]:
    """Returns (first, last, is an image) of the stretches of ids: those of each image, and the text between."""
    edges = [0]
    for at in range(1, len(ids)):
        here, before = (isinstance(ids[i], ImageToken) for i in (at, at - 1))
        if here != before or (here and not _goes_on(ids, at)):
            edges.append(at)
    ends = zip(edges, [*edges[1:], len(ids)], strict=True)
    return [(first, last, isinstance(ids[first], ImageToken)) for first, last in ends]


def fill_rows(ids: Sequence[int], rows: Array, mask: Array) -> None:
    """Set the embeddings [tokens, width] of image tokens, and the mask [tokens] of these."""
    mask[: len(ids)] = 0
    for at, i in enumerate(ids):
        if isinstance(i, ImageToken):
            rows[at], mask[at] = i.span.rows[i.index], 1
