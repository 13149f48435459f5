"""Runs of a text model's plans with tokens of pictures among others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.errors import ContextError
from camshaft.extent import Extent
from camshaft.generate.memory.logits import put_rows
from camshaft.generate.vision.tokens import Seeing, part_length, stretches

if TYPE_CHECKING:
    from camshaft.plan.memory.device_memory import DeviceArray, DeviceRows

Array = np.ndarray[Any, Any]


class PictureRuns(ABC):
    """What ModelPlans has of pictures."""

    seeing: Seeing
    prompt_tokens: Extent

    @property
    @abstractmethod
    def logits(self) -> Array | DeviceArray:
        """The output memory of all plans."""

    @abstractmethod
    def _run_as(
        self, name: str, ids: Sequence[int], positions: Sequence[int], slots: Sequence[int], rows: Sequence[int]
    ) -> Array | DeviceRows:
        """Run the plan of that name, or the one for so many tokens and rows."""

    def part_length(self, ids: Sequence[int], first: int, most: int, *, is_first: bool = True) -> int:
        """How many tokens from number `first` on the next run may have, at most `most`. A picture whose tokens see each other is
        not cut: the first part of a run has more if it must, another one none. ContextError for one that no run takes."""
        n = min(most, len(ids) - first)
        if not self.seeing.together or n < 1:
            return max(n, 0)
        whole = part_length(ids, first, most)
        if whole > self.prompt_tokens.bound:
            raise ContextError(
                f"a picture of {whole} tokens; a run has at most {self.prompt_tokens.bound}: raise context="
            )
        return whole if whole <= most or is_first else 0

    def _run_stretches(
        self, ids: Sequence[int], positions: Sequence[int], slots: Sequence[int], rows: Sequence[int]
    ) -> Array | DeviceRows:
        """Run the tokens of each picture together, and the others between; return the logits of all wanted rows."""
        found = []
        for first, last, of_picture in stretches(ids):
            wanted = [row - first for row in rows if first <= row < last]
            given = (ids[first:last], positions[first:last], slots[first:last])
            logits = self._run_as("together" if of_picture else "", *given, wanted)
            found += [logits.copy()] if wanted else []
        return put_rows(self.logits, found)
