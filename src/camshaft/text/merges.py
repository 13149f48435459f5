"""Merges of byte-level BPE by the vocabulary's own texts, for prompts that are too short to build the library's table for.

The table takes 50 ms for 49k merges, these ranks 15.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from camshaft.errors import ModelError

# Beyond, the library's table costs less than it saves: a word's merges are searched one by one.
SHORT_TEXT, SHORT_WORD = 2000, 100
Ranks = Mapping[str, int]


def read_ranks(merges: Sequence[str], ids: Mapping[str, int]) -> Ranks:
    """The rank of each merge, the last where one stands twice. ModelError for one that makes no token. (One whose halves are no
    tokens never happens: words begin as bytes' tokens, and what is made is a token.)"""
    made = [merge.replace(" ", "") for merge in merges]
    if not ids.keys() >= set(made):
        merge = next(m for m, text in zip(merges, made, strict=True) if text not in ids)
        raise ModelError(f"tokenizer.ggml.merges: {merge!r} makes no token")
    return dict(zip(merges, range(len(merges)), strict=True))


def merged(word: str, ranks: Ranks) -> list[str]:
    """A spelled word's tokens: of all neighbours those of the lowest rank are joined, leftmost first, until none has one."""
    parts = list(word)
    while len(parts) > 1:
        found = [(ranks[pair], i) for i, pair in enumerate(map(" ".join, pairwise(parts))) if pair in ranks]
        if not found:
            break
        _, at = min(found)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts
