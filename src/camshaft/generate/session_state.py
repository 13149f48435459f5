"""SessionState: a session's slot in the KV cache, its recurrent states, and its tokens, in the cache and pending."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from camshaft.errors import ContextError, PromptError, count
from camshaft.generate.generation import Closing
from camshaft.generate.memory.checkpoints import Checkpoints

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.speculation.speculator import Speculator


@dataclass
class Checked:
    """Drafted tokens whose keys, values and logits the run number `run` has computed: the row `row` of its logits is that of the
    token before them."""

    drafts: list[int]
    row: int
    run: int


class SessionState(Closing):
    """The tokens of a session and their place in the KV cache."""

    def __init__(self, model: LanguageModel, *, waits: bool = False, goes_back: bool = True) -> None:
        """Open a session. One that `waits` takes its slot when the first token is processed, and waits for it if another
        thread's generation will free one. One that `goes_back` keeps copies of states and windows for it. Raises ContextError if
        all slots are in use."""
        self._model, self._waits, self._goes_back = model, waits, goes_back
        self._open, self._slot = False, None
        if not waits:
            self._slot = model.plans.cache.open_slot()
            model.plans.cache.slots.keep(self._slot)
        self._open = True
        self._end = weakref.WeakMethod(self.close)
        self._states = Checkpoints(model.plans.cache) if model.plans.cache.copied_nbytes else None
        self.position = 0  # tokens in the cache
        self._pending: list[int] = []  # prompt or sampled tokens that are not in the cache yet
        self._turn = 0  # number of generations started
        self._checked: Checked | None = None
        self._speculator: Speculator | None = None
        self.history: list[int] = []  # the tokens in the cache

    def __repr__(self) -> str:
        return f"Session({count(self.position, 'token')} in the cache, {'open' if self._open else 'closed'})"

    @property
    def tokens(self) -> list[int]:
        """All tokens of the session, whether they are in the cache yet or not."""
        return self.history + self._pending

    def replace(self, ids: Sequence[int]) -> None:
        """Make `ids` the session's tokens. Their common beginning with the tokens in the cache stays there, but for the last
        token of `ids`, whose logits are to be computed. Ends an earlier generation's use of the session's tokens."""
        limit = min(len(self.history), len(ids) - 1)
        goes_on = self.history[:limit] == list(ids[:limit])
        common = limit if goes_on else next(i for i in range(limit) if self.history[i] != ids[i])
        del self.history[common:]
        self.position, self._pending, self._checked = common, list(ids[common:]), None
        self._go_back()

    def _go_back(self) -> None:
        """Where the states or windows are not those of `position`, go back to the nearest copy; what follows it is pending."""
        if self._states is None:
            return
        at = self._states.nearest(self.position)
        self._pending[:0] = self.history[at:]
        del self.history[at:]
        self.position = at

    def take_slot(self) -> None:
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
            if self._speculator is not None:
                self._speculator.rest()

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
            raise PromptError("the prompt is empty: it has no tokens to start from")
        if self.position + n_tokens > self._model.context:
            used = f" after {self.position} already in the session" if self.position else ""
            raise ContextError(
                f"the prompt has {n_tokens} tokens{used}; the context is {self._model.context}: shorten it or raise context="
            )

    def append(self, token: int) -> None:
        """Make a token the one to process next."""
        self._pending.append(token)

    def close(self) -> None:
        """Free the session's slot in the cache; may be called twice."""
        if self._open:
            self._open, self._states = False, None
            if self._speculator is not None:
                self._speculator.close()
            if self._slot is not None:
                self._model.plans.cache.close_slot(self._slot)

    def __del__(self) -> None:
        self.close()
