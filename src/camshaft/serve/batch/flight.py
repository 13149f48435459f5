"""Window: requests that were read ahead, in the order of their prompts. Flight: the jobs of a batch that are in the engine."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from camshaft.errors import ModelError
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Listener, Request, Update
from camshaft.serve.batch.files import Line
from camshaft.serve.requests.answers import Answer, Job, Usage, usage_of
from camshaft.serve.requests.respond import Asked

WINDOW_REQUESTS, WINDOW_NBYTES = 256, 64 << 20

T = TypeVar("T")
IDLE_S = 1.0


@dataclass
class Flown(Generic[T]):
    """A job that was in the engine, and what it is for. `error` is that of the first answer that failed."""

    of: T
    job: Job
    answers: list[Answer]
    requests: Sequence[Request] = ()
    n_open: int = 0
    error: Exception | None = None

    @property
    def usage(self) -> Usage:
        """The numbers of tokens."""
        return usage_of(self.requests, self.job)


@dataclass
class Flight(Generic[T]):
    """Jobs in the engine with up to `most_open` answers together; a job with more is alone. Belongs to one thread."""

    engine: Engine
    most_open: int
    n_open: int = 0  # answers
    _ended: SimpleQueue[tuple[Flown[T], Exception | None]] = field(default_factory=SimpleQueue)

    def takes(self, job: Job) -> bool:
        """Whether there is room for a job."""
        return not self.n_open or self.n_open + job.n_answers <= self.most_open

    def submit(self, of: T, job: Job) -> None:
        """Begin a job. Raises what Engine.submit raises."""
        flown = Flown(of, job, [Answer() for _ in range(job.n_answers)], n_open=job.n_answers)
        listeners = [self._listener(flown, answer) for answer in flown.answers]
        flown.requests = self.engine.submit_all(
            [(*wanted, listener) for wanted, listener in zip(job.wanted, listeners, strict=True)], scored=job.is_scored
        )
        self.n_open += job.n_answers

    def _listener(self, flown: Flown[T], answer: Answer) -> Listener:
        def listen(update: Update) -> None:  # in the engine's thread, which wakes this one only at the end
            answer.add(update)
            if update.is_last:
                self._ended.put((flown, update.error))

        return listen

    def ended(self) -> list[Flown[T]]:
        """The jobs that have ended since the last call."""
        found = []
        while not self._ended.empty():
            found += self._counted(*self._ended.get())
        return found

    def wait(self, idle: Callable[[], None]) -> list[Flown[T]]:
        """As `ended`, once there is one; calls `idle` each IDLE_S until then. Raises ModelError if the engine has ended."""
        while True:
            try:
                # Without a timeout, Ctrl-C would not end a wait on Windows.
                found = self._counted(*self._ended.get(timeout=IDLE_S))
            except Empty:
                if not self.engine.is_alive:
                    raise ModelError("the engine has ended") from None
                idle()
                continue
            if found:
                return found + self.ended()

    def _counted(self, flown: Flown[T], error: Exception | None) -> list[Flown[T]]:
        """The job, if it ends with this end of one of its answers; the first error ends its other answers."""
        if flown.error is not None:
            return []
        flown.error, flown.n_open = error, flown.n_open - 1
        self.n_open -= 1
        if error is not None:
            self.n_open -= flown.n_open
            for request in flown.requests:
                if not request.clock.ended:
                    self.engine.cancel(request)
        return [flown] if error is not None or not flown.n_open else []


@dataclass(frozen=True)
class Row:
    """A request that can run. Prompts with equal prefixes are adjacent in `order`."""

    line: Line
    custom_id: str
    asked: Asked
    order: tuple[tuple[int, ...], int]


@dataclass
class Window:
    """Rows that wait, in order."""

    rows: list[Row] = field(default_factory=list)
    nbytes: int = 0
    last: tuple[tuple[int, ...], int] = ((), 0)  # of the row taken last

    @property
    def is_full(self) -> bool:
        """Whether the window is full."""
        return len(self.rows) >= WINDOW_REQUESTS or self.nbytes >= WINDOW_NBYTES

    @property
    def index(self) -> int:
        """The index of the row that follows the last one taken; after the end, 0."""
        return bisect.bisect_right(self.rows, self.last, key=_order) % len(self.rows)

    def add(self, row: Row) -> None:
        """Add a row in its place."""
        bisect.insort(self.rows, row, key=_order)
        self.nbytes += len(row.line.text or b"")

    def take(self) -> Row:
        """Take the row at `index`."""
        row = self.rows.pop(self.index)
        self.nbytes -= len(row.line.text or b"")
        self.last = row.order
        return row


def _order(row: Row) -> tuple[tuple[int, ...], int]:
    return row.order
