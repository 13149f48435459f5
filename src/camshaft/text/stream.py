"""The streaming detokenizer: text out of tokens as they come, whole characters only."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class Detokenizer:
    """Turns tokens into text one by one. A character whose bytes are spread over tokens comes out when it is whole."""

    def __init__(self, piece: Callable[[int], bytes], *, drop_space: bool = False) -> None:
        """`piece` gives a token's bytes; `drop_space` drops one space at the very beginning."""
        self._piece = piece
        self._drop_space = drop_space
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes: empty while a character is incomplete, U+FFFD for bytes that are none."""
        return self._decoder.decode(self._bytes(token_id))

    def flush(self) -> str:
        """What is held back, as U+FFFD; the detokenizer is as new but for the dropped space."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text

    def _bytes(self, token_id: int) -> bytes:
        data = self._piece(token_id)
        if self._drop_space and data:
            self._drop_space = False
            return data.removeprefix(b" ")
        return data
