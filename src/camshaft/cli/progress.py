"""Progress bars and notices on stderr. Imports rich (0.1 s) only when a bar is shown."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """A context manager called with (done, total): a progress bar on a terminal, otherwise one line at the start."""

    def __init__(self, title: str, *, unit: str = "bytes") -> None:
        self._title, self._unit = title, unit
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._started = False

    def __enter__(self) -> Bar:
        return self

    def __call__(self, done: int, total: int) -> None:
        if not self._started:
            self._started = True
            self._start(total)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()  # also restores the cursor

    def _start(self, total: int) -> None:
        if not sys.stderr.isatty():
            size = f" ({total / 1e6:.0f} MB)" if self._unit == "bytes" else ""
            print(f"camshaft: {self._title}{size}", file=sys.stderr)
            return
        from rich import progress
        from rich.console import Console

        right = (
            (progress.DownloadColumn(), progress.TransferSpeedColumn(), progress.TimeRemainingColumn())
            if self._unit == "bytes"
            else (progress.MofNCompleteColumn(), progress.TimeElapsedColumn())
        )
        columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), *right)
        self._progress = progress.Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(self._title, total=total)
        self._progress.start()


class Notice:
    """A context manager that shows one line on a terminal if its block takes longer than `after_s` seconds."""

    def __init__(self, text: str, after_s: float = 1.5) -> None:
        self._text, self._timer = text, threading.Timer(after_s, self._show)
        self._timer.daemon = True
        self._shown = False

    def __enter__(self) -> None:
        if sys.stderr.isatty():
            self._timer.start()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()
        if self._shown:
            print("\r" + " " * len(self._text) + "\r", end="", file=sys.stderr, flush=True)

    def _show(self) -> None:
        self._shown = True
        print(self._text, end="", file=sys.stderr, flush=True)
