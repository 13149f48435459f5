"""Window: requests that were read ahead. They run in the order of their prompts, so that shared prefixes follow each other."""

from __future__ import annotations

import bisect
from dataclasses import field

from camshaft.dataclass import dataclass
from camshaft.serve.batch.files import Line
from camshaft.serve.requests.respond import Asked

WINDOW_REQUESTS, WINDOW_NBYTES = 256, 64 << 20


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
