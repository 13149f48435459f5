"""Batches of a JSONL file's examples: read from the file step by step, or held in memory.

The order of rows follows from a seed, as in train.Batches, so a resumed run reads what one that never stopped would.
"""

from __future__ import annotations

import functools
import os
from array import array
from collections.abc import Callable
from typing import Any, Protocol
from zlib import crc32

import numpy as np

from camshaft.errors import FormatError, reason_of
from camshaft.train.data import Batches
from camshaft.train.tuning.data.examples import Example, lines_of
from camshaft.train.tuning.data.rows import layout_of

Array = np.ndarray[Any, Any]


class RowBatches(Protocol):
    """Batches of rows by step, as data of a train.Trainer, and what is known of them."""

    n_examples: int
    n_rows: int
    row_length: int
    n_tokens: int  # of all rows, without what fills them up
    per_row: int  # sequences of `row_length`

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""

    def __call__(self, n: int) -> tuple[Array, ...]:
        """The batch of the step after `n` finished ones."""

    def tokens(self, n: int) -> int:
        """The tokens of that batch."""

    def targets(self, n: int) -> int:
        """The tokens of that batch that are learned."""


class StreamedBatches:
    """Batches of `size` rows, read from the file when they are needed. Of each line its place, its sizes and a checksum are held.

    All lines are read once before: `parse` makes an example of a line's place and bytes, and raises for one that is not right.
    With a `length` examples are packed. Raises FormatError for a file that cannot be read, has no line, or changes."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        parse: Callable[[str, bytes], Example],
        length: int | None,
        size: int,
        seed: int,
    ) -> None:
        self._path, self._parse, self._size, self._seed = os.fspath(path), parse, size, seed
        self._numbers, self._starts, self._sizes, self._learned = (array(code) for code in "QQII")
        self._checksums, self.checksum = array("I"), 0
        self._scan()
        self._layout = layout_of(self._sizes, self._learned, length)
        self.n_examples, self.n_rows = len(self._starts), len(self._layout.groups)
        self.row_length, self.n_tokens = self._layout.length, sum(self._sizes) - len(self._sizes)
        self.per_row = 1

    def _scan(self) -> None:
        for number, start, line in lines_of(self._path):
            example = self._parse(f"{self._path}, line {number}", line)
            self._numbers.append(number)
            self._starts.append(start)
            self._sizes.append(len(example.tokens))
            self._learned.append(sum(example.learned[1:]))
            self._checksums.append(crc32(line))
            self.checksum = crc32(line, self.checksum)

    @functools.cached_property
    def _batches(self) -> Batches:
        return Batches((np.arange(self.n_rows),), self._size, self._seed)

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return self._batches.steps_per_epoch

    def __call__(self, n: int) -> tuple[Array, ...]:
        """The batch of the step after `n` finished ones."""
        groups = self._groups(n)
        with self._opened() as file:
            found = [[self._example(file, i) for i in group] for group in groups]
        return self._layout.fill(found).arrays

    def tokens(self, n: int) -> int:
        """The tokens of that batch."""
        return sum(self._sizes[i] - 1 for group in self._groups(n) for i in group)

    def targets(self, n: int) -> int:
        """The tokens of that batch that are learned."""
        return sum(self._learned[i] for group in self._groups(n) for i in group)

    def __str__(self) -> str:
        way = "packed into" if self._layout.is_packed else "in"
        rows = f"{self.n_examples} examples {way} {self.n_rows} rows of {self.row_length}"
        return f"{self._size} of {rows}, seed {self._seed}, CRC-32 {self.checksum:08x}"

    def _groups(self, n: int) -> list[Any]:
        return [self._layout.groups[row] for row in self._batches.chosen(n)]

    def _opened(self) -> Any:
        try:
            return open(self._path, "rb")
        except OSError as error:
            raise FormatError(f"{self._path}: cannot be read: {reason_of(error)}") from None

    def _example(self, file: Any, i: int) -> Example:
        where = f"{self._path}, line {self._numbers[i]}"
        try:
            file.seek(self._starts[i])
            line = file.readline()
        except OSError as error:
            raise FormatError(f"{where}: cannot be read: {reason_of(error)}") from None
        if crc32(line) != self._checksums[i]:
            raise FormatError(f"{where}: is another one than before the first step; wanted a file that stays as it is")
        return self._parse(where, line)


class HeldBatches:
    """Batches of `size` rows of `arrays`, the first of which are ids, in memory. Rows have `counts` tokens, of which `learned`
    are."""

    def __init__(self, arrays: tuple[Array, ...], counts: Array, learned: Array, size: int, seed: int) -> None:
        self._counts, self._learned, self._arrays, self._order = counts, learned, arrays, (size, seed)
        self.n_examples = self.n_rows = len(counts)
        self.row_length, self.n_tokens = arrays[0].shape[-1], int(counts.sum())
        self.per_row = arrays[0][0].size // self.row_length

    @functools.cached_property
    def _batches(self) -> Batches:
        return Batches(self._arrays, *self._order)

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return self._batches.steps_per_epoch

    def __call__(self, n: int) -> tuple[Array, ...]:
        """The batch of the step after `n` finished ones."""
        return self._batches(n)

    def tokens(self, n: int) -> int:
        """The tokens of that batch."""
        return int(self._counts[self._batches.chosen(n)].sum())

    def targets(self, n: int) -> int:
        """The tokens of that batch that are learned."""
        return int(self._learned[self._batches.chosen(n)].sum())

    def __str__(self) -> str:
        return str(self._batches)
