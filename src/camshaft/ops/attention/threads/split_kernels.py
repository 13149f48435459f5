"""The kernel of attention for few tokens on GPUs: a split of one token's keys per workgroup. merge.py adds the splits.

Keys are scored in tiles of 64. Thread (slice, key) multiplies some columns of q and of one key, so that 16 neighbouring threads
read one line of a block of keys; slices are added through workgroup memory. Thread (run, column) then adds up one column of the
values of a run of keys, so that neighbouring threads read neighbouring columns; runs are added likewise. A tile takes four
barriers, a program one more. The order of every sum follows from shapes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from camshaft.dtypes import f32, i32, i64
from camshaft.lang import Array, Tracer, Value, Variable, kernel, power_of_two
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.attention.paged import LOG2_E, LOWEST, Arguments, Heads, arguments_of
from camshaft.ops.attention.threads.merge import pairwise_sum, power_up_to
from camshaft.ops.attention.tiled_steps import divisors

TILE = 64  # keys that are scored at once
AHEAD = 32  # loads of keys, and of values, that a thread starts before it waits
ABREAST = 4  # columns or keys for which the heads' chains of sums are interleaved: a load of 16 bytes for each head


@dataclass(frozen=True)
class Shape(Heads):
    """The sizes of one program: its keys, a multiple of TILE, its threads, and how many q heads of a group it takes."""

    keys: int
    threads: int
    members: int

    @property
    def parts(self) -> int:
        """Programs that share a group. The last one starts early enough to have all its members, and does not store the
        first again."""
        return -(-self.group // self.members)

    @property
    def slices(self) -> int:
        """Threads that share the columns of a key."""
        return self.threads // TILE

    @property
    def depth(self) -> int:
        """Columns of a slice."""
        return self.head_dim // self.slices

    @property
    def rows(self) -> int:
        """The members, rounded up so that each slice weighs the scores of equally many."""
        return -(-self.members // self.slices) * self.slices

    @property
    def runs(self) -> int:
        """Runs of whole blocks of keys; each takes a thread per column."""
        return power_up_to(min(TILE // BLOCK_TOKENS, self.threads // self.head_dim))

    @property
    def run(self) -> int:
        """Keys of a run."""
        return TILE // self.runs

    @property
    def scratch_nbytes(self) -> int:
        """The bytes of workgroup memory."""
        return 4 * self.rows * (self.head_dim + self.threads + 2 * TILE + self.runs + 1)


@kernel
def tiles_of_keys_per_program(k: Tracer, *arguments: Any, scale: float, **sizes: int) -> None:
    # over keys base .. base + n: s = scale log2(e) q K, m = max s, p = 2^(s - m); partial = (p V, m, sum p)
    given, shape = arguments_of(arguments), Shape(**sizes)
    token, base = k.program(0), k.program(2) * shape.keys
    last = given.positions[token].to(i64)
    work = Work(k, shape, given, scale)
    with k.when((base <= last) & (work.slot >= 0)):  # the slot's load, too, starts before the branch
        for first in k.range(base, k.minimum(last + 1, base + shape.keys), TILE):
            work.tile(first, k.minimum(last + 1 - first, TILE), first == base)
        work.finish()


class Work:
    """One program's workgroup memory, the running sums of its threads, and the steps on a tile of keys."""

    def __init__(self, k: Tracer, shape: Shape, given: Arguments, scale: float) -> None:
        self.k, self.shape, self.given = k, shape, given
        token, self.head, width = k.program(0), k.program(1) // shape.parts, shape.threads // shape.runs
        self.key, self.slice = k.lane() % TILE, k.lane() // TILE
        self.column, self.run = k.lane() % width, k.lane() // width
        wanted = k.program(1) % shape.parts * shape.members
        start = k.minimum(wanted, shape.group - shape.members)
        self.first_head, self.skipped = self.head * shape.group + start, wanted - start
        self.slot, n = given.slots[token].to(i64), shape.members * shape.head_dim
        places = [k.minimum(k.lane() + i, n - 1) for i in range(0, n, shape.threads)]
        first = self.first_head * shape.head_dim
        self.loaded = [k.gather(given.q, token, first + i) * (scale * LOG2_E) for i in places]
        self.query = k.scratch(f32, len(places) * shape.threads)
        self.parts = k.scratch(f32, shape.rows, shape.threads)  # of scores by slice, in the end of totals by run
        self.scores, self.powers = (k.scratch(f32, shape.rows, TILE) for _ in range(2))
        self.shrinks, self.sums = k.scratch(f32, shape.rows), k.scratch(f32, shape.rows, shape.runs)
        self.own_rows = [self.slice + r for r in range(0, shape.rows, shape.slices)]
        self.peaks = [k.var(LOWEST) for _ in self.own_rows]
        self.totals, self.weights = ([k.var(0.0) for _ in range(shape.members)] for _ in range(2))

    def tile(self, first: Value, count: Value, is_first: Value) -> None:
        """Adds `count` keys from position `first` on, at most TILE. All loads start before the first result is used, if a thread
        has few enough."""
        k, blocks = self.k, range(self.shape.run // BLOCK_TOKENS)
        few = len(blocks) * BLOCK_TOKENS <= AHEAD
        position = first + k.minimum(self.key, count - 1)  # keys past the last repeat it, and are masked later
        of_keys, of_values = self.block(position), [self.value_block(first, count, b) for b in blocks] if few else []
        step = max(n for n in divisors(self.shape.depth) if n <= AHEAD)
        keys = self.keys(of_keys, position, k.const(0, i64), step)
        values = [self.values(block) for block in of_values]
        with k.when(is_first):
            for i, x in enumerate(self.loaded):
                self.query[k.lane() + i * self.shape.threads] = x
        k.barrier()
        totals = [k.var(0.0) for _ in range(self.shape.members)]
        self.multiply(totals, 0, keys)
        for d in k.range(step, self.shape.depth, step) if step < self.shape.depth else ():
            self.multiply(totals, d, self.keys(of_keys, position, d, step))
        self.weigh(totals, count)
        for b, loaded in enumerate(values):
            self.mix(b, loaded, count)
        for block in () if few else k.range(len(blocks)):
            self.mix(block, self.values(self.value_block(first, count, block)), count)

    def block(self, position: Value) -> Value:
        """Returns the cache's block of a position."""
        return self.k.gather(self.given.table, self.slot, position // BLOCK_TOKENS).to(i64)

    def keys(self, block: Value, position: Value, d: Value, n: int) -> list[Value]:
        """Loads n columns from column d of this thread's slice on, of its key."""
        column, place, cached = self.slice * self.shape.depth + d, position % BLOCK_TOKENS, self.given.cache.keys
        return [self.k.gather(cached, block, self.head, column + i, place) for i in range(n)]

    def multiply(self, totals: list[Variable], d: Value | int, keys: list[Value]) -> None:
        """totals[g] += query[g] . key over some columns, from column d of this thread's slice on."""
        k, shape, start = self.k, self.shape, self.slice * self.shape.depth + d
        for i in range(0, len(keys), ABREAST):
            for g, total in enumerate(totals):
                for j, key in enumerate(keys[i : i + ABREAST], i):
                    total.set(k.fma(k.gather(self.query, start + (g * shape.head_dim + j)), key, total.value))

    def weigh(self, totals: list[Variable], count: Value) -> None:
        """powers[row, key] = 2^(score - largest so far). Multiplies the running sums by 2^(largest before - largest)."""
        k, shape, found = self.k, self.shape, []
        for g, total in enumerate(totals):
            self.parts[g, k.lane()] = total.value
        k.barrier()
        for row in self.own_rows:
            score = pairwise_sum([k.gather(self.parts, row, self.key + s * TILE) for s in range(shape.slices)])
            found.append(k.select(self.key < count, score, LOWEST))
            k.scatter(self.scores, found[-1], row, self.key)
        k.barrier()
        for row, score, peak in zip(self.own_rows, found, self.peaks, strict=True):
            before, after = peak.value, k.maximum(peak.value, _greatest(k, self.scores, row))
            k.scatter(self.powers, power_of_two(k, score - after), row, self.key)
            with k.when(self.key == 0):
                k.scatter(self.shrinks, power_of_two(k, before - after), row)
            peak.set(after)
        k.barrier()
        for g, sums in enumerate(zip(self.totals, self.weights, strict=True)):
            for each in sums:
                each.set(each.value * self.shrinks[g])

    def value_block(self, first: Value, count: Value, b: Value | int) -> Value:
        """Returns the cache's block number b of this thread's run; after the last key's, that one."""
        place = self.run * self.shape.run + b * BLOCK_TOKENS
        return self.block(first + self.k.minimum(place, count - 1))

    def values(self, block: Value) -> list[Value]:
        """Loads this thread's column of a block."""
        k, column = self.k, self.k.minimum(self.column, self.shape.head_dim - 1)
        return [k.gather(self.given.cache.values, block, self.head, j, column) for j in range(BLOCK_TOKENS)]

    def mix(self, b: Value | int, values: list[Value], count: Value) -> None:
        """total[g] += sum over the keys of a block of powers[g, key] V[key]; weight[g] likewise with 1 for V."""
        k, start = self.k, self.run * self.shape.run + b * BLOCK_TOKENS
        seen = (count - start).to(i32)  # unused rows of the cache may be NaN
        masked = [k.select(seen > j, value, 0.0) for j, value in enumerate(values)]
        for i in range(0, BLOCK_TOKENS, ABREAST):
            for g, (total, weight) in enumerate(zip(self.totals, self.weights, strict=True)):
                for j in range(i, i + ABREAST):
                    power = k.gather(self.powers, g, start + j)
                    total.set(k.fma(power, masked[j], total.value))
                    weight.set(weight.value + power)

    def finish(self) -> None:
        """Adds the runs and stores the results that the merge reads."""
        k, shape, token, split_index = self.k, self.shape, self.k.program(0), self.k.program(2)
        partial, *_ = self.given.rest
        for g, (total, weight) in enumerate(zip(self.totals, self.weights, strict=True)):
            self.parts[g, k.lane()] = total.value
            with k.when(self.column == 0):
                k.scatter(self.sums, weight.value, g, self.run)
        for row, peak in zip(self.own_rows, self.peaks, strict=True):
            with k.when((self.key == 0) & self.is_stored(row)):
                k.scatter(partial, peak.value, token, self.first_head + row, split_index, shape.head_dim)
        k.barrier()
        starts = range(0, shape.threads, shape.threads // shape.runs)
        for row in (self.run + r for r in range(0, shape.members, shape.runs)):
            with k.when(self.is_stored(row) & (self.column < shape.head_dim)):
                whole = pairwise_sum([k.gather(self.parts, row, self.column + start) for start in starts])
                k.scatter(partial, whole, token, self.first_head + row, split_index, self.column)
            with k.when(self.is_stored(row) & (self.column == 0)):
                weights = pairwise_sum([k.gather(self.sums, row, i) for i in range(shape.runs)])
                k.scatter(partial, weights, token, self.first_head + row, split_index, shape.head_dim + 1)

    def is_stored(self, row: Value) -> Value:
        """Returns whether a row is a q head of this program and of no earlier one."""
        return (row < self.shape.members) & (row >= self.skipped)


def _greatest(k: Tracer, scores: Array, row: Value) -> Value:
    """Returns the largest of a row of scores."""
    found = [k.gather(scores, row, j) for j in range(TILE)]
    while len(found) > 1:
        found = [k.maximum(a, b) for a, b in zip(found[::2], found[1::2], strict=True)]
    return found[0]
