"""Batch: several sequences that generate together, one run of the model a step. Made by LanguageModel.generate_batch.

Every step takes one token of each sequence that generates and, while prompts wait, as much of them as a run holds. A sequence
that ends gives its place to the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from camshaft.errors import ContextError
from camshaft.generate.generation import Generation
from camshaft.generate.sampler import Sampler

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel


@dataclass
class _Sequence:
    """One sequence: the tokens that are not in the cache yet, those that are, and the token drawn last."""

    index: int
    sampler: Sampler
    pending: list[int]
    generation: Generation = field(init=False)
    history: list[int] = field(default_factory=list)
    slot: int | None = None
    drawn: int | None = None


class Batch:
    """An iterator of (index of the prompt, piece of its text), as they come. `generations` has one Generation per prompt, with
    its ids, finish reason and timings. A sequence whose context is full ends with the reason 'length'.

    Closing it, or leaving its `with` block, ends what is not over.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[list[int]],
        samplers: Sequence[Sampler],
        max_tokens: int,
        stop: Sequence[str],
        ended: frozenset[int],
    ) -> None:
        """A sequence per prompt (token ids); `ended` are the tokens that end one."""
        self._model, self._ended = model, ended
        self._active: list[_Sequence] = []
        self._pieces: deque[tuple[int, str]] = deque()
        pairs = enumerate(zip(prompts, samplers, strict=True))
        self._waiting = deque(_Sequence(i, sampler, list(ids)) for i, (ids, sampler) in pairs)
        for sequence in self._waiting:
            take, release = partial(self._take, sequence), partial(self._release, sequence)
            text = model.tokenizer.stream(at_start=False)
            sequence.generation = Generation(len(sequence.pending), take, text, stop, max_tokens, release)
        self.generations = tuple(sequence.generation for sequence in self._waiting)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return self

    def __next__(self) -> tuple[int, str]:
        try:
            while not self._pieces and (self._active or self._waiting):
                self._step()
        except BaseException:
            self.close()
            raise
        if self._pieces:
            return self._pieces.popleft()
        raise StopIteration

    def texts(self) -> list[str]:
        """Generates all there is and gives each prompt's text."""
        texts = [""] * len(self.generations)
        for i, piece in self:
            texts[i] += piece
        return texts

    def close(self) -> None:
        """Ends every sequence here; closing twice is allowed."""
        for sequence in (*self._active, *self._waiting):
            sequence.generation.close()
        self._waiting.clear()
        self._pieces.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, sequence: _Sequence) -> int | None:
        return None if sequence.drawn in self._ended else sequence.drawn

    def _release(self, sequence: _Sequence) -> None:
        slot, sequence.slot = sequence.slot, None
        if slot is not None:
            self._model.plans.cache.close_slot(slot)
        self._active = [s for s in self._active if s is not sequence]

    def _step(self) -> None:
        """One run of the model, and a token for each sequence that has none of its prompt left."""
        with self._model.lock:
            self._model.check_open()
            self._admit()
            parts = self._parts()
            drawn = self._run(parts) if parts else []
        for sequence in drawn:
            self._advance(sequence)

    def _admit(self) -> None:
        """Starts waiting sequences while the cache has places. ContextError if others hold them all."""
        cache = self._model.plans.cache
        while self._waiting and (cache.n_free or not self._active):
            sequence = self._waiting[0]
            sequence.slot = cache.open_slot()
            self._active.append(self._waiting.popleft())
            sequence.generation.begin()

    def _parts(self) -> list[tuple[_Sequence, list[int]]]:
        """What goes into this run of each sequence: tokens being generated first, then prompts in order, as far as fits."""
        plans = self._model.plans
        room, rows, parts = plans.prompt_tokens.bound, plans.logit_rows.bound, []
        for sequence in sorted(self._active, key=lambda s: len(s.pending) > 1):
            part = sequence.pending[:room]
            if not part or not rows:
                break
            if len(sequence.history) + len(part) > self._model.context:
                self._finish(sequence)
                continue
            parts.append((sequence, part))
            room, rows = room - len(part), rows - 1
        return parts

    def _run(self, parts: list[tuple[_Sequence, list[int]]]) -> list[_Sequence]:
        """Runs the parts and draws a token for each sequence that is through with what it had; gives those."""
        plans = self._model.plans
        ids: list[int] = []
        positions: list[int] = []
        slots, rows, through = [], [], []
        for sequence, part in parts:
            assert sequence.slot is not None
            start = len(sequence.history)
            plans.cache.reserve(sequence.slot, start + len(part))
            ids += part
            positions += range(start, start + len(part))
            slots += [sequence.slot] * len(part)
            if len(part) == len(sequence.pending):
                rows.append(len(ids) - 1)
                through.append(sequence)
        if len(rows) == len(ids):
            plans.run_together(ids, positions, slots)
        else:
            plans.run(ids, positions, slots, rows)
        for sequence, part in parts:
            sequence.history += part
            del sequence.pending[: len(part)]
        tokens = self._model.samplers.draw([s.sampler for s in through], [s.history for s in through])
        for sequence, token in zip(through, tokens, strict=True):
            sequence.drawn, sequence.pending = token, [token]
        return through

    def _advance(self, sequence: _Sequence) -> None:
        """The drawn token into the sequence's text; its end, where it comes to one."""
        generation = sequence.generation
        self._keep(sequence, generation.advance())
        if generation.finish_reason is None and generation.is_full:
            self._keep(sequence, generation.advance())

    def _finish(self, sequence: _Sequence) -> None:
        self._keep(sequence, sequence.generation.finish("length"))

    def _keep(self, sequence: _Sequence, piece: str) -> None:
        if piece:
            self._pieces.append((sequence.index, piece))


def check_prompts(prompts: Sequence[list[int]], context: int) -> None:
    """ContextError, naming the prompt, for one that is empty or does not fit."""
    for i, ids in enumerate(prompts):
        if not ids:
            raise ContextError(f"prompt {i} is empty: it has no tokens to start from")
        if len(ids) > context:
            raise ContextError(
                f"prompt {i} has {len(ids)} tokens; the context is {context}: shorten it or raise --context"
            )
