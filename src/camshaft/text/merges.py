"""Merges of byte-level BPE by the vocabulary's own texts, for prompts that are too short to build the library's table for.

The table takes 50 ms for 49k merges, these ranks 15. Used by byte_level.py; tests hold both to the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from camshaft.errors import ModelError

# Beyond, the library's table costs less than it saves: a word's merges are searched one by one.
SHORT_TEXT, SHORT_WORD = 2000, 100
Ranks = Mapping[str, int]


def read_ranks(merges: Sequence[str], ids: Mapping[str, int]) -> Ranks | None:
    """The rank of each merge, the last where one stands twice. ModelError for one of texts that are no tokens; None where
    a merge is not two texts and a space between them, which the library may take otherwise."""
    ranks = dict(zip(merges, range(len(merges)), strict=True))
    halves = [merge.split(" ") for merge in merges]
    if any(len(pair) != 2 for pair in halves):
        return None
    known = ids.keys()
    if not (known >= {text for pair in halves for text in pair} and known >= set(map("".join, halves))):
        found = next(p for p in halves if not known >= {*p, "".join(p)})
        raise ModelError(f"tokenizer.ggml.merges: {found[0]!r} and {found[1]!r} or what they make is no token")
    return ranks


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
