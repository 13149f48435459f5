"""The variant of attention for few tokens on GPUs: a workgroup's threads share a split of a token's keys, then splits are merged.

Keys are scored in tiles of 64. Thread (slice, key) multiplies some columns of q and of one key, so that 16 neighbouring threads
read one line of a block of keys; slices are added through workgroup memory. Thread (run, column) then adds up one column of the
values of a run of keys, so that neighbouring threads read neighbouring columns; runs are added likewise. All q heads of a group
read keys and values once. The order of every sum follows from shapes alone, and each token is computed by itself.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from camshaft.dtypes import f32, i64
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, Value, kernel, power_of_two
from camshaft.ops import op as ops
from camshaft.ops.attention import split
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.attention.paged import LOG2_E, LOWEST, Arguments, Heads, arguments_of, is_quantized, reads
from camshaft.ops.attention.tiled_steps import divisors
from camshaft.ops.kernels.launch import has_threads, workgroup_nbytes
from camshaft.ops.matmul.tile import BACKENDS
from camshaft.ops.spec import TensorSpec, bound

TILE = 64  # keys that are scored at once
THREADS = 128, 256  # of a workgroup, for heads of up to 64 columns and for others
MOST_MEMBERS = 8  # q heads of a program: each takes an accumulator, and TILE scores per tile
AHEAD = 32  # loads of a thread before it waits
# Splits that a thread of the merge reads before it waits; with 4 threads for a column, 16 together: 1024 keys.
AT_ONCE = 4
# split_keys took 64 us a launch on an H200, with 9/3 heads of 64 and 250 keys: 12 workgroups of 16 threads, each with hundreds
# of loads in sequence. Here a thread waits for position, block number, and keys with values.
SPEEDUP = 16.0


@dataclass(frozen=True)
class Shape(Heads):
    """The sizes of one program: its keys, a multiple of TILE, and its threads. `kv_heads` counts a head of the cache `parts`
    times, where the q heads that share one are shared among programs."""

    keys: int
    threads: int
    parts: int

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
        """The q heads, rounded up so that each slice weighs the scores of equally many."""
        return -(-self.group // self.slices) * self.slices

    @property
    def runs(self) -> int:
        """Runs of whole blocks of keys, of which each takes a thread per column."""
        return powers_up_to(min(TILE // BLOCK_TOKENS, self.threads // self.head_dim))[-1]

    @property
    def run(self) -> int:
        """Keys of a run."""
        return TILE // self.runs

    @property
    def scratch_nbytes(self) -> int:
        """The bytes of workgroup memory."""
        return 4 * self.rows * (self.head_dim + self.threads + 2 * TILE + self.runs + 1)


def powers_up_to(n: int) -> list[int]:
    """Returns the powers of two up to n."""
    return [1 << i for i in range(n.bit_length())]


@kernel
def tiles_of_keys_per_program(k: Tracer, *arguments: Any, scale: float, **sizes: int) -> None:
    # over keys base .. base + n: s = scale log2(e) q K, m = max s, p = 2^(s - m); partial = p V, extremes = (m, sum p)
    given, shape = arguments_of(arguments), Shape(**sizes)
    token, first_head, base = k.program(0), k.program(1) * shape.group, k.program(2) * shape.keys
    last, slot = given.positions[token].to(i64), given.slots[token].to(i64)
    query = k.scratch(f32, shape.group * shape.head_dim)
    for i in k.lanes(shape.group * shape.head_dim):
        query[i] = given.q[token, first_head * shape.head_dim + i] * (scale * LOG2_E)
    k.barrier()
    with k.when(base <= last):
        work = Work(k, shape, given, query, slot, k.program(1) // shape.parts)
        for first in k.range(base, k.minimum(last + 1, base + shape.keys), TILE):
            work.tile(first, k.minimum(last + 1 - first, TILE))
        work.finish(token, first_head, k.program(2))


class Work:
    """One program's workgroup memory, the running sums of its threads, and the steps on a tile of keys."""

    def __init__(self, k: Tracer, shape: Shape, given: Arguments, query: Array, slot: Value, head: Value) -> None:
        self.k, self.shape, self.given, self.query, self.slot, self.head = k, shape, given, query, slot, head
        self.key, self.slice = k.lane() % TILE, k.lane() // TILE
        width = shape.threads // shape.runs
        self.column, self.run = k.lane() % width, k.lane() // width
        self.starts = [i * width for i in range(shape.runs)]  # the threads of a column
        self.parts = k.scratch(f32, shape.rows, shape.threads)  # of scores by slice, in the end of totals by run
        self.scores, self.powers = (k.scratch(f32, shape.rows, TILE) for _ in range(2))
        self.shrinks, self.sums = k.scratch(f32, shape.rows), k.scratch(f32, shape.rows, shape.runs)
        self.own_rows = [self.slice + r for r in range(0, shape.rows, shape.slices)]
        self.peaks = [k.var(LOWEST) for _ in self.own_rows]
        self.totals, self.weights = ([k.var(0.0) for _ in range(shape.group)] for _ in range(2))

    def tile(self, first: Value, count: Value) -> None:
        """Adds `count` keys from position `first` on, at most TILE. Values are loaded before keys are scored, if registers
        suffice."""
        k, shape = self.k, self.shape
        blocks = range(shape.run // BLOCK_TOKENS)
        ahead = [self.values(first, count, b) for b in blocks] if shape.run <= AHEAD else []
        self.score(first, count)
        k.barrier()
        found = self.add_slices(count)
        k.barrier()
        self.weigh(found)
        k.barrier()
        for total, weight, shrink in zip(self.totals, self.weights, self._shrinks(), strict=True):
            total.set(total.value * shrink)
            weight.set(weight.value * shrink)
        for b, values in enumerate(ahead):
            self.mix(b, values, count)
        for block in k.range(len(ahead), len(blocks)) if not ahead else ():
            self.mix(block, self.values(first, count, block), count)

    def _shrinks(self) -> list[Value]:
        return [self.shrinks[g] for g in range(self.shape.group)]

    def block(self, position: Value) -> Value:
        """Returns the cache's block of a position."""
        return self.k.gather(self.given.table, self.slot, position // BLOCK_TOKENS).to(i64)

    def score(self, first: Value, count: Value) -> None:
        """parts[g, thread] = this slice of query[g] . K[key]. Keys past the last repeat it, and are masked later."""
        k, shape = self.k, self.shape
        position = first + k.minimum(self.key, count - 1)
        block, place, start = self.block(position), position % BLOCK_TOKENS, self.slice * shape.depth
        totals = [k.var(0.0) for _ in range(shape.group)]
        step = max(n for n in divisors(shape.depth) if n <= AHEAD)
        for d in k.range(0, shape.depth, step):
            keys = [k.gather(self.given.cache.keys, block, self.head, start + d + i, place) for i in range(step)]
            for g, total in enumerate(totals):
                for i, key in enumerate(keys):
                    query = k.gather(self.query, start + d + (g * shape.head_dim + i))
                    total.set(k.fma(query, key, total.value))
        for g, total in enumerate(totals):
            self.parts[g, k.lane()] = total.value

    def add_slices(self, count: Value) -> list[Value]:
        """Returns this thread's scores, of one key in each of its rows, and stores them for the other threads."""
        k, shape = self.k, self.shape
        found = []
        for row in self.own_rows:
            parts = [k.gather(self.parts, row, self.key + s * TILE) for s in range(shape.slices)]
            score = k.select(self.key < count, _sum(parts), LOWEST)
            k.scatter(self.scores, score, row, self.key)
            found.append(score)
        return found

    def weigh(self, found: list[Value]) -> None:
        """powers[row, key] = 2^(score - maximum so far); shrinks[row] = 2^(the last maximum - this one)."""
        k = self.k
        for row, score, peak in zip(self.own_rows, found, self.peaks, strict=True):
            greatest = [k.gather(self.scores, row, j) for j in range(TILE)]
            while len(greatest) > 1:
                half = len(greatest) // 2
                greatest = [k.maximum(a, b) for a, b in zip(greatest[:half], greatest[half:], strict=True)]
            before, after = peak.value, k.maximum(peak.value, greatest[0])
            k.scatter(self.powers, power_of_two(k, score - after), row, self.key)
            with k.when(self.key == 0):
                k.scatter(self.shrinks, power_of_two(k, before - after), row)
            peak.set(after)

    def values(self, first: Value, count: Value, b: Value | int) -> list[Value]:
        """Loads this thread's column of block b of its run. A block past the last key's is that block."""
        k = self.k
        place = k.minimum(self.run * self.shape.run + b * BLOCK_TOKENS, count - 1)
        block, column = self.block(first + place), k.minimum(self.column, self.shape.head_dim - 1)
        return [k.gather(self.given.cache.values, block, self.head, j, column) for j in range(BLOCK_TOKENS)]

    def mix(self, b: Value | int, values: list[Value], count: Value) -> None:
        """total[g] += sum over the keys of a block of powers[g, key] V[key]; weight[g] likewise with 1 for V."""
        k, start = self.k, self.run * self.shape.run + b * BLOCK_TOKENS
        for j, value in enumerate(values):
            key = start + j
            seen = k.select(key < count, value, 0.0)  # unused rows of the cache may be NaN
            for g, (total, weight) in enumerate(zip(self.totals, self.weights, strict=True)):
                power = k.gather(self.powers, g, key)
                total.set(k.fma(power, seen, total.value))
                weight.set(weight.value + power)

    def finish(self, token: Value, first_head: Value, split: Value) -> None:
        """Adds the runs and stores the results that the merge reads."""
        k, shape = self.k, self.shape
        partial, extremes, *_ = self.given.rest
        for g, (total, weight) in enumerate(zip(self.totals, self.weights, strict=True)):
            self.parts[g, k.lane()] = total.value
            with k.when(self.column == 0):
                k.scatter(self.sums, weight.value, g, self.run)
        for row, peak in zip(self.own_rows, self.peaks, strict=True):
            with k.when((self.key == 0) & (row < shape.group)):
                k.scatter(extremes, peak.value, token, first_head + row, split, 0)
        k.barrier()
        for r in range(0, shape.group, shape.runs):
            row = self.run + r
            with k.when((row < shape.group) & (self.column < shape.head_dim)):
                whole = _sum([k.gather(self.parts, row, self.column + start) for start in self.starts])
                k.scatter(partial, whole, token, first_head + row, split, self.column)
            with k.when((row < shape.group) & (self.column == 0)):
                weights = _sum([k.gather(self.sums, row, i) for i in range(shape.runs)])
                k.scatter(extremes, weights, token, first_head + row, split, 1)


def _sum(values: list[Value]) -> Value:
    """Returns the sum, pairwise; the number of values is a power of two."""
    while len(values) > 1:
        half = len(values) // 2
        values = [a + b for a, b in zip(values[:half], values[half:], strict=True)]
    return values[0]


@kernel
def merge_by_columns(
    k: Tracer, partial: Array, extremes: Array, positions: Array, out: Array, *, head_dim: int, keys: int, threads: int
) -> None:
    # out = sum_i 2^(m_i - M) partial_i / sum_i 2^(m_i - M) l_i, M = max m_i; thread (turn, column) adds splits turn, turn + n, ..
    token, head = k.program(0), k.program(1)
    n_splits = positions[token].to(i64) // keys + 1
    turns = powers_up_to(threads // head_dim)[-1]
    width = threads // turns
    column, turn = k.lane() % width, k.lane() // width
    stored = k.minimum(column, head_dim - 1)
    peak, weight, total = k.var(LOWEST), k.var(0.0), k.var(0.0)
    for first in k.range(0, n_splits, AT_ONCE * turns):
        found = []
        for i in range(AT_ONCE):
            number = first + turn + i * turns
            place = k.minimum(number, n_splits - 1)
            high, low = (k.gather(extremes, token, head, place, n) for n in range(2))
            found.append(
                (k.select(number < n_splits, high, LOWEST), low, k.gather(partial, token, head, place, stored))
            )
        before = peak.value
        for high, _, _ in found:
            peak.set(k.maximum(peak.value, high))
        shrink = power_of_two(k, before - peak.value)
        weight.set(weight.value * shrink)
        total.set(total.value * shrink)
        for high, low, value in found:
            share = power_of_two(k, high - peak.value)
            weight.set(k.fma(share, low, weight.value))
            total.set(k.fma(share, value, total.value))
    all_of = [k.scratch(f32, threads) for _ in range(3)]
    for array, variable in zip(all_of, (peak, weight, total), strict=True):
        array[k.lane()] = variable.value
    k.barrier()
    peaks, weights, totals = ([k.gather(a, column + i * width) for i in range(turns)] for a in all_of)
    greatest = peaks[0]
    for other in peaks[1:]:
        greatest = k.maximum(greatest, other)
    shares = [power_of_two(k, one - greatest) for one in peaks]
    with k.when((turn == 0) & (column < head_dim)):
        scaled = [_sum([share * x for share, x in zip(shares, each, strict=True)]) for each in (totals, weights)]
        k.scatter(out, scaled[0] / scaled[1], token, head * head_dim + column)


def _shapes(node: ops.NodeSpec, target: ops.Target) -> list[Shape]:
    """Returns a program's sizes with all q heads of a group, then with fewer."""
    heads, kv_heads, head_dim = (node.attrs[name] for name in ("heads", "kv_heads", "head_dim"))
    slices = THREADS[head_dim > THREADS[0] // 2] // TILE
    threads = TILE * max(n for n in powers_up_to(slices) if head_dim % n == 0)
    keys = TILE * max(1, -(-bound(node.attrs["length"]) // (TILE * split.MAX_SPLITS)))
    found = [Shape(heads, kv_heads * n, head_dim, keys, threads, n) for n in divisors(heads // kv_heads)]
    return [shape for shape in found if shape.group <= MOST_MEMBERS]


def _fits(shape: Shape, target: ops.Target) -> bool:
    return shape.scratch_nbytes <= workgroup_nbytes(target) - 8 * shape.threads


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None for few tokens on a device of threads."""
    if not has_threads(target):
        return "takes devices whose lanes are threads of a workgroup"
    if (reason := split.few_tokens(node)) is not None:
        return reason
    if is_quantized(node):
        return f"takes a cache of f32, f16 or bf16; got {node.inputs[1].dtype} with scales"
    head_dim = node.attrs["head_dim"]
    if head_dim > (shape := _shapes(node, target)[-1]).threads:
        return f"takes heads of at most {shape.threads} columns, one per thread; got {head_dim}"
    if not _fits(shape, target):
        return f"takes {shape.scratch_nbytes} bytes of workgroup memory; got {workgroup_nbytes(target)}"
    return None


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds a launch with programs (token, kv head, split), then one with programs (token, head)."""
    attrs, tokens = node.attrs, node.inputs[0].shape[0]
    shape = next(shape for shape in _shapes(node, target) if _fits(shape, target))
    length: int | Extent = attrs["length"]
    rows = (bound(tokens), shape.heads, -(-bound(length) // shape.keys))
    first = ops.Launch(
        tiles_of_keys_per_program,
        (*reads(node), ops.scratch(0, "write"), ops.scratch(1, "write")),
        (ops.Cells(tokens), ops.Cells(shape.kv_heads), ops.Cells(length, per=shape.keys)),
        {"scale": attrs["scale"], **asdict(shape)},
        lanes=shape.threads,
    )
    second = ops.Launch(
        merge_by_columns,
        (ops.scratch(0, "read"), ops.scratch(1, "read"), ops.read(3), ops.write(0)),
        (ops.Cells(tokens), ops.Cells(shape.heads)),
        {"head_dim": shape.head_dim, "keys": shape.keys, "threads": THREADS[-1]},
        lanes=THREADS[-1],
    )
    return ops.Build((first, second), (TensorSpec((*rows, shape.head_dim), f32), TensorSpec((*rows, 2), f32)))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    return split.VARIANT.cost(node, target) / SPEEDUP


VARIANT = ops.KernelVariant("split_threads", BACKENDS, _build, _supports, _cost)
