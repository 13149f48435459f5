"""Conversation: chat messages over one session; each turn processes only the new tokens."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from camshaft.generate.sampling import Sampling

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel


class Conversation:
    """Chat messages and the session whose KV cache holds them.

    Each turn renders the chat template over all messages; the prefix that the session has processed is cut off. If it is not a
    prefix (the template rewrites old turns, or an answer was interrupted), a new session processes everything. Raises
    ModelError if the model has no chat template.
    """

    def __init__(self, lm: LanguageModel, sampling: Sampling | None = None, max_tokens: int = 512) -> None:
        self._lm, self._sampling, self._max_tokens = lm, sampling or Sampling(), max_tokens
        self.messages: list[dict[str, str]] = []
        self._session = lm.session()
        self._processed = ""

    def say(self, text: str) -> Generator[str]:
        """Send a message and yield the answer's pieces. An interrupted answer stays in the messages as far as it got."""
        self.messages.append({"role": "user", "content": text})
        rendered = self._lm.chat_template.render(self.messages, add_generation_prompt=True)
        if not rendered.startswith(self._processed):
            self._restart()
        pieces: list[str] = []
        new = rendered[len(self._processed) :]
        generation = self._session.generate(new, max_tokens=self._max_tokens, sampling=self._sampling, raw=True)
        complete = False
        try:
            for piece in generation:
                pieces.append(piece)
                yield piece
            complete = True
        finally:
            self.messages.append({"role": "assistant", "content": "".join(pieces)})
            if complete:
                self._processed = rendered + "".join(pieces)
            else:
                self._restart()

    def _restart(self) -> None:
        self._session.close()
        self._session, self._processed = self._lm.session(), ""

    def close(self) -> None:
        """Release the session's slot in the KV cache."""
        self._session.close()
