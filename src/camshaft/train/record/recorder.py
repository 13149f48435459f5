"""What a run leaves beside its adapter: the history of its steps, a report as an HTML page, TensorBoard's event files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from camshaft.dataclass import dataclass
from camshaft.errors import StoreError
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.train.memory import memory_by_kind
from camshaft.train.record.events import Events
from camshaft.train.record.history import History, Point
from camshaft.train.record.page import page, write_page
from camshaft.train.trainer import Progress


@dataclass(frozen=True)
class Records:
    """What to record: `report` is an HTML file, `tensorboard` a folder for event files."""

    report: str | os.PathLike[str] | None = None
    tensorboard: str | os.PathLike[str] | None = None

    def check(self) -> None:
        """Raises StoreError if the report cannot be written, MissingExtraError without TensorBoard's writer."""
        if self.report is not None:
            path = Path(self.report)
            folder = path.absolute().parent
            if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
                raise StoreError(f"{path}: not writable: it is a folder or read-only, or its folder does not exist")
        if self.tensorboard is not None:
            Events.check()


class Recorder:
    """Records the steps of a run. A context manager; the report is written after each tenth of the steps and at the end.

    `done` of `steps` are those of before a resumption; `plans` are those of the run so far, whose memory the report shows.
    """

    def __init__(
        self,
        records: Records,
        folder: Path,
        done: int,
        steps: int,
        title: str,
        facts: Mapping[str, str],
        clip: float | None,
        plans: Callable[[], Sequence[ExecutionPlan]],
    ) -> None:
        self._records, self._done, self._steps, self._folder = records, done, steps, folder
        self._title, self._facts, self._clip, self._plans = title, facts, clip, plans
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._history = self._open.enter_context(History(self._folder, self._done))
        self._events: Events | None = None
        if self._records.tensorboard is not None:
            self._events = self._open.enter_context(Events(self._records.tensorboard, self._done))
        return self

    @property
    def losses(self) -> list[float]:
        """The losses of all steps so far, those of before a resumption too."""
        return [point.loss for point in self._history.points]

    def add(self, progress: Progress, tokens: int) -> Point:
        """Adds a step of so many tokens."""
        point = self._history.add(progress, tokens)
        if self._events is not None:
            self._events.add(point)
        if point.step * 10 // self._steps > (point.step - 1) * 10 // self._steps:
            self._report()
        return point

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._open:
            try:
                self._report()
            except StoreError as failed:
                if error is None:
                    raise
                warnings.warn(f"the report is not up to date: {failed}", stacklevel=2)  # the run's own error goes on

    def _report(self) -> None:
        points = self._history.points
        if self._records.report is None or not points:
            return
        skipped = points[-1].skipped
        facts = {**self._facts, **({"skipped steps, as gradients overflowed": str(skipped)} if skipped else {})}
        text = page(self._title, facts, points, memory_by_kind(self._plans()), self._steps, self._clip)
        write_page(Path(self._records.report), text)
