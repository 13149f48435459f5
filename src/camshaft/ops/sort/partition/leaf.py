"""Sorts a few vectors of words in registers.

Each lane's column of words is sorted by Batcher's network. Then columns are merged in pairs, as in a bitonic sort: word i of one
with word i from the end of the other, then halves, quarters and so on. Words of one lane are compared without a shuffle. In the
end the columns are transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from camshaft.lang import Tracer, ir
from camshaft.ops.sort.network import halves, odd_even_merge_sort

Vectors = list[ir.Value]


@dataclass(frozen=True)
class Leaf:
    """`rows` vectors of `width` lanes, both powers of two."""

    k: Tracer
    rows: int
    width: int

    def sorted(self, words: Sequence[ir.Value]) -> Vectors:
        """The same words, in order through the vectors."""
        found = self._pairs(list(words), tuple(odd_even_merge_sort(self.rows)))
        lanes = 1
        while lanes < self.width:
            found = self._mirrored(found, lanes)
            distance = lanes // 2
            while distance:
                found = [self._across(word, distance) for word in found]
                distance //= 2
            found = self._pairs(found, tuple(halves(self.rows)))
            lanes *= 2
        return self._transposed(found)

    # --- comparisons -----------------------------------------------------------------------------------------------------
    def _pairs(self, words: Vectors, pairs: tuple[tuple[int, int], ...]) -> Vectors:
        k = self.k
        for a, b in pairs:
            words[a], words[b] = k.minimum(words[a], words[b]), k.maximum(words[a], words[b])
        return words

    def _mirrored(self, words: Vectors, lanes: int) -> Vectors:
        """Puts column i of `lanes` lanes and its counterpart from the end of the next ones in order."""
        k, found = self.k, list(words)
        lower, other = self._lower(lanes), self._other(2 * lanes - 1)
        for row in range(self.rows // 2):
            end = self.rows - 1 - row
            there = k.shuffle(words[end], other)
            low, high = k.minimum(words[row], there), k.maximum(words[row], there)
            found[row] = k.select(lower, low, high)
            found[end] = k.shuffle(k.select(lower, high, low), other)
        return found

    def _across(self, word: ir.Value, distance: int) -> ir.Value:
        k = self.k
        there = k.shuffle(word, self._other(distance))
        return k.select(self._lower(distance), k.minimum(word, there), k.maximum(word, there))

    # --- the order of lanes ----------------------------------------------------------------------------------------------
    def _bits(self, bits: int) -> int:
        """These bits of a column's number as bits of its lane's.

        A transposition of fewer rows than lanes exchanges the lower bits of lanes and those of rows, so that the upper bits of
        lanes are the lowest of columns.
        """
        low, high = (n.bit_length() - 1 for n in (min(self.rows, self.width), self.width))
        return (bits >> (high - low)) | ((bits & ((1 << (high - low)) - 1)) << low)

    def _other(self, bits: int) -> ir.Value:
        return self.k.lane() ^ self._bits(bits)

    def _lower(self, bit: int) -> ir.Value:
        return (self.k.lane() & self._bits(bit)) < 1

    def _transposed(self, words: Vectors) -> Vectors:
        """Blocks of as many rows as lanes: lane i of row j to lane j of row i. Then the blocks of each lane follow each other."""
        k, lane, size = self.k, self.k.lane(), min(self.rows, self.width)
        step = 1
        while step < size:
            low, other = (lane & step) < 1, lane ^ step
            for at in (i for i in range(self.rows) if not i & step):
                a, b = words[at], words[at + step]
                words[at] = k.select(low, a, k.shuffle(b, other))
                words[at + step] = k.select(low, k.shuffle(a, other), b)
            step *= 2
        blocks = self.rows // size
        return [words[block * size + row] for row in range(size) for block in range(blocks)]
