"""Session: a slot in the KV cache, its recurrent states, and the tokens in it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from camshaft.errors import ContextError, SettingError, count
from camshaft.generate.generation import Closing, FinishReason, Generation, TokenLogprob
from camshaft.generate.memory.checkpoints import Checkpoints
from camshaft.generate.options import GenerateKeywords, GenerateOptions, generate_options

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel
    from camshaft.plan.memory.device_memory import DeviceRows

Array = np.ndarray[Any, Any]


class Session(Closing):
    """Generates text and processes tokens; tokens in the cache are never processed again. Closing it frees the slot."""

    def __init__(self, model: LanguageModel, *, waits: bool = False, goes_back: bool = True) -> None:
        """Open a session. One that `waits` takes its slot when the first token is processed, and waits for it if another
        thread's generation will free one. One that `goes_back` keeps copies of recurrent states for it. Raises ContextError if
        all slots are in use."""
        self._model, self._waits = model, waits
        self._open = False
        self._slot = None
        if not waits:
            self._slot = model.plans.cache.open_slot()
            model.plans.cache.slots.keep(self._slot)
        self._open = True
        self._end = weakref.WeakMethod(self.close)
        self._states = Checkpoints(model.plans.cache) if model.plans.cache.is_recurrent else None
        self._goes_back = goes_back
        self.position = 0  # tokens in the cache
        self._pending: list[int] = []  # prompt or sampled tokens that are not in the cache yet
        self._turn = 0  # number of generations started
        self.history: list[int] = []  # the tokens in the cache

    def __repr__(self) -> str:
        return f"Session({count(self.position, 'token')} in the cache, {'open' if self._open else 'closed'})"

    @property
    def tokens(self) -> list[int]:
        """All tokens of the session, whether they are in the cache yet or not."""
        return self.history + self._pending

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
        ids = self._model.prompt_ids(prompt, raw=options.raw, first=not self.tokens)
        return self.start(ids, options)

    def start(
        self,
        ids: list[int],
        options: GenerateOptions,
        on_end: Callable[[Generation], None] | None = None,
        on_full: Callable[[list[int]], list[int] | None] = lambda ids: None,
    ) -> Generation:
        """Generate after token ids. `on_end` is called when the iteration ends. When the context is full, `on_full` gets the
        generated tokens and returns what the session shall have instead of its tokens, or None to end."""
        model = self._model
        self._check_open()
        self._check_room(len(self._pending) + len(ids))
        sampler = model.sampler(options.sampling, options.grammar)
        with model.lock:
            draw = model.samplers.alone(sampler)
        end_tokens = model.end_tokens(options)
        text = model.tokenizer.stream(at_start=not self.tokens and not ids, shown=options.shown_tokens)
        self._pending += ids
        self._turn += 1
        turn, drawn, logprobs = self._turn, list[int](), list[TokenLogprob]()

        def next_token() -> int | FinishReason:
            self._take_slot()
            with model.lock:
                self._check_open()
                if turn != self._turn:
                    raise ContextError("this generation is over: its session has started another one")
                if self.position + len(self._pending) > model.context:
                    instead = on_full(drawn)
                    if instead is None:
                        return "length"
                    self.replace(instead)
                self._process_pending()
                token = sampler.check(draw(self.history), self.position, len(drawn))
                if token in end_tokens:
                    return "stop"
                if options.logprobs is not None:
                    logprobs.append(model.token_logprob(0, token, options.logprobs))
                self._pending = [token]
                drawn.append(token)
            return token

        generation = Generation(len(ids), next_token, text, options, on_end, lambda: sampler.is_complete)
        generation.logprobs = logprobs
        return generation

    def replace(self, ids: Sequence[int]) -> None:
        """Make `ids` the session's tokens. Their common beginning with the tokens in the cache stays there, but for the last
        token of `ids`, whose logits are to be computed. Ends an earlier generation's use of the session's tokens."""
        limit = min(len(self.history), len(ids) - 1)
        common = next((i for i in range(limit) if self.history[i] != ids[i]), limit)
        del self.history[common:]
        self.position, self._pending = common, list(ids[common:])
        self._go_back()

    def copy(self) -> Session:
        """A new session with this one's tokens, keys, values and recurrent states, to go on in another way.

        Raises ContextError if all slots are in use."""
        with self._model.lock:
            self._check_open()
            self._go_back()
            made = Session(self._model)
            try:
                made._take_over(self)
            except BaseException:
                made.close()
                raise
        return made

    def _take_over(self, other: Session) -> None:
        assert self._slot is not None
        if other._slot is not None:
            self._model.plans.cache.copy_slot(other._slot, self._slot, other.position)
        self.history, self._pending, self.position = [*other.history], [*other._pending], other.position
        if self._states is not None and other._states is not None:
            self._states.take_over(other._states)

    def rewind(self, n_tokens: int) -> None:
        """Keep only the session's first `n_tokens` tokens. Ends an earlier generation. Raises ContextError for more tokens than
        it has.

        Keys and values stay in the cache. A model with recurrent layers processes some of the tokens again when it goes on: those
        after its last copy of their states.
        """
        with self._model.lock:
            self._check_open()
            tokens = self.tokens
            if type(n_tokens) is not int or not 0 <= n_tokens <= len(tokens):
                raise ContextError(f"rewind to {n_tokens!r} tokens; wanted 0 to {len(tokens)}, the session's")
            self._turn += 1
            kept = min(n_tokens, len(self.history))
            del self.history[kept:]
            self.position, self._pending = kept, tokens[kept:n_tokens]
            self._go_back()

    def _go_back(self) -> None:
        """Where the recurrent states are not those of `position`, go back to the nearest copy; what follows it is pending."""
        if self._states is None:
            return
        at = self._states.nearest(self.position)
        self._pending[:0] = self.history[at:]
        del self.history[at:]
        self.position = at

    def _take_slot(self) -> None:
        """Take a slot if the session has none yet. The caller does not hold the model's lock: others need it to end."""
        self._check_open()
        if not self._waits:
            return
        cache = self._model.plans.cache
        if self._slot is None:
            self._slot = cache.open_slot(wait=True)
            if not self._open:  # closed while it waited
                cache.close_slot(self._slot)
                self._check_open()
        cache.slots.use(self._slot)

    def rest(self) -> None:
        """Let others take the slot when they need one."""
        if self._slot is not None and self._open:
            self._model.plans.cache.slots.rest(self._slot, self._end)

    def wake(self) -> bool:
        """Use the session again after `rest`. False if it was closed meanwhile."""
        if self._slot is None:
            return self._open
        return self._model.plans.cache.slots.wake(self._slot, self._end) and self._open

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
        self._take_slot()
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
        self._reserve(len(ids))
        for first in range(0, len(ids), chunk or size):
            part = ids[first : first + (chunk or size)]
            rows.append(self._run(part, range(len(part)) if every_row else (len(part) - 1,)).copy())
        if self._states is not None and self._goes_back and len(ids) > 1:
            self._copy_states()
        return np.concatenate(rows) if every_row else rows[-1]

    def _process_pending(self) -> None:
        """Process the pending tokens run by run; after an interrupt the rest is still pending."""
        self._go_back()
        plans, end = self._model.plans, self.position + len(self._pending)
        self._reserve(len(self._pending))
        copies = self._copied_at()
        while self._pending:
            following = next((at for at in copies if at > self.position), end)
            part = self._pending[: min(plans.prompt_tokens.bound, following - self.position)]
            self._run(part, (len(part) - 1,))
            del self._pending[: len(part)]
            if self.position in copies:
                self._copy_states()

    def _copied_at(self) -> list[int]:
        """The positions in the pending tokens at which the recurrent states are copied."""
        if self._states is None or not self._goes_back:
            return []
        ends = self._model.tokenizer.eos_ids
        return [self.position + n for n in self._states.stops(self.position, self._pending, ends)]

    def _copy_states(self) -> None:
        assert self._states is not None
        assert self._slot is not None
        self._states.save(self._slot, self.position)

    def _reserve(self, n_tokens: int) -> None:
        assert self._slot is not None
        self._model.plans.cache.reserve(self._slot, self.position + n_tokens)

    def _run(self, ids: Sequence[int], wanted: Sequence[int]) -> Array | DeviceRows:
        assert self._slot is not None
        positions, states = range(self.position, self.position + len(ids)), self._states
        if states is not None:
            states.restore(self._slot, self.position)
            states.position = None  # until the run has ended, or for good after an interrupt
        logits = self._model.plans.run(ids, positions, [self._slot] * len(ids), wanted)
        self.position += len(ids)
        self.history += ids
        if states is not None:
            states.position = self.position
        return logits

    def close(self) -> None:
        """Free the session's slot in the cache; may be called twice."""
        if self._open:
            self._open, self._states = False, None
            if self._slot is not None:
                self._model.plans.cache.close_slot(self._slot)

    def __del__(self) -> None:
        self.close()
