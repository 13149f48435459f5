"""Special tokens in raw text: found before the text is cut into words, the longest spelling first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from camshaft.text.vocabulary import TokenType, Vocabulary


@dataclass(frozen=True)
class SpecialTokens:
    """(spelling, id) pairs, longest spelling first: `always` are looked for in any text, `parsed` only on request."""

    always: tuple[tuple[bytes, int], ...]
    parsed: tuple[tuple[bytes, int], ...]

    def split(self, data: bytes, parse_special: bool) -> list[bytes | int]:
        """`data` as a list of texts and token ids. Without `parse_special` only user-defined tokens are recognised."""
        fragments: list[bytes | int] = [data] if data else []
        for spelling, token_id in self.parsed if parse_special else self.always:
            if spelling in data:
                fragments = list(_split_at(fragments, spelling, token_id))
        return fragments


def _split_at(fragments: list[bytes | int], spelling: bytes, token_id: int) -> Iterable[bytes | int]:
    for fragment in fragments:
        if isinstance(fragment, int):
            yield fragment
            continue
        for i, text in enumerate(fragment.split(spelling)):
            if i:
                yield token_id
            if text:
                yield text


def special_tokens(vocabulary: Vocabulary) -> SpecialTokens:
    """The special tokens of `vocabulary`: control, unknown and user-defined ones."""
    return SpecialTokens(
        always=_longest_first(vocabulary, (TokenType.USER_DEFINED,)),
        parsed=_longest_first(vocabulary, (TokenType.USER_DEFINED, TokenType.CONTROL, TokenType.UNKNOWN)),
    )


def _longest_first(vocabulary: Vocabulary, types: tuple[TokenType, ...]) -> tuple[tuple[bytes, int], ...]:
    ids = np.flatnonzero(np.isin(vocabulary.types, types)).tolist()
    return tuple(sorted(((vocabulary.tokens[i].encode(), i) for i in ids), key=lambda pair: -len(pair[0])))
