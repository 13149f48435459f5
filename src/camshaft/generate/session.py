"""Session: a slot in the KV cache and its position. Conversation: chat messages over one session."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from camshaft.errors import ContextError, SettingError
from camshaft.generate.generation import Closing, Generation
from camshaft.generate.options import GenerateKeywords, GenerateOptions, generate_options

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel
    from camshaft.plan.memory.device_memory import DeviceRows

Array = np.ndarray[Any, Any]


class Session(Closing):
    """Generates text and processes tokens; tokens in the cache are never processed again. Closing it frees the slot."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._open = False
        self._slot = model.plans.cache.open_slot()
        self._open = True
        self.position = 0  # tokens in the cache
        self._pending: list[int] = []  # prompt or sampled tokens that are not in the cache yet
        self._turn = 0  # number of generations started
        self.history: list[int] = []  # the tokens in the cache

    def generate(
        self,
        prompt: str | Sequence[int],
        options: GenerateOptions | None = None,
        **keywords: Unpack[GenerateKeywords],
    ) -> Generation:
        """Append the prompt to the session and generate. Ends an earlier generation.

        See LanguageModel.generate.
        """
        options = generate_options(options, keywords)
        ids = self._model.prompt_ids(prompt, raw=options.raw, first=self.position == 0 and not self._pending)
        return self.start(ids, options)

    def start(self, ids: list[int], options: GenerateOptions, *, close_at_end: bool = False) -> Generation:
        """Generate after token ids. With `close_at_end` the session is closed when the iteration ends."""
        model = self._model
        self._check_open()
        self._check_room(len(self._pending) + len(ids))
        sampler, end_tokens = model.sampler(options.sampling), model.end_tokens(options)
        text = model.tokenizer.stream(at_start=self.position == 0 and not self._pending and not ids)
        self._pending += ids
        self._turn += 1
        turn = self._turn

        def next_token() -> int | None:
            with model.lock:
                self._check_open()
                if turn != self._turn:
                    raise ContextError("this generation is over: its session has started another one")
                self._process_pending()
                token = sampler.draw(self.history)
            if token in end_tokens:
                return None
            self._pending = [token]
            return token

        return Generation(len(ids), next_token, text, options, self.close if close_at_end else None)

    def _check_open(self) -> None:
        self._model.check_open()
        if not self._open:
            raise ContextError("the session is closed")

    def _check_room(self, n_tokens: int) -> None:
        if n_tokens == 0:
            raise ContextError("the prompt is empty: it has no tokens to start from")
        if self.position + n_tokens > self._model.context:
            used = f" after {self.position} already in the session" if self.position else ""
            raise ContextError(
                f"the prompt has {n_tokens} tokens{used}; the context is {self._model.context}: shorten it or raise context="
            )

    def process(self, ids: Sequence[int], *, every_row: bool = False, chunk: int | None = None) -> Array:
        """Append tokens to the cache, after any pending ones.

        Returns the last token's logits f32 [1, vocab], or with `every_row` those of all tokens, f32 [n, vocab]; a copy.
        """
        with self._model.lock:
            self._check_open()
            self._check_room(len(ids) and len(self._pending) + len(ids))
            self._process_pending()
            return self._process(ids, every_row, chunk)

    def _process(self, ids: Sequence[int], every_row: bool, chunk: int | None) -> Array:
        plans, rows = self._model.plans, []
        size = plans.logit_rows.bound if every_row else plans.prompt_tokens.bound
        if chunk is not None and (type(chunk) is not int or not 1 <= chunk <= size):
            raise SettingError(f"chunk {chunk!r}; wanted 1 to {size} tokens")
        plans.cache.reserve(self._slot, self.position + len(ids))
        for first in range(0, len(ids), chunk or size):
            part = ids[first : first + (chunk or size)]
            rows.append(self._run(part, range(len(part)) if every_row else (len(part) - 1,)).copy())
        return np.concatenate(rows) if every_row else rows[-1]

    def _process_pending(self) -> None:
        """Process the pending tokens run by run; after an interrupt the rest is still pending."""
        plans = self._model.plans
        plans.cache.reserve(self._slot, self.position + len(self._pending))
        while self._pending:
            part = self._pending[: plans.prompt_tokens.bound]
            self._run(part, (len(part) - 1,))
            del self._pending[: len(part)]

    def _run(self, ids: Sequence[int], wanted: Sequence[int]) -> Array | DeviceRows:
        positions = range(self.position, self.position + len(ids))
        logits = self._model.plans.run(ids, positions, [self._slot] * len(ids), wanted)
        self.position += len(ids)
        self.history += ids
        return logits

    def close(self) -> None:
        """Free the session's slot in the cache; may be called twice."""
        if self._open:
            self._open = False
            self._model.plans.cache.close_slot(self._slot)

    def __del__(self) -> None:
        self.close()


class Conversation(Closing):
    """Chat messages, and the session whose KV cache has them.

    Each turn renders the chat template over all messages and processes what follows the text that the session has. If that
    text is not a prefix (the template rewrites old turns, or an answer was interrupted), a new session processes everything.
    Raises ModelError if the model has no chat template.
    """

    def __init__(self, lm: LanguageModel, options: GenerateOptions) -> None:
        self._lm, self._options = lm, replace(options, raw=True)
        self.messages: list[dict[str, str]] = []
        self._session = lm.session()
        self._processed = ""

    def say(self, text: str) -> Generator[str]:
        """Send a message and yield the answer's pieces. An interrupted answer stays in the messages as far as it got."""
        messages = [*self.messages, {"role": "user", "content": text}]
        rendered = self._lm.chat_template.render(messages, add_generation_prompt=True)
        if not rendered.startswith(self._processed):
            self._restart()
        pieces: list[str] = []
        generation = self._session.generate(rendered[len(self._processed) :], self._options)
        self.messages = messages  # after what may raise: a message that was not taken is none of the next turn's
        complete = False
        try:
            for piece in generation:
                pieces.append(piece)
                yield piece
            # After a stop string the session has tokens that are not in the answer.
            complete = generation.finish_reason == "length" or not self._options.stop
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
