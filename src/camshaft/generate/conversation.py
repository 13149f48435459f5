"""Conversation: messages of a user and a model over one session, so that each turn processes only what is new."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from camshaft.generate.sampling import Sampling

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel


class Conversation:
    """Messages and the session that has read them.

    The chat template is rendered over all messages each turn; what the session has read already is the front of that text and
    is cut off. Where it is not (a template that rewrites old turns, an answer stopped half way), a new session reads
    everything again. ModelError if the model has no chat template.
    """

    def __init__(self, lm: LanguageModel, sampling: Sampling | None = None, max_tokens: int = 512) -> None:
        self._lm, self._sampling, self._max_tokens = lm, sampling or Sampling(), max_tokens
        self.messages: list[dict[str, str]] = []
        self._session = lm.session()
        self._read = ""

    def say(self, text: str) -> Generator[str]:
        """Sends a message and gives the answer's pieces as they come. An answer stopped half way keeps what was said."""
        self.messages.append({"role": "user", "content": text})
        rendered = self._lm.chat_template.render(self.messages, add_generation_prompt=True)
        if not rendered.startswith(self._read):
            self._forget()
        pieces: list[str] = []
        new = rendered[len(self._read) :]
        generation = self._session.generate(new, max_tokens=self._max_tokens, sampling=self._sampling, raw=True)
        whole = False
        try:
            for piece in generation:
                pieces.append(piece)
                yield piece
            whole = True
        finally:
            self.messages.append({"role": "assistant", "content": "".join(pieces)})
            if whole:
                self._read = rendered + "".join(pieces)
            else:
                self._forget()

    def _forget(self) -> None:
        self._session.close()
        self._session, self._read = self._lm.session(), ""

    def close(self) -> None:
        """Gives the session's place in the cache back."""
        self._session.close()
