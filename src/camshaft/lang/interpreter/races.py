"""Track who wrote and read each array element, and report races."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

NOBODY = -1
# A uniform access by all lanes: it does not race with itself, and every lane sees its own.
ALL_LANES = -2
# Several accessors, through atomics.
MANY = -3


class Race(NamedTuple):
    """The access `now` ("writes") of `me` to an element conflicts with the access `before` ("wrote") of `other` at its line."""

    element: int
    me: int
    now: str
    other: int
    before: str
    other_line: int


class Tracker:
    """Records per element the last writer and two different readers; `of` names what they are: programs or lanes."""

    def __init__(self, size: int, of: Literal["programs", "lanes"]) -> None:
        self.of = of
        self.writer, self.reader, self.other_reader = (np.full(size, NOBODY, np.int64) for _ in range(3))
        self.write_line, self.read_line = (np.zeros(size, np.int64) for _ in range(2))
        self.atomic_only = np.zeros(size, np.bool_)
        self.touched: list[Any] = []

    def clear(self) -> None:
        """Forget all accesses."""
        for flat in self.touched:
            for who in (self.writer, self.reader, self.other_reader):
                who[flat] = NOBODY
        self.touched = []

    def read(self, flat: Any, who: Any, line: int) -> Race | None:
        """Record a read of elements `flat` by `who` (one number, or one per element)."""
        self.touched.append(flat)
        writer = self.writer[flat]
        wrong = (writer != NOBODY) & (writer != who) & (writer != ALL_LANES)
        if np.any(wrong):
            return _race(flat, who, "reads", writer, "wrote", self.write_line, wrong)
        reader = self.reader[flat]
        unread = reader == NOBODY
        self.other_reader[flat] = np.where(unread | (reader == who), self.other_reader[flat], who)
        self.reader[flat] = np.where(unread, who, reader)
        self.read_line[flat] = line
        return None

    def write(self, flat: Any, who: Any, line: int) -> Race | None:
        """Record a write."""
        self.touched.append(flat)
        found = self._passes_read(flat, who, line)
        writer = self.writer[flat]
        wrong = (writer != NOBODY) & (writer != who)
        if found is None and np.any(wrong):
            found = _race(flat, who, "writes", writer, "wrote", self.write_line, wrong)
        self.writer[flat] = who
        self.write_line[flat] = line
        self.atomic_only[flat] = False
        return found

    def atomic(self, flat: Any, who: Any, line: int) -> Race | None:
        """Record an atomic, which races with everything but other atomics."""
        self.touched.append(flat)
        writer, atomic = self.writer[flat], self.atomic_only[flat]
        wrong = (writer != NOBODY) & (writer != who) & ~atomic
        if np.any(wrong):
            return _race(flat, who, "changes", writer, "wrote", self.write_line, wrong)
        found = self._passes_read(flat, who, line)
        self.writer[flat] = np.where((writer == NOBODY) | (writer == who), who, MANY)
        self.atomic_only[flat] = atomic | (writer == NOBODY)
        self.write_line[flat] = line
        return found

    def _passes_read(self, flat: Any, who: Any, line: int) -> Race | None:
        for earlier in (self.reader[flat], self.other_reader[flat]):
            wrong = (earlier != NOBODY) & (earlier != who)
            if np.any(wrong):
                return _race(flat, who, "writes", earlier, "read", self.read_line, wrong)
        return None


def _race(flat: Any, who: Any, now: str, earlier: Any, before: str, lines: Any, wrong: Any) -> Race:
    at = int(np.argmax(wrong))
    element = int(np.atleast_1d(flat)[at])
    me = int(who if np.ndim(who) == 0 else who[at])
    return Race(element, me, now, int(np.atleast_1d(earlier)[at]), before, int(lines[element]))
