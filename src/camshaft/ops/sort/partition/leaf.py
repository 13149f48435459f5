"""Sorts a few vectors of words in registers.

Each lane's column of words is sorted by Batcher's network. Then columns are merged in pairs, as in a bitonic sort: word i of one
with word i from the end of the other, then halves, quarters and so on. Words of one lane are compared without a shuffle. In the
end the columns are transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from camshaft.lang import Tracer, ir
from camshaft.ops.sort.network import exchanged, halves, odd_even_merge_sort, ordered, transposed

Vectors = list[ir.Value]


@dataclass(frozen=True)
class Leaf:
    """`rows` vectors of `width` lanes, both powers of two."""

    k: Tracer
    rows: int
    width: int

    def sorted(self, words: Sequence[ir.Value]) -> Vectors:
        """The same words, in order through the vectors."""
        return self.transposed(self.in_columns(words))

    def in_columns(self, words: Sequence[ir.Value]) -> Vectors:
        """The same words, in order through the columns."""
        found = self._pairs(list(words), tuple(odd_even_merge_sort(self.rows)))
        lanes = 1
        while lanes < self.width:
            found = self._pairs(self._across(self._mirrored(found, lanes), lanes // 2), tuple(halves(self.rows)))
            lanes *= 2
        return found

    def halved(self, first: Sequence[ir.Value], second: Sequence[ir.Value]) -> tuple[Vectors, Vectors]:
        """The lower and the upper half of the words of two leaves that are in order through the columns, for `merged`."""
        other = self._other(self.width - 1)
        pairs = [self._ordered(a, self.k.shuffle(b, other)) for a, b in zip(first, reversed(second), strict=True)]
        return [low for low, _ in pairs], [high for _, high in pairs]

    def merged(self, words: Sequence[ir.Value]) -> Vectors:
        """The words of a half that `halved` gave, in order through the vectors."""
        return self.transposed(self._pairs(self._across(list(words), self.width // 2), tuple(halves(self.rows))))

    # --- comparisons -----------------------------------------------------------------------------------------------------
    def _ordered(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        return ordered(self.k, a, b, self.width)

    def _pairs(self, words: Vectors, pairs: tuple[tuple[int, int], ...]) -> Vectors:
        for a, b in pairs:
            words[a], words[b] = self._ordered(words[a], words[b])
        return words

    def _mirrored(self, words: Vectors, lanes: int) -> Vectors:
        """Puts column i of `lanes` lanes and its counterpart from the end of the next ones in order."""
        k, found = self.k, list(words)
        lower, other = self._lower(self._bits(lanes)), self._other(self._bits(2 * lanes - 1))
        for row in range(self.rows // 2):
            end = self.rows - 1 - row
            low, high = self._ordered(words[row], k.shuffle(words[end], other))
            found[row] = k.select(lower, low, high)
            found[end] = k.shuffle(k.select(lower, high, low), other)
        return found

    def _across(self, words: Vectors, distance: int) -> Vectors:
        """Puts columns at this distance in order, then at half of it, down to 1: those of two vectors at once, whose words to be
        compared are brought to the same lanes."""
        steps = []
        while distance:
            steps.append(self._bits(distance))
            distance //= 2
        for row in range(0, self.rows if steps else 0, 2):
            low, high = words[row : row + 2]
            for step in steps:
                low, high = self._ordered(*exchanged(self.k, low, high, step))
            for step in reversed(steps):
                low, high = exchanged(self.k, low, high, step)
            words[row : row + 2] = low, high
        return words

    # --- the order of lanes ----------------------------------------------------------------------------------------------
    def _bits(self, bits: int) -> int:
        """These bits of a column's number as bits of its lane's.

        A transposition of fewer rows than lanes exchanges the lower bits of lanes and those of rows, so that the upper bits of
        lanes are the lowest of columns.
        """
        low, high = (n.bit_length() - 1 for n in (min(self.rows, self.width), self.width))
        return (bits >> (high - low)) | ((bits & ((1 << (high - low)) - 1)) << low)

    def _other(self, bits: int) -> ir.Value:
        return self.k.lane() ^ bits

    def _lower(self, bit: int) -> ir.Value:
        return (self.k.lane() & bit) < 1

    def transposed(self, words: Vectors) -> Vectors:
        """Blocks of as many rows as lanes: lane i of row j to lane j of row i. Then the blocks of each lane follow each other."""
        size = min(self.rows, self.width)
        words = transposed(self.k, words, size)
        blocks = self.rows // size
        return [words[block * size + row] for row in range(size) for block in range(blocks)]
