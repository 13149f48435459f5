"""Detokenizer: convert a stream of tokens to text, emitting only complete characters."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class Detokenizer:
    """Converts tokens to text one by one; a character that spans tokens is emitted once it is complete."""

    def __init__(self, piece: Callable[[int], bytes], *, drop_space: bool = False) -> None:
        """`piece` returns a token's bytes; `drop_space` removes one space at the very start."""
        self._piece = piece
        self._drop_space = drop_space
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text completed by `token_id`: empty inside a character, U+FFFD for invalid bytes."""
        return self._decoder.decode(self._bytes(token_id))

    def flush(self) -> str:
        """The buffered bytes of an incomplete character, as U+FFFD. Resets the decoder."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text

    def _bytes(self, token_id: int) -> bytes:
        data = self._piece(token_id)
        if self._drop_space and data:
            self._drop_space = False
            return data.removeprefix(b" ")
        return data
