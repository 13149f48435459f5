"""A sorting network over rows of up to MOST elements, as many at once as a vector has lanes: each lane sorts its own.

Each element and its index are one integer, so the order is stable and all integers differ. They are in scratch, a vector for
each place of a row. Blocks of BLOCK places are sorted in registers, by Batcher's odd-even merge sort. Then neighbours are merged
as in a bitonic sort: place i of one with place i from the end of the other, and then halves, quarters and so on; the lesser
integer always gets the lower place, so that a row may end anywhere. Where only the first few are wanted, blocks of that many are
merged in pairs, of which the lesser half stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from camshaft.dtypes import DType, f32, f64, i32, i64, u32, u64
from camshaft.lang import Array, Tracer, ir
from camshaft.lang.tracing.tracer import Variable
from camshaft.ops.sort.keys import Keys

# Elements of a row: the scratch of 64 bytes each is in the stack of a thread. Places of a row that are sorted in registers.
MOST, BLOCK = 4096, 16
_BLOCK_SHIFT = BLOCK.bit_length() - 1


@dataclass(frozen=True)
class Words:
    """The integers that are sorted: keys, and if `indexed` the elements' indexes in the lower bits."""

    keys: Keys
    indexed: bool

    @property
    def dtype(self) -> DType:
        """i64 for words of 64 bits: AVX2 and NEON compare them with signs."""
        return i64 if self.keys.dtype.bits << self.indexed > 32 else u32

    @property
    def _index_bits(self) -> int:
        return 16 if self.dtype == u32 else 32

    @property
    def most_indexed(self) -> int:
        """Elements whose indexes fit beside their keys: 2^16 of 8 or 16 bits, 2^32 of 32 bits, none of 64 bits."""
        return 0 if self.keys.dtype.bits > 32 else 1 << self._index_bits

    @property
    def greatest(self) -> int:
        """A word that is not below any."""
        return (1 << 63) - 1 if self.dtype == i64 else (1 << 32) - 1

    @property
    def least(self) -> int:
        """A word that is not above any."""
        return -(1 << 63) if self.dtype == i64 else 0

    def word(self, k: Tracer, bits: ir.Value, index: ir.Value) -> ir.Value:
        """The word of an element by its bits and its index."""
        key = self.keys.key(k, bits)
        if self.dtype == u32:
            return (key << 16) | index.to(u32) if self.indexed else key
        key = (key.to(u64) << 32) | index.to(u64) if self.indexed else key
        return k.bitcast(key ^ (1 << 63), i64)

    def index(self, word: ir.Value) -> ir.Value:
        """The element's index, as i32."""
        return (word & ((1 << self._index_bits) - 1)).to(i32)

    def bits(self, k: Tracer, word: ir.Value) -> ir.Value:
        """The element's bits, of a word without index."""
        return self.keys.bits(k, word if self.dtype == u32 else k.bitcast(word, u64) ^ (1 << 63))


def odd_even_merge_sort(n: int) -> Iterator[tuple[int, int]]:
    """The pairs of places that Batcher's network for n, a power of two, puts in order."""
    p = 1
    while p < n:
        distance = p
        while distance:
            for start in range(distance % p, n - distance, 2 * distance):
                for i in range(start, min(start + distance, n - distance)):
                    if i // (2 * p) == (i + distance) // (2 * p):
                        yield i, i + distance
            distance //= 2
        p *= 2


def halves(n: int) -> Iterator[tuple[int, int]]:
    """The pairs of places that order n places whose halves' i-th elements are to be compared first."""
    distance = n // 2
    while distance:
        yield from ((i, i + distance) for i in range(n) if not i & distance)
        distance //= 2


def ordered(k: Tracer, a: ir.Value, b: ir.Value, width: int) -> tuple[ir.Value, ir.Value]:
    """The lesser and the greater words, of `width` lanes. A core has one unit for minima of 512 bits, two for logic of them."""
    low = k.minimum(a, b)
    return low, (a ^ b ^ low if width * a.dtype.bits >= 512 else k.maximum(a, b))


def exchanged(k: Tracer, a: ir.Value, b: ir.Value, step: int) -> tuple[ir.Value, ir.Value]:
    """Exchanges the upper lanes of a, those with the bit `step`, with the lower ones of b."""
    lower, other = (k.lane() & step) < 1, k.lane() ^ step
    return k.select(lower, a, k.shuffle(b, other)), k.select(lower, k.shuffle(a, other), b)


def transposed(k: Tracer, vectors: Sequence[ir.Value], size: int, apart: bool = False) -> list[ir.Value]:
    """Of every `size` vectors, a power of two: lane i of vector j to lane j of vector i, in blocks of as many lanes. `apart`:
    LLVM does not merge shuffles of two exchanges into more."""
    found = list(vectors)
    for step in (1 << i for i in range(size.bit_length() - 1)):
        for at in (i for i in range(len(found)) if not i & step):
            pair = exchanged(k, found[at], found[at + step], step)
            found[at], found[at + step] = (_kept(k, each) for each in pair) if apart else pair
    return found


def _kept(k: Tracer, words: ir.Value) -> ir.Value:
    """These words, as an operation's result that no other operation is merged with."""
    floats = f32 if words.dtype.bits == 32 else f64
    return k.bitcast(k.rounded(k.bitcast(words, floats)), words.dtype)


