"""SessionRuns: the runs of a model that add a session's tokens to the KV cache: prompts, drafted and kept tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.generate.memory.kv_cache import write_blocks
from camshaft.generate.memory.logits import move_row
from camshaft.generate.session_state import Checked, SessionState
from camshaft.generate.speculation.pace import MOST_ROWS
from camshaft.generate.stored.prompt_cache import LEAST_NEW, PromptCache

if TYPE_CHECKING:
    from camshaft.plan.memory.device_memory import DeviceRows

Array = np.ndarray[Any, Any]


class SessionRuns(SessionState):
    """Processes a session's pending tokens."""

    def read_kept(self, kept: PromptCache) -> None:
        """Read what is kept of an empty session's pending tokens, for `process_kept`. The caller does not hold the model's
        lock."""
        if not self.history:
            kept.read([*self._pending], self._model.threads)

    def process_kept(self, kept: PromptCache) -> None:
        """Process the pending tokens of an empty session but for those that `read_kept` has read, and keep them."""
        assert self._slot is not None
        tokens, kept.n_taken, self._goes_back = self.tokens, self._take_kept(kept), True
        self._process_pending()
        if len(tokens) - kept.n_taken >= LEAST_NEW:
            kept.keep(tokens, self._slot, {} if self._states is None else self._states.copies)

    def _take_kept(self, kept: PromptCache) -> int:
        assert self._slot is not None
        found, cache = kept.take(self._pending), self._model.plans.cache
        if found is None:
            return 0
        n = len(found.tokens)
        cache.reserve(self._slot, n)
        write_blocks(cache, self._slot, found.blocks, self._model.threads)
        if self._states is not None:
            self._states.put(found.states)
        self._model.plans.axes.begin(self._slot)
        self.history, self.position = self._pending[:n], n
        del self._pending[:n]
        return n

    def advance(self, ids: Sequence[int] = ()) -> None:
        """Process the pending tokens, and `ids` after them, as they would be one by one: the logits after the last pending one
        are the first row, and those after `ids` are kept for `advance_checked`. The caller has the model's lock and a slot."""
        self._go_back()
        known, plans, states = self._pending, self._model.plans, self._states
        assert self._slot is not None
        every = [*known, *ids]
        self._reserve(len(every))
        if states is not None:
            states.restore(self._slot, self.position)
            if ids:  # of which some may be wrong
                states.mark(self._slot, self.position)
            states.begin(self._slot, self.position, len(every))
        positions = range(self.position, self.position + len(every))
        plans.run_decode(every, positions, [self._slot] * len(every))
        self.position += len(known)
        self.history += known
        self._pending = []
        if states is not None:
            states.end(positions.stop)
        move_row(plans.logits, len(known) - 1)
        self._checked = Checked(list(ids), len(known) - 1, plans.n_runs) if ids else None

    def advance_checked(self) -> bool:
        """Go on by the pending token without a run if it is the next drafted one: its logits become the first row. False if it is
        a different one, or if something else has run meanwhile."""
        checked, plans = self._checked, self._model.plans
        if checked is None:
            return False
        if checked.run != plans.n_runs or not checked.drafts or self._pending != checked.drafts[:1]:
            self._checked = None
            return False
        del checked.drafts[0]
        checked.row += 1
        move_row(plans.logits, checked.row)
        self.position += 1
        self.history += self._pending
        self._pending = []
        return True

    def process_pending(self) -> None:
        """Process the pending tokens, if any: few of them as they would be one by one. As `advance`."""
        if len(self._pending) > MOST_ROWS:
            self._process_pending()
        elif self._pending:
            self.advance()

    def mark(self) -> None:
        """Keep a copy of the recurrent states, for tokens that may be wrong; of one place at a time."""
        if self._states is not None and self._slot is not None and self._states.is_here(self.position):
            self._states.mark(self._slot, self.position)

    def _process_pending(self) -> None:
        """Process the pending tokens run by run; after an interrupt the rest is still pending."""
        self._go_back()
        plans, end = self._model.plans, self.position + len(self._pending)
        self._reserve(len(self._pending))
        copies = self._copied_at()
        stops = copies if self._states is not None and self._states.splits else []
        reads = plans.is_uneven and self._is_prompt(self._pending)
        while self._pending:
            first, following = self.position, next((at for at in stops if at > self.position), end)
            most = min(plans.prompt_tokens.bound, following - self.position)
            part = self._pending[: plans.part_length(self._pending, 0, most)]
            # A single token of a prompt with `wanted` would run by the plan for generating, which rounds differently.
            self._run(part, () if reads and len(part) == 1 else (len(part) - 1,))
            del self._pending[: len(part)]
            self._save([at for at in copies if first < at <= self.position])

    def _is_prompt(self, ids: Sequence[int]) -> bool:
        """Whether tokens are read as a prompt, not as the next one of a text."""
        return len(ids) > 1 or not self.position

    def _copied_at(self) -> list[int]:
        """The positions in the pending tokens at which states and windows are copied."""
        if self._states is None or not self._goes_back:
            return []
        ends = self._model.tokenizer.eos_ids
        return [self.position + n for n in self._states.stops(self.position, self._pending, ends)]

    def _save(self, positions: Sequence[int]) -> None:
        """Copy the states and windows at each of these positions, right after their tokens were processed."""
        assert self._slot is not None
        for position in positions:
            assert self._states is not None
            self._states.save(self._slot, position)

    def _reserve(self, n_tokens: int) -> None:
        assert self._slot is not None
        self._model.plans.cache.reserve(self._slot, self.position + n_tokens)

    def _run(self, ids: Sequence[int], wanted: Sequence[int], *, alike: bool = False) -> Array | DeviceRows:
        assert self._slot is not None
        positions, states = range(self.position, self.position + len(ids)), self._states
        if states is not None:
            states.begin(self._slot, self.position, len(ids))
        logits = self._model.plans.run(ids, positions, [self._slot] * len(ids), wanted, alike=alike)
        self.position += len(ids)
        self.history += ids
        if states is not None:
            states.end(self.position)
        return logits
