"""Examples as arrays of one shape: an example a row, or several packed into each row, which then see nothing of each other."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.train.tuning.data.examples import Example

Array = np.ndarray[Any, Any]
IGNORED = -100  # a target that does not count
_MULTIPLE = 16  # rows' lengths


@dataclass(frozen=True, eq=False)
class Rows:
    """Arrays of i32: `ids` [n, length], `rows` [n, m] whose next tokens are learned, and these tokens, `targets` [n, m].

    Rows are filled up with zeros behind their end; the targets there are -100. `counts` [n] are the tokens that are no such
    filling. `positions` [n, length], of packed rows alone, are 0 where an example starts. Rows of pairs have an axis of 2
    after n, and `reference` (preference.py).
    """

    ids: Array
    rows: Array
    targets: Array
    counts: Array
    positions: Array | None = None
    reference: Array | None = None

    @property
    def arrays(self) -> tuple[Array, ...]:
        """What the loss takes after the parameters."""
        given = (self.ids, self.rows, self.targets)
        return (*given, *(a for a in (self.positions, self.reference) if a is not None))


@dataclass(frozen=True, eq=False)
class Layout:
    """Which examples are in each row, by their numbers; rows' `length`, and the most targets of one, `width`."""

    groups: Sequence[Sequence[int]]
    length: int
    width: int
    is_packed: bool

    def fill(self, groups: Sequence[Sequence[Example]]) -> Rows:
        """Rows of this length and width with these examples."""
        shape = len(groups), self.length
        ids, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        rows, counts = np.zeros((len(groups), self.width), np.int32), np.zeros(len(groups), np.int64)
        targets = np.full_like(rows, IGNORED)
        for i, group in enumerate(groups):
            at = found = 0
            for example in group:
                tokens, size = np.array(example.tokens, np.int32), len(example.tokens) - 1
                where = np.flatnonzero(example.learned[1:])
                ids[i, at : at + size], positions[i, at : at + size] = tokens[:-1], np.arange(size)
                end = found + len(where)
                rows[i, found:end], targets[i, found:end] = at + where, tokens[1:][where]
                at, found = at + size, end
            positions[i, at:] = np.arange(self.length - at)
            counts[i] = at
        return Rows(ids, rows, targets, counts, positions if self.is_packed else None)


def layout_of(sizes: Sequence[int], learned: Sequence[int], length: int | None = None) -> Layout:
    """The rows of examples of so many tokens, of which so many are learned: one each or, with a `length`, packed into rows of up
    to that many. The last token of an example is only a target."""
    inputs = [size - 1 for size in sizes]
    groups = [[i] for i in range(len(inputs))] if length is None else _packed(inputs, length - 1)
    most = max(sum(inputs[i] for i in group) for group in groups)
    width = max(sum(learned[i] for i in group) for group in groups)
    return Layout(groups, -(-most // _MULTIPLE) * _MULTIPLE, width, length is not None)


def one_each(examples: Sequence[Example]) -> Rows:
    """A row for each example."""
    return _rows(examples, None)


def packed(examples: Sequence[Example], length: int) -> Rows:
    """Rows of up to `length` tokens, each with as many examples as fit. No example may be longer."""
    return _rows(examples, length)


def _rows(examples: Sequence[Example], length: int | None) -> Rows:
    sizes, learned = ([len(e.tokens) for e in examples], [sum(e.learned[1:]) for e in examples])
    layout = layout_of(sizes, learned, length)
    return layout.fill([[examples[i] for i in group] for group in layout.groups])


def _packed(sizes: Iterable[int], room: int) -> list[list[int]]:
    """Numbers of examples by rows of `room` tokens: the longest first, each into the fullest row in which it fits."""
    groups: list[list[int]] = []
    open_rows: list[tuple[int, int]] = []  # (room that is left, row), sorted
    for i, size in sorted(enumerate(sizes), key=lambda pair: -pair[1]):
        at = bisect_left(open_rows, (size, -1))
        if at == len(open_rows):
            left, row = room, len(groups)
            groups.append([])
        else:
            left, row = open_rows.pop(at)
        groups[row].append(i)
        if left > size:
            insort(open_rows, (left - size, row))
    return groups
