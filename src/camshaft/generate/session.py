"""Session: generates text after the tokens that it has in the KV cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Unpack

import numpy as np

from camshaft.errors import ContextError, SettingError
from camshaft.generate.generation import FinishReason, Generation, TokenLogprob
from camshaft.generate.options import GenerateKeywords, GenerateOptions, generate_options
from camshaft.generate.sampling.sampler import Sampler
from camshaft.generate.session_runs import SessionRuns
from camshaft.generate.speculation.pace import MOST_ROWS
from camshaft.generate.speculation.speculator import Speculator, without_auto
from camshaft.generate.stored.prompt_cache import PromptCache
from camshaft.generate.vision.tokens import has_images

Array = np.ndarray[Any, Any]


class Session(SessionRuns):
    """Generates text and processes tokens; tokens in the cache are never processed again. Closing it frees the slot."""

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
        turn = _Turn(self, sampler, self._speculator_of(options), self._kept_prompt(options, ids), options, on_full)
        text = model.tokenizer.stream(at_start=not self.tokens and not ids, shown=options.shown_tokens)
        self._pending += ids
        generation = Generation(len(ids), turn.next_token, text, options, on_end, lambda: sampler.is_complete)
        generation.logprobs, generation.kept = turn.logprobs, turn.kept
        generation.speculation = None if turn.speculator is None else turn.speculator.begin()
        return generation

    def _kept_prompt(self, options: GenerateOptions, ids: Sequence[int]) -> PromptCache | None:
        if options.prompt_cache is None:
            return None
        if has_images(ids):
            raise SettingError("prompt_cache with images; wanted None: only prompts of text are kept")
        return PromptCache(options.prompt_cache, self._model)

    def _flush(self, kept: PromptCache, turn: int) -> None:
        """Write the prompt that this turn has kept, beside the runs of others. If that fails, no caller gets the token drawn
        meanwhile, so the session shall not have it."""
        try:
            kept.flush()
        except BaseException:
            with self._model.lock:
                if turn == self._turn:
                    self._pending = []
            raise

    def _speculator_of(self, options: GenerateOptions) -> Speculator | None:
        """Returns this session's drafter; keeps the current one if it is of the same kind."""
        of = options.speculate if without_auto(options.speculate, self._model) else None
        if self._speculator is not None and self._speculator.of != of:
            self._speculator.close()
            self._speculator = None
        if self._speculator is None and of is not None:
            self._speculator = Speculator(of, self._model)
        return self._speculator

    def _speculate(self, speculator: Speculator, sampler: Sampler, left: float) -> None:
        """Have the logits after the session's tokens, and those after what is drafted."""
        self._go_back()
        speculator.run(self.advance, self.tokens, len(self._pending), sampler, left)

    def process(self, ids: Sequence[int], *, every_row: bool = False, chunk: int | None = None) -> Array:
        """Append tokens to the cache, after any pending ones.

        Returns the last token's logits f32 [1, vocab], or with `every_row` those of all tokens, f32 [n, vocab]; a copy. Raises
        ContextError for an id that is not a token, and for more tokens than there is room for.
        """
        ids = self._model.checked_ids(ids)
        self.take_slot()
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
        first, reads = 0, chunk is None and self._is_prompt(ids)
        while first < len(ids):
            part = ids[first : first + plans.part_length(ids, first, chunk or size)]
            wanted = range(len(part)) if every_row else (len(part) - 1,)
            rows.append(self._run(part, wanted, alike=reads and len(part) == 1).copy())
            first += len(part)
        if self._states is not None and self._goes_back and len(ids) > 1:
            self._save([self.position])
        return np.concatenate(rows) if every_row else rows[-1]

    def copy(self) -> Session:
        """A new session with this one's tokens, keys, values and recurrent states, to continue differently.

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
            self._model.plans.axes.begin(self._slot, other._slot)
        self.history, self._pending, self.position = [*other.history], [*other._pending], other.position
        if self._states is not None and other._states is not None:
            self._states.take_over(other._states)

    def rewind(self, n_tokens: int) -> None:
        """Keep only the session's first `n_tokens` tokens. Ends an earlier generation. Raises ContextError for more tokens than
        it has.

        Keys and values stay in the cache. A model with recurrent layers processes some of the tokens again when it continues:
        those after its last copy of their states.
        """
        with self._model.lock:
            self._check_open()
            tokens = self.tokens
            if type(n_tokens) is not int or not 0 <= n_tokens <= len(tokens):
                raise ContextError(f"rewind to {n_tokens!r} tokens; wanted 0 to {len(tokens)}, the session's")
            self._turn += 1
            self._checked = None
            kept = min(n_tokens, len(self.history))
            del self.history[kept:]
            self.position, self._pending = kept, tokens[kept:n_tokens]
            self._go_back()


class _Turn:
    """The tokens of one generation: each is drawn after the session's, until another generation of it starts."""

    def __init__(
        self,
        session: Session,
        sampler: Sampler,
        speculator: Speculator | None,
        kept: PromptCache | None,
        options: GenerateOptions,
        on_full: Callable[[list[int]], list[int] | None],
    ) -> None:
        """Start the turn of the session. See Session.start."""
        self.speculator, self.kept = speculator, kept
        self.logprobs: list[TokenLogprob] = []
        self._session, self._model, self._sampler, self._options = session, session._model, sampler, options
        self._on_full = on_full
        self._end_tokens, self._drawn = self._model.end_tokens(options), list[int]()
        self._locks = [self._model.lock] if speculator is None else speculator.locks(self._model.lock)
        with self._model.lock:
            self._draw = self._model.samplers.alone(sampler)
        session._turn += 1
        self._number = session._turn

    def next_token(self) -> int | FinishReason:
        """The next token, or why there is none."""
        self._session.take_slot()
        if self.speculator is not None:
            self.speculator.prepare()
        if self.kept is not None:
            self._session.read_kept(self.kept)
        with ExitStack() as locks:
            for lock in self._locks:
                locks.enter_context(lock)
            drawn = self._step()
        if self.kept is not None:
            self._session._flush(self.kept, self._number)
        return drawn

    def _step(self) -> int | FinishReason:
        session = self._session
        session._check_open()
        if self._number != session._turn:
            raise ContextError("this generation is over: its session has started another one")
        if session.position + len(session._pending) > self._model.context:
            instead = self._on_full(self._drawn)
            if instead is None:
                return "length"
            session.replace(instead)
        self._process()
        token = self._sampler.check(self._draw(session.history), session.position, len(self._drawn))
        if self.speculator is not None:
            self.speculator.saw(token)
        if token in self._end_tokens:
            return "stop"
        if self._options.logprobs is not None:
            self.logprobs.append(self._model.token_logprob(0, token, self._options.logprobs))
        session._pending = [token]
        self._drawn.append(token)
        return token

    def _process(self) -> None:
        """Have the logits after the session's tokens."""
        session, most = self._session, self._options.max_tokens
        if self.kept is not None and not session.history:
            session.process_kept(self.kept)
        elif self.speculator is None or not self._drawn or len(session._pending) > MOST_ROWS:
            session._process_pending()
        elif not session.advance_checked():
            left = math.inf if most < 0 else most - len(self._drawn)
            session._speculate(self.speculator, self._sampler, left)
