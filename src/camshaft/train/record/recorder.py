"""What a run leaves beside its adapter: the history of its steps, a report as an HTML page, TensorBoard's event files."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from camshaft.errors import MissingExtraError, StoreError, reason_of
from camshaft.observe.page import filled
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.store.files import atomic_file
from camshaft.train.memory import memory_by_kind
from camshaft.train.record.history import History, Point
from camshaft.train.trainer import Progress

TAGS = {
    "loss/training": "loss",
    "loss/validation": "validation",
    "learning rate": "lr",
    "gradient norm": "gradient_norm",
}

SCRIPTS = ("common.js", "curves.js", "training.js")
_COLUMNS = ("step", "loss", "validation", "lr", "gradient_norm", "tokens", "seconds")


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


def page(
    title: str,
    facts: Mapping[str, str],
    points: Sequence[Point],
    memory: Mapping[str, int],
    steps: int,
    clip: float | None,
) -> str:
    """The page's HTML, with templates, style and scripts of the profile's page (observe/pages).

    `facts` are listed under the title, `memory` are bytes by kind, `steps` how many the run has in all.
    """
    data = {
        "steps": steps,
        "clip": clip,
        "memory": dict(memory),
        "columns": {name: [_cell(getattr(point, name)) for point in points] for name in _COLUMNS},
    }
    return filled("training", SCRIPTS, title, facts, data)


def write_page(path: Path, text: str) -> None:
    """Writes a page, atomically. StoreError if it cannot be written."""
    with atomic_file(path, private=False) as file:
        file.write(text.encode())


def _cell(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")


class Events:
    """Writes the steps of a run to a folder that TensorBoard reads. A context manager.

    After a resumption the steps from `done` on are written anew, and TensorBoard drops the older ones. Raises MissingExtraError
    without tensorboardX, StoreError if the folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], done: int) -> None:
        try:
            self._writer: Any = self.check()(os.fspath(folder), purge_step=done + 1 if done else None)
        except OSError as error:
            raise StoreError(f"{os.fspath(folder)}: cannot be written: {reason_of(error)}") from error

    @staticmethod
    def check() -> Any:
        """The class of the library's writer. MissingExtraError without the library."""
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise MissingExtraError("tensorboardX", "tensorboard", "writing TensorBoard's event files") from None
        return SummaryWriter

    def add(self, point: Point) -> None:
        """Writes a step."""
        for tag, name in TAGS.items():
            value = getattr(point, name)
            if value is not None:
                self._writer.add_scalar(tag, value, point.step)
        if point.seconds > 0:
            self._writer.add_scalar("tokens per second", point.tokens / point.seconds, point.step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.close()
