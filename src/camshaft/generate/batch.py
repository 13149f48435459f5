"""Continuous batching: generate several sequences together, with one run of the model per step.

Each step processes one token of every generating sequence and as many prompt tokens as fit. When a sequence ends, the next
waiting prompt takes its slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from camshaft.errors import ContextError, SettingError, count
from camshaft.generate.generation import Closing, FinishReason, Generation
from camshaft.generate.model_plans import MAX_DECODE_SEQUENCES
from camshaft.generate.options import GenerateKeywords, GenerateOptions, check_together, generate_options
from camshaft.generate.sampling.sampler import Sampler

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel


@dataclass
class _Sequence:
    """One sequence: `pending` tokens are not in the KV cache yet, `history` is; `drawn` is the last sampled token."""

    index: int
    pending: list[int]
    sampler: Sampler
    end_tokens: frozenset[int]
    logprobs: int | None
    generation: Generation = field(init=False)
    history: list[int] = field(default_factory=list)
    slot: int | None = None
    drawn: int = -1

    @property
    def is_begun(self) -> bool:
        """Whether a token was drawn, so that the pending one is the next."""
        return self.drawn >= 0


class Batch(Closing):
    """An iterator of (prompt index, text piece). `generations` has one Generation per prompt, with its token ids, finish reason
    and timings. A sequence whose context is full ends with the reason 'length'.

    Closing it, or leaving its `with` block, ends all remaining sequences.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[list[int]],
        options: Sequence[GenerateOptions],
    ) -> None:
        """Prepare a sequence per prompt (token ids). Raises ContextError, with the prompt's index, if one does not fit."""
        _check_prompts(prompts, model.context)
        for each in options:
            check_together(each, "a batch")
        self._model = model
        self._active: list[_Sequence] = []
        self._pieces: deque[tuple[int, str]] = deque()
        self._waiting: deque[_Sequence] = deque()
        for i, (ids, each) in enumerate(zip(prompts, options, strict=True)):
            sampler, end_tokens = model.sampler(each.sampling, each.grammar), model.end_tokens(each)
            sequence = _Sequence(i, list(ids), sampler, end_tokens, each.logprobs)
            take, text = partial(self._take, sequence), model.tokenizer.stream(shown=each.shown_tokens)
            sequence.generation = Generation(
                len(ids), take, text, each, partial(self._release, sequence), partial(self._is_complete, sequence)
            )
            self._waiting.append(sequence)
        self.generations = tuple(sequence.generation for sequence in self._waiting)

    def __repr__(self) -> str:
        ended = len(self.generations) - len(self._active) - len(self._waiting)
        return f"Batch({count(len(self.generations), 'sequence')}, {ended} ended)"

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
        """Generate everything and return the text of each prompt."""
        texts = [""] * len(self.generations)
        for i, piece in self:
            texts[i] += piece
        return texts

    def close(self) -> None:
        """End all sequences; may be called twice."""
        for sequence in (*self._active, *self._waiting):
            sequence.generation.close()
        self._waiting.clear()
        self._pieces.clear()

    def _take(self, sequence: _Sequence) -> int | FinishReason:
        return "stop" if sequence.drawn in sequence.end_tokens else sequence.drawn

    def _is_complete(self, sequence: _Sequence) -> bool:
        return sequence.sampler.is_complete

    def _release(self, sequence: _Sequence, generation: Generation) -> None:
        slot, sequence.slot = sequence.slot, None
        if slot is not None:
            self._model.plans.cache.close_slot(slot)
        self._active = [s for s in self._active if s is not sequence]

    def _step(self) -> None:
        """Run the model once; sample a token for each sequence whose prompt is fully processed."""
        self._model.check_open()
        self._admit()
        with self._model.lock:
            self._model.check_open()
            drawn = [sequence for parts in self._groups(self._parts()) for sequence in self._run(parts)]
        for sequence in drawn:
            self._advance(sequence)

    def _admit(self) -> None:
        """Give free slots to waiting sequences. Without a slot, wait for one. Raises ContextError if other sessions use all."""
        cache = self._model.plans.cache
        for active in self._active:
            assert active.slot is not None
            cache.slots.use(active.slot)
        while self._waiting:
            try:
                slot = cache.open_slot(wait=not self._active)
            except ContextError:
                if self._active:
                    return
                raise
            cache.slots.use(slot)
            sequence = self._waiting.popleft()
            sequence.slot = slot
            self._active.append(sequence)
            sequence.generation.begin()

    def _parts(self) -> list[tuple[_Sequence, list[int]]]:
        """Choose the tokens of this run: generating sequences first, then prompts in order, while there is room."""
        plans = self._model.plans
        room, rows = plans.prompt_tokens.bound, plans.logit_rows.bound
        parts: list[tuple[_Sequence, list[int]]] = []
        for sequence in sorted(self._active, key=lambda s: len(s.pending) > 1):
            part = sequence.pending[: plans.part_length(sequence.pending, 0, room, is_first=not parts)]
            if not part or not rows:
                break
            if len(sequence.history) + len(part) > self._model.context:
                self._finish(sequence)
                continue
            parts.append((sequence, part))
            room, rows = room - len(part), rows - 1
        return parts

    def _groups(self, parts: list[tuple[_Sequence, list[int]]]) -> list[list[tuple[_Sequence, list[int]]]]:
        """Returns the sequences that run together: all; or, if plans of other sizes round differently, groups that generate apart
        from those whose prompts are processed."""
        if not self._model.plans.is_uneven:
            return [parts] if parts else []
        following = [part for part in parts if part[0].is_begun]
        read = [part for part in parts if not part[0].is_begun]
        size = MAX_DECODE_SEQUENCES
        groups = [following[first : first + size] for first in range(0, len(following), size)]
        return [*groups, read] if read else groups

    def _run(self, parts: list[tuple[_Sequence, list[int]]]) -> list[_Sequence]:
        """Run the parts and sample a token for each sequence without pending tokens left; return those sequences."""
        plans = self._model.plans
        ids: list[int] = []
        positions: list[int] = []
        slots, rows, completed = [], [], []
        for sequence, part in parts:
            assert sequence.slot is not None
            start = len(sequence.history)
            plans.cache.reserve(sequence.slot, start + len(part))
            ids += part
            positions += range(start, start + len(part))
            slots += [sequence.slot] * len(part)
            if len(part) == len(sequence.pending):
                rows.append(len(ids) - 1)
                completed.append(sequence)
        if len(rows) == len(ids) and (parts[0][0].is_begun or not plans.is_uneven):
            plans.run_decode(ids, positions, slots)
        else:  # a single token of a prompt with `rows` would run by the plan for generating
            plans.run(ids, positions, slots, rows if len(ids) > 1 else (), alike=True)
        for sequence, part in parts:
            sequence.history += part
            del sequence.pending[: len(part)]
        tokens = self._model.samplers.draw([s.sampler for s in completed], [s.history for s in completed])
        for row, (sequence, token) in enumerate(zip(completed, tokens, strict=True)):
            of, generation = f"prompt {sequence.index}: ", sequence.generation
            sequence.drawn = sequence.sampler.check(token, len(sequence.history), generation.tokens, of)
            sequence.pending = [token]
            if sequence.logprobs is not None and token not in sequence.end_tokens:
                generation.logprobs.append(self._model.token_logprob(row, token, sequence.logprobs))
        return completed

    def _advance(self, sequence: _Sequence) -> None:
        """Append the drawn token to the sequence's text, and end the sequence if it is complete."""
        generation = sequence.generation
        self._emit(sequence, generation.advance())
        if generation.finish_reason is None and generation.is_full:
            self._emit(sequence, generation.advance())

    def _finish(self, sequence: _Sequence) -> None:
        self._emit(sequence, sequence.generation.finish("length"))

    def _emit(self, sequence: _Sequence, piece: str) -> None:
        if piece:
            self._pieces.append((sequence.index, piece))


