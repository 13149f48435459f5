"""DraftPlans: the plans of runs that check drafts, made once a text has shown that they pay."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from camshaft.generate.speculation.pace import MOST_ROWS
from camshaft.generate.stored.plans_ahead import PlansAhead
from camshaft.process import renewed

# Tokens that drafts would have saved before plans are made for them. Loading the three of SmolLM2 takes 45 ms, 10 tokens' time.
_MISSED = 8


class DraftPlans:
    """Makes the plans of one model in the background: of runs of 2 tokens, then of 4 and 8. `make` makes a plan by its name."""

    def __init__(self, make: Callable[[str], object]) -> None:
        self.most_rows = 1  # tokens of the longest run whose plan is there
        self._make, self._n_missed = make, 0
        self._sizes = [1 << i for i in range(1, MOST_ROWS.bit_length())]
        self._ahead = self._begun()
        renewed(self)

    def _begun(self) -> PlansAhead:
        return PlansAhead([partial(self._add, size) for size in self._sizes], "drafts")

    def renew(self) -> None:
        """Start again when tokens were missed, in a forked child: the thread is the parent's."""
        if not self._ahead.is_closing:
            self._n_missed, self._ahead = 0, self._begun()

    def _add(self, size: int) -> None:
        self._make(f"decode.{size}")
        self.most_rows = size

    def count_missed(self) -> None:
        """Count a token that a run with drafts would have saved. The caller holds the model's lock."""
        self._n_missed += 1
        if self._n_missed == _MISSED:
            self._ahead.start()

    def stop(self) -> None:
        """Make no further plan."""
        self._ahead.stop()
