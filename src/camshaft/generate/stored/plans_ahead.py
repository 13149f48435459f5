"""PlansAhead: a thread that makes plans before runs wait for them; on a machine's first time each takes seconds to compile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from camshaft.errors import CamshaftError
from camshaft.plan.memory.loading import short_switch_interval

_log = logging.getLogger("camshaft.plans")


class PlansAhead:
    """Takes `steps` one after another from `start` on, while runs go on: who needs a plan waits only for that one. `what` says
    in warnings what the plans are for."""

    def __init__(self, steps: Sequence[Callable[[], object]], what: str) -> None:
        self._steps, self._what, self.is_closing = steps, what, False
        self.thread = threading.Thread(target=self._take_all, name="camshaft-plans", daemon=True)

    def start(self) -> None:
        """Begin, if the system has a thread for it."""
        try:
            self.thread.start()
        except RuntimeError as error:  # plans are made when they are needed, if not ahead
            _log.warning("plans for %s are not made ahead: %s", self._what, error)

    def _take_all(self) -> None:
        try:
            with short_switch_interval():  # the Python of runs waits less for this thread's
                for step in self._steps:
                    if self.is_closing:
                        return
                    step()
        except CamshaftError as error:  # whoever needs the plan gets it too
            if not self.is_closing:
                _log.warning("plans for %s are not made ahead: %s", self._what, error)
        except Exception:
            _log.exception("plans for %s are not made ahead", self._what)

    def stop(self) -> None:
        """Take no further step."""
        self.is_closing = True

    def close(self) -> None:
        """Take no further step; returns when the one at hand is done."""
        self.stop()
        if self.thread.is_alive():
            self.thread.join()
