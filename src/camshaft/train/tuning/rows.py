"""Examples as arrays of one shape: an example a row, or several packed into each row, which then see nothing of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.train.tuning.examples import Example

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
        """What the loss takes after the adapters."""
        given = (self.ids, self.rows, self.targets)
        return (*given, *(a for a in (self.positions, self.reference) if a is not None))


def one_each(examples: Sequence[Example]) -> Rows:
    """A row for each example."""
    return _rows([[e] for e in examples], max(len(e.tokens) for e in examples), is_packed=False)


def packed(examples: Sequence[Example], length: int) -> Rows:
    """Rows of up to `length` tokens, each with as many examples as fit: the longest first, into the first row with room.

    No example may be longer."""
    groups: list[list[Example]] = []
    room: list[int] = []
    for example in sorted(examples, key=lambda e: -len(e.tokens)):
        size = len(example.tokens) - 1
        at = next((i for i, left in enumerate(room) if left >= size), len(room))
        if at == len(room):
            groups.append([])
            room.append(length - 1)
        groups[at].append(example)
        room[at] -= size
    return _rows(groups, max(length - left for left in room), is_packed=True)


def _rows(groups: Sequence[Sequence[Example]], most: int, *, is_packed: bool) -> Rows:
    """A row for each group; `most` is the greatest number of tokens of a group, where the last of each example but one is only
    a target."""
    length = -(-(most - 1) // _MULTIPLE) * _MULTIPLE
    width = max(sum(sum(e.learned[1:]) for e in group) for group in groups)
    shape = len(groups), length
    ids, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    rows, counts = np.zeros((len(groups), width), np.int32), np.zeros(len(groups), np.int64)
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
        positions[i, at:] = np.arange(length - at)
        counts[i] = at
    return Rows(ids, rows, targets, counts, positions if is_packed else None)
