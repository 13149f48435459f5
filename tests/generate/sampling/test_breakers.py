"""Breakers of sequences, found inside and across the tokens of a vocabulary."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from camshaft.generate.sampling.breakers import MOST_KEPT, BreakerFinder, Breakers


def test_breakers_are_found_inside_and_across_tokens() -> None:
    words = [b"a", b"\n", b"x\n\n", b"the", b" e", b"nd.", b"the end", b"he"]

    def encode(text: bytes, **_: bool) -> list[int]:
        return {b"\n": [1], b" end": [4, 5], b"e end": [8, 4, 5], b"he end": [7, 4, 5]}[text]

    tokenizer: Any = SimpleNamespace(n_vocab=len(words), decode_bytes=lambda ids, special: words[ids[0]], encode=encode)
    finder = BreakerFinder(tokenizer)
    found = finder.find(("\n\n", "the end"))
    assert finder.find(("\n\n", "the end")) is found
    for i in range(MOST_KEPT):
        finder.find((f"{i}",))
    assert len(finder._found) == MOST_KEPT
    assert found == Breakers(frozenset({2, 6}), {1: ((1,),), 3: ((4, 5),)})
    assert [found.n_after(text) for text in ([0, 1, 1, 0, 0], [3, 4, 5], [3, 4, 0], [1, 1, 2, 0])] == [2, 0, None, None]
