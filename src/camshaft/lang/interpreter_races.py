"""Tracker: who wrote and who read each element of an array, and whether two of them race. Used by lang/interpreter_memory.py."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

NOBODY = -1
# A uniform access, done by all lanes alike: it does not race with itself, and each lane sees its own.
ALL_LANES = -2


class Race(NamedTuple):
    """`me` does `now` ("writes") to an element what does not go with what `other` did `before` ("wrote") at its line."""

    element: int
    me: int
    now: str
    other: int
    before: str
    other_line: int


class Tracker:
    """For each element its last writer and two different readers; `of` says whether these are programs or lanes."""

    def __init__(self, size: int, of: Literal["programs", "lanes"]) -> None:
        self.of = of
        self.writer, self.reader, self.other_reader = (np.full(size, NOBODY, np.int64) for _ in range(3))
        self.write_line, self.read_line = (np.zeros(size, np.int64) for _ in range(2))

    def clear(self) -> None:
        """All that was done is settled."""
        for who in (self.writer, self.reader, self.other_reader):
            who[:] = NOBODY

    def read(self, flat: Any, who: Any, line: int) -> Race | None:
        """Notes a read of elements `flat` by `who` (one number, or one per element)."""
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
        """Notes a write."""
        for earlier, lines, verb in (
            (self.writer[flat], self.write_line, "wrote"),
            (self.reader[flat], self.read_line, "read"),
            (self.other_reader[flat], self.read_line, "read"),
        ):
            wrong = (earlier != NOBODY) & (earlier != who)
            if np.any(wrong):
                return _race(flat, who, "writes", earlier, verb, lines, wrong)
        self.writer[flat] = who
        self.write_line[flat] = line
        return None


def _race(flat: Any, who: Any, now: str, earlier: Any, before: str, lines: Any, wrong: Any) -> Race:
    at = int(np.argmax(wrong))
    element = int(np.atleast_1d(flat)[at])
    me = int(who if np.ndim(who) == 0 else who[at])
    return Race(element, me, now, int(np.atleast_1d(earlier)[at]), before, int(lines[element]))
