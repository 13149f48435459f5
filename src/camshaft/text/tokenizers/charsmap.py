"""The character map of a unigram tokenizer (tokenizer.ggml.precompiled_charsmap): texts and what they are replaced by.

SentencePiece stores it as a compact double array (Kanda, 2018), a trie over bytes: of the node at index i, base(i) ^ i ^ c is the
child of byte c if its check is c; what is at base(i) ^ i of a node that ends a text is the place of its replacement.
"""

from __future__ import annotations

import re

import numpy as np

from camshaft.errors import ModelError

_KEY = "tokenizer.ggml.precompiled_charsmap"
_CHECK = 1 << 31 | 0xFF
_ENDS = 1 << 8


class Charsmap:
    """Replaces the longest known text at each place, from left to right."""

    def __init__(self, data: bytes) -> None:
        """Raises ModelError for a map that is damaged; one whose replacements are is found when they are used."""
        n = int.from_bytes(data[:4], "little")
        if len(data) < 4 or n % 4 or not 4 <= n < len(data) - 4:
            raise ModelError(f"{_KEY} has {len(data)} bytes; wanted an array of {n} and replacements")
        self._units = np.frombuffer(data, "<u4", n // 4, 4).astype(np.uint32).data
        self._replacements = data[4 + n :]
        self._nodes: dict[str, int | None] = {}  # of characters at the start of a text; None: no text begins with it
        kept = "".join(re.escape(chr(c)) for c in range(1, 128) if self._first(chr(c)) is None)
        self._kept = re.compile(f"[{kept}]+" if kept else "(?!)")

    def __call__(self, text: str) -> str:
        """The text with all replacements. Raises ModelError for a damaged one."""
        parts, at = [], 0
        while at < len(text):
            if run := self._kept.match(text, at):
                parts.append(run.group())
                at = run.end()
            elif self._first(text[at]) is None:
                parts.append(text[at])
                at += 1
            else:
                n, replacement = self._longest(text, at)
                parts.append(replacement if n else text[at])
                at += max(n, 1)
        return "".join(parts)

    def _first(self, character: str) -> int | None:
        if character not in self._nodes:
            self._nodes[character] = self._after(0, character)
        return self._nodes[character]

    def _after(self, node: int, character: str) -> int | None:
        """The node after a character; None if there is none."""
        for byte in character.encode("utf-8", "surrogatepass"):
            node = self._children(node) ^ byte
            if not byte or node >= len(self._units) or self._units[node] & _CHECK != byte:
                return None
        return node

    def _children(self, node: int) -> int:
        """The place that, combined with a byte, is that of a child; the value stands at the place itself."""
        unit = self._units[node]
        base: int = (unit >> 10) << ((unit & 1 << 9) >> 6)
        return base ^ node if node else base

    def _longest(self, text: str, at: int) -> tuple[int, str]:
        """The number of characters of the longest known text at a place, and its replacement; 0 if there is none."""
        node, found = self._first(text[at]), (0, "")
        for end in range(at + 1, len(text) + 1):
            if node is None:
                break
            if self._units[node] & _ENDS:
                found = end - at, self._replacement(self._children(node))
            node = self._after(node, text[end]) if end < len(text) else None
        return found

    def _replacement(self, node: int) -> str:
        place = self._units[node] & 0x7FFFFFFF if node < len(self._units) else len(self._replacements)
        end = self._replacements.find(b"\0", place)
        try:
            if end >= 0:
                return self._replacements[place:end].decode()
        except UnicodeDecodeError:
            pass
        raise ModelError(f"{_KEY} is damaged: it has no text at {place} of {len(self._replacements)} bytes")