@dataclass(frozen=True)
class Network:
    """Sorts the first `n` places, a multiple of BLOCK, of every lane's column of `words`."""

    k: Tracer
    words: Array
    n: Variable

    def sort(self, levels: ir.Operand, times: ir.Operand) -> None:
        """Sorts blocks of BLOCK << levels places; then, so many times, merges them in pairs of which the lesser half stays."""
        k, shift = self.k, self.k.var(_BLOCK_SHIFT, i64)
        self._order_blocks(tuple(odd_even_merge_sort(BLOCK)))
        for level in k.range(levels + times):
            top, size = k.var(shift.value - 1, i64), shift.value
            with k.when(level >= levels):
                self._lesser_halves(size)
            with k.when(level < levels):
                more = k.select((size > _BLOCK_SHIFT) & ((size & 1) < 1), k.const(1, i64), 0)
                self._mirrored_and_halves(size, more)
                top.set(size - 2 - more)
                shift.set(size + 1)
            self._clean(top.value)

    def _lesser_halves(self, shift: ir.Value) -> None:
        """Leaves the lesser half of every two blocks of 1 << shift places, one after the other."""
        k, n, size = self.k, self.n.value, self.k.const(1, i64) << shift
        for j in k.range((n + (2 * size - 1)) >> (shift + 1)):
            first = j << (shift + 1)
            for i in k.range(k.minimum(size, n - first)):
                other = first + (2 * size - 1) - i
                least = k.var(self._get(first + i), self.words.dtype)
                with k.when(other < n):
                    least.set(k.minimum(least.value, self._get(other)))
                self._set((j << shift) + i, least.value)
        self.n.set(((n >> (shift + 1)) << shift) + k.minimum(n & (2 * size - 1), size))

    # --- passes over all places ------------------------------------------------------------------------------------------
    def _clean(self, top: ir.Value) -> None:
        """Orders the pairs at the distances 1 << top, 1 << (top - 1), ..., 1: two distances at a time, in blocks four or more."""
        k, distance = self.k, self.k.var(top, i64)
        levels = top - (_BLOCK_SHIFT - 1)
        for i in k.range((levels + 1) >> 1):
            single = k.select(i < (levels & 1), k.const(1, i64), 0)
            self._two_halves(distance.value, single)
            distance.set(distance.value - 2 + single)
        self._order_blocks(tuple(halves(BLOCK)))

    def _order_blocks(self, pairs: tuple[tuple[int, int], ...]) -> None:
        """Orders these pairs of places in every block, in registers."""
        for j in self.k.range(self.n.value >> _BLOCK_SHIFT):
            places = [j * BLOCK + i for i in range(BLOCK)]
            values = [self._get(place) for place in places]
            for a, b in pairs:
                values[a], values[b] = self._ordered(values[a], values[b])
            for place, value in zip(places, values, strict=True):
                self._set(place, value)

    def _mirrored_and_halves(self, shift: ir.Value, more: ir.Value) -> None:
        """Orders place i with place i from the end, of all blocks of 2 << shift places, then the pairs at a quarter of them, and
        if `more` is 1 those at an eighth: so that an even number of distances is left for `_clean`."""
        k, size, half = self.k, self.k.const(2, i64) << shift, self.k.const(1, i64) << (shift - 1)
        whole = self.n.value >> (shift + 1)
        for n, is_so in ((4, more < 1), (8, more > 0)):
            with k.when(is_so):
                part = half >> (n // 8)
                for j in k.range(whole):
                    first = j << (shift + 1)
                    for i in k.range(part):
                        low = [first + i + part * place for place in range(n // 2)]
                        self._order_all(*low, *(first * 2 + (size - 1) - place for place in low[::-1]), mirrored=True)
        end = whole << (shift + 1)
        for i in k.range(size - (self.n.value - end), size >> 1):  # the last block may end early
            self._order(end + i, end + size - 1 - i)
        for i in k.range(more + 1):
            self._halves(end, shift - 1 - i)

    def _two_halves(self, shift: ir.Value, single: ir.Value) -> None:
        """Orders the pairs at the distance 1 << shift, then those at half of it unless `single` is 1."""
        k, half = self.k, self.k.const(1, i64) << (shift - 1)
        whole = k.select(single > 0, 0, self.n.value >> (shift + 1))
        for j in k.range(whole):
            for i in k.range(half):
                low = (j << (shift + 1)) + i
                self._order_all(*(low + place * half for place in range(4)), mirrored=False)
        end = whole << (shift + 1)
        for i in k.range(2 - single):
            self._halves(end, shift - i)

    def _halves(self, first: ir.Value, shift: ir.Value) -> None:
        """Orders the pairs at the distance 1 << shift, from place `first` on."""
        k, distance, n = self.k, self.k.const(1, i64) << shift, self.n.value
        whole = (n - first) >> (shift + 1)
        for j in k.range(whole):
            for i in k.range(distance):
                low = first + (j << (shift + 1)) + i
                self._order(low, low + distance)
        end = first + (whole << (shift + 1))
        for i in k.range(n - end - distance):
            self._order(end + i, end + distance + i)

    # --- a few places ----------------------------------------------------------------------------------------------------
    def _get(self, place: ir.Value) -> ir.Value:
        return self.words[place, self.k.lane()]

    def _set(self, place: ir.Value, value: ir.Value) -> None:
        self.words[place, self.k.lane()] = value

    def _ordered(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        return ordered(self.k, a, b, self.words.shape[1])

    def _order(self, low: ir.Value, high: ir.Value) -> None:
        a, b = self._ordered(self._get(low), self._get(high))
        self._set(low, a)
        self._set(high, b)

    def _order_all(self, *places: ir.Value, mirrored: bool) -> None:
        """Orders pairs as `halves` does; if `mirrored`, first each place with that as far from the end."""
        n = len(places)
        pairs = [*halves(n)]
        if mirrored:
            pairs[: n // 2] = [(i, n - 1 - i) for i in range(n // 2)]
        values = [self._get(place) for place in places]
        for a, b in pairs:
            values[a], values[b] = self._ordered(values[a], values[b])
        for place, value in zip(places, values, strict=True):
            self._set(place, value)
