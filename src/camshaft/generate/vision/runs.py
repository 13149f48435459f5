"""Runs of a text model's plans on tokens of text and images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.errors import ContextError
from camshaft.extent import Extent
from camshaft.generate.memory.kv_cache import KVCache
from camshaft.generate.memory.logits import put_rows
from camshaft.generate.vision.tokens import ImageToken, Seeing, fill_rows, is_end, part_length, stretches

if TYPE_CHECKING:
    from camshaft.plan.cached.cached_plan import CachedPlan
    from camshaft.plan.execution_plan import ExecutionPlan
    from camshaft.plan.memory.device_memory import DeviceArray, DeviceRows

Array = np.ndarray[Any, Any]


class AxisPositions:
    """The positions of tokens in each slot. When a position comes again, because the slot has a new session or its session went
    back, the slot's history from that position on is dropped."""

    def __init__(self) -> None:
        # Per slot, ascending: (first position, what is subtracted from positions from there on).
        self._less: dict[int, list[tuple[int, int]]] = {}

    def of(self, ids: Sequence[int], positions: Sequence[int], slots: Sequence[int]) -> Array:
        """Time, row and column of each token, i32 [tokens, 3]. The tokens of a slot must come in order, from its first one."""
        return np.array([self._next(*each) for each in zip(ids, positions, slots, strict=True)], np.int32)

    def _next(self, token: int, position: int, slot: int) -> tuple[int, int, int]:
        known = self._less.setdefault(slot, [])
        while known and known[-1][0] > position:
            known.pop()
        less = known[-1][1] if known else 0
        if not isinstance(token, ImageToken):
            return (position - less,) * 3
        span, first = token.span, position - token.index - less
        row, column = divmod(token.index, span.columns)
        if token.index == len(span.rows) - 1:
            known.append((position + 1, less + len(span.rows) - span.extent))
        return first, first + row, first + column

    def begin(self, slot: int, other: int | None = None) -> None:
        """Start a slot that is empty, or that copies the history of slot `other`."""
        self._less[slot] = [] if other is None else list(self._less.get(other, []))


class ImageRuns(ABC):
    """The part of ModelPlans that handles images."""

    seeing: Seeing
    cache: KVCache
    length: Extent
    prompt_tokens: Extent

    @cached_property
    def axes(self) -> AxisPositions:
        """The positions of each slot's tokens, for models whose positions have several axes."""
        return AxisPositions()

    def _place(
        self,
        plan: ExecutionPlan | CachedPlan,
        ids: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
    ) -> None:
        """Set the tokens of a plan's next run, the embeddings of image tokens, and the number of keys."""
        n, inputs = len(ids), plan.inputs
        inputs["ids"][:n], inputs["positions"][:n], inputs["slots"][:n] = ids, positions, slots
        if "images" in inputs:
            fill_rows(ids, inputs["images"], inputs["is_image"])
        if self.seeing.axes:
            inputs["axes"][:n] = self.axes.of(ids, positions, slots)
        if self.cache.has_keys:  # a model without attention reads no keys
            plan.set_extent(self.length, max(positions) + 1)

    def pass_over(self, ids: Sequence[int], first: int, slot: int) -> None:
        """Record that a slot's cache already holds these tokens from position `first` on."""
        if self.seeing.axes:
            self.axes.of(ids, range(first, first + len(ids)), [slot] * len(ids))

    @property
    @abstractmethod
    def logits(self) -> Array | DeviceArray:
        """The output memory of all plans."""

    @abstractmethod
    def _run_as(
        self, name: str, ids: Sequence[int], positions: Sequence[int], slots: Sequence[int], rows: Sequence[int]
    ) -> Array | DeviceRows:
        """Run the named plan, or the one for this number of tokens and rows."""

    def part_length(self, ids: Sequence[int], first: int, most: int, *, is_first: bool = True) -> int:
        """Returns how many tokens from ids[first] on the next run takes, at most `most`.

        An image whose tokens attend to each other is not split: the first part of a run may exceed `most` for it, later parts
        return 0. ContextError for an image larger than a run."""
        n = min(most, len(ids) - first)
        if not self.seeing.together or n < 1:
            return max(n, 0)
        whole = part_length(ids, first, most)
        if whole > self.prompt_tokens.bound:
            raise ContextError(
                f"an image of {whole} tokens; a run has at most {self.prompt_tokens.bound}: raise context="
            )
        return whole if whole <= most or is_first else 0

    def _run_stretches(
        self, name: str, ids: Sequence[int], positions: Sequence[int], slots: Sequence[int], rows: Sequence[int]
    ) -> Array | DeviceRows:
        """Run the tokens of each image in one run, and the text between by the named plan. Returns the logits of `rows`."""
        found = []
        for first, last, of_image in stretches(ids):
            wanted = [row - first for row in rows if first <= row < last]
            if of_image and not is_end(ids[last - 1]):
                raise ContextError("the tokens end inside an image; wanted all of its tokens at once")
            given = (ids[first:last], positions[first:last], slots[first:last])
            logits = self._run_as("together" if of_image else name, *given, wanted)
            found += [logits.copy()] if wanted else []
        return put_rows(self.logits, found)
