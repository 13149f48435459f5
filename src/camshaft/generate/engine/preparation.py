"""Make a model's plans before requests wait for them: on a machine's first time each takes seconds to compile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from camshaft.errors import CamshaftError
from camshaft.generate.model_plans import MAX_DECODE_SEQUENCES
from camshaft.generate.sampling.form import SamplingForm
from camshaft.generate.speculation.pace import MOST_ROWS
from camshaft.plan.memory.loading import short_switch_interval

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel

_log = logging.getLogger("camshaft.engine")


def plan_names(lm: LanguageModel, n_requests: int) -> Iterator[str]:
    """The plans that an engine runs for up to `n_requests` requests, in the order in which a growing number of requests needs
    them; without that for one prompt, which is made when the model is opened."""
    if lm.plans.is_uneven:
        yield "rows"  # of every prompt
    yield "single"
    if n_requests > 1 and not lm.plans.is_uneven:
        yield "rows"  # of prompts that end in one step
    most = min(n_requests, MAX_DECODE_SEQUENCES, lm.plans.logit_rows.bound)
    yield from (f"decode.{1 << i}" for i in range(1, (most - 1).bit_length() + 1))


def prepare_draft(draft: LanguageModel) -> None:
    """Make the plans by which a draft model drafts."""
    with draft.lock:
        for name in plan_names(draft, MOST_ROWS):
            if name != "rows":
                draft.plans.make(name)
        draft.samplers.prepare(SamplingForm())


class Preparation:
    """A thread that makes the plans of an engine from `start` on, while requests run: a request waits only for a plan that it
    needs itself."""

    def __init__(self, lm: LanguageModel, *, speculates: bool) -> None:
        """With drafts, a run has several tokens of few requests."""
        n_slots = lm.plans.cache.n_slots
        self._lm, self._names = lm, [*plan_names(lm, max(n_slots, MOST_ROWS) if speculates else n_slots)]
        self._is_closing = False
        self.thread = threading.Thread(target=self._make_all, name="camshaft-plans", daemon=True)

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def _make_all(self) -> None:
        try:
            with self._lm.lock:  # every request waits for this one anyway
                self._lm.check_open()
                self._lm.samplers.prepare(SamplingForm())
            with short_switch_interval():  # the engine's Python waits less for this thread's
                for name in self._names:
                    if self._is_closing:
                        return
                    self._lm.plans.make(name)
        except CamshaftError as error:  # whoever needs the plan gets it too
            if not self._is_closing:
                _log.warning("plans for several requests are not made ahead: %s", error)
        except Exception:
            _log.exception("plans for several requests are not made ahead")

    def close(self) -> None:
        """Make no further plan; returns when the one in the making is done."""
        self._is_closing = True
        if self.thread.is_alive():
            self.thread.join()