def prompts_with_options(
    prompts: Iterable[str | Sequence[int]],
    options: GenerateOptions | Sequence[GenerateOptions] | None,
    keywords: GenerateKeywords,
) -> tuple[list[str | Sequence[int]], list[GenerateOptions]]:
    """The prompts of a batch and the options of each. Raises SettingError for anything that is not a list of prompts, or other
    options."""
    if isinstance(prompts, str):
        raise SettingError(f"prompts came as one text, {prompts!r:.40}; wanted a list of prompts")
    if isinstance(prompts, (bytes, Mapping)) or not isinstance(prompts, Iterable):
        raise SettingError(f"prompts came as {type(prompts).__name__}; wanted a list of prompts")
    listed = list(prompts)
    several = list(options) if isinstance(options, Sequence) else [options] * len(listed)
    if len(several) != len(listed):
        raise SettingError(f"{len(several)} options for {len(listed)} prompts; wanted one, or one per prompt")
    return listed, [generate_options(one, keywords) for one in several]


def _check_prompts(prompts: Sequence[list[int]], context: int) -> None:
    """Raise ContextError, naming the prompt, if one is empty or exceeds the context."""
    for i, ids in enumerate(prompts):
        if not ids:
            raise ContextError(f"prompt {i} is empty: it has no tokens to start from")
        if len(ids) > context:
            raise ContextError(
                f"prompt {i} has {len(ids)} tokens; the context is {context}: shorten it or raise context="
            )
