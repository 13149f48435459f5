"""Checks of the interpreter: races between accesses, and undefined elements.

A load of unwritten scratch is undefined. Computing with it and dropping it in a select is allowed; storing it to an array or
branching on it is an error. A kernel may therefore load a whole vector of which only some elements were written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from camshaft.lang import ir

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
        self.has_writes = self.has_reads = (
            False  # most arrays have one kind of access, which then needs half the checks
        )

    def clear(self) -> None:
        """Forget all accesses."""
        # an access takes as long to clear as 500 elements in a row
        places = self.touched if 500 * len(self.touched) < self.writer.size else [slice(None)]
        for flat in places:
            for who in (self.writer, self.reader, self.other_reader):
                who[flat] = NOBODY
        self.touched = []
        self.has_writes = self.has_reads = False

    def read(self, flat: Any, who: Any, line: int) -> Race | None:
        """Record a read of elements `flat` by `who` (one number, or one per element)."""
        self.touched.append(flat)
        if self.has_writes:
            writer = self.writer[flat]
            wrong = (writer != NOBODY) & (writer != who) & (writer != ALL_LANES)
            if wrong.any():
                return _race(flat, who, "reads", writer, "wrote", self.write_line, wrong)
        self.has_reads = True
        self._note_reader(flat, who)
        self.read_line[flat] = line
        return None

    def _note_reader(self, flat: Any, who: Any) -> None:
        reader = self.reader[flat]
        unread = reader == NOBODY
        if unread.all():
            self.reader[flat] = who
        elif not (reader == who).all():
            self.other_reader[flat] = np.where(unread | (reader == who), self.other_reader[flat], who)
            self.reader[flat] = np.where(unread, who, reader)

    def write(self, flat: Any, who: Any, line: int) -> Race | None:
        """Record a write."""
        self.touched.append(flat)
        found = self._passes_read(flat, who, line)
        if found is None and self.has_writes:
            writer = self.writer[flat]
            wrong = (writer != NOBODY) & (writer != who)
            if wrong.any():
                found = _race(flat, who, "writes", writer, "wrote", self.write_line, wrong)
        self.has_writes = True
        self.writer[flat] = who
        self.write_line[flat] = line
        self.atomic_only[flat] = False
        return found

    def atomic(self, flat: Any, who: Any, line: int) -> Race | None:
        """Record an atomic, which races with everything but other atomics."""
        self.touched.append(flat)
        writer, atomic = self.writer[flat], self.atomic_only[flat]
        wrong = (writer != NOBODY) & (writer != who) & ~atomic
        if wrong.any():
            return _race(flat, who, "changes", writer, "wrote", self.write_line, wrong)
        found = self._passes_read(flat, who, line)
        self.has_writes = True
        self.writer[flat] = np.where((writer == NOBODY) | (writer == who), who, MANY)
        self.atomic_only[flat] = atomic | (writer == NOBODY)
        self.write_line[flat] = line
        return found

    def _passes_read(self, flat: Any, who: Any, line: int) -> Race | None:
        if not self.has_reads:
            return None
        for earlier in (self.reader[flat], self.other_reader[flat]):
            wrong = (earlier != NOBODY) & (earlier != who)
            if wrong.any():
                return _race(flat, who, "writes", earlier, "read", self.read_line, wrong)
        return None


def _race(flat: Any, who: Any, now: str, earlier: Any, before: str, lines: Any, wrong: Any) -> Race:
    at = int(np.argmax(wrong))
    element = int(np.atleast_1d(flat)[at])
    me = int(who if np.ndim(who) == 0 else who[at])
    return Race(element, me, now, int(np.atleast_1d(earlier)[at]), before, int(lines[element]))


@dataclass(frozen=True)
class Undefined:
    """Which elements of a value are undefined: `where` is one boolean or one per element; `origin` describes the source."""

    where: Any
    origin: str

    def spread(self, size: int, places: Any) -> Undefined:
        """Move the marks to `places` of a vector of `size`."""
        where = np.zeros(size, np.bool_)
        where[places] = self.where
        return Undefined(where, self.origin)

    def only(self, size: int, places: Any) -> Undefined | None:
        """Return the undefined elements at `places` (None: all), or None if all of these are defined."""
        where = np.broadcast_to(self.where, (size,))
        return undefined_of(where if places is None else where[places], self.origin)


def undefined_of(where: Any, origin: str) -> Undefined | None:
    """Return an Undefined, or None if every element is defined."""
    return Undefined(where, origin) if np.any(where) else None


# What mixes elements: all are undefined if any is.
_MIXED = ("reduce", "vector_sum", "vector_max", "scan", "subgroup_reduce", "pack", "partition", "permute", "count")


def of_result(value: ir.Value, operands: list[Undefined | None], condition: Any) -> Undefined | None:
    """Return which elements of a result are undefined. `condition`: a select's first operand or a shuffle's lane."""
    origins = [h.origin for h in operands if h is not None]
    if not origins:
        return None
    parts: list[Any] = [np.False_ if h is None else h.where for h in operands]
    if value.op == "select":
        return undefined_of(parts[0] | np.where(condition, parts[1], parts[2]), origins[0])
    if value.op == "element":
        return undefined_of(parts[0][value.attr], origins[0])
    if value.op == "shuffle":
        return undefined_of(parts[0] if np.ndim(parts[0]) == 0 else parts[0][condition], origins[0])
    if value.op == "reverse":
        return undefined_of(parts[0] if np.ndim(parts[0]) == 0 else parts[0][::-1], origins[0])
    if value.op in _MIXED:
        return undefined_of(np.any(parts[0]), origins[0])
    where = parts[0]
    for part in parts[1:]:
        where = where | part
    return undefined_of(where, origins[0])
