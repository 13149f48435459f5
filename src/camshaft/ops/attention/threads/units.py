"""The variant of attention for prompts on the matrix units of NVIDIA GPUs: q K and p V of f16, the softmax between them in f32.

A workgroup computes 64 tokens of one q head. The units hold sums where no thread sees a whole row, so keys are read twice: first
for each row's largest score and sum of weights, then for weights that add up to 1, and the sums of p V are the result as they
are. The cache is f16; q is rounded to it, and so are the weights, times 2^12, so that small ones keep their bits. A token whose
q passes f16 where it is multiplied by scale log2(e) is NaN, as its keys would be; `tiled` has it in f32, unit_tiles.py in bf16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from camshaft.dtypes import f16, f32, i64
from camshaft.extent import Extent
from camshaft.lang import Tracer, Value, Variable, greater, kernel, power_of_two
from camshaft.ops import op as ops
from camshaft.ops.attention import split
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.attention.paged import (
    LOG2_E,
    LOWEST,
    Arguments,
    Heads,
    Keys,
    arguments_of,
    multiply_adds,
    reads,
    without_options,
)
from camshaft.ops.attention.tiled import Run, runs_of
from camshaft.ops.kernels.launch import has_threads
from camshaft.ops.spec import bound

THREADS, ROWS, TILE_KEYS = 128, 64, 32
BLOCKS = TILE_KEYS // BLOCK_TOKENS
# Threads of a row, and the keys of a tile that each takes.
SHARES = THREADS // ROWS
MINE = TILE_KEYS // SHARES
# Elements past a row of workgroup memory, so that eight rows lie in different banks: of f16 as the units read them, of f32.
PAD, ODD = 8, 1
# Heads whose queries, keys, values, scores and weights fit 48 KB.
MOST_DIM = 128
WEIGHT_SCALE = 2.0**12
TOLERANCE = {"f32": 2e-5}


@dataclass(frozen=True)
class Row:
    """A thread's state of its row: the position of its token, and for the keys so far the maximum score and the sum of
    weights relative to it."""

    last: Value
    peak: Variable
    weight: Variable


class Work:
    """The workgroup memory of one program and the steps on it. A row is one token; two threads share it."""

    def __init__(self, k: Tracer, heads: Heads, head: Value) -> None:
        self.k, self.heads, self.head = k, heads, head
        self.row, self.share = k.lane() // SHARES, k.lane() % SHARES
        self.query = k.scratch(f16, ROWS, heads.head_dim + PAD)
        self.keys = [k.scratch(f16, heads.head_dim, BLOCK_TOKENS) for _ in range(BLOCKS)]
        self.values = [k.scratch(f16, BLOCK_TOKENS, heads.head_dim) for _ in range(BLOCKS)]
        self.scores = k.scratch(f32, ROWS, TILE_KEYS + ODD)
        self.powers = k.scratch(f16, ROWS, TILE_KEYS + PAD)
        self.shared = [k.scratch(f32, ROWS, SHARES) for _ in range(2)]

    def start(self, given: Arguments, run: Run, scale: float) -> Row:
        """Loads the rows of q, scaled for powers of two. Rows past the run's tokens repeat the last."""
        k, dim, last = self.k, self.heads.head_dim, run.n_tokens - 1
        k.barrier()
        for i in k.lanes(ROWS * dim):
            x = k.gather(given.q, run.first + k.minimum(i // dim, last), self.head * dim + i % dim)
            k.scatter(self.query, x * (scale * LOG2_E), i // dim, i % dim)
        position = k.gather(given.positions, run.first + k.minimum(self.row, last)).to(i64)
        return Row(position, k.var(LOWEST), k.var(0.0))

    def score(self, keys: Keys, base: Value) -> None:
        """scores = query K for the tile of keys that starts at `base`; what is past the last key is multiplied as 0."""
        k, dim = self.k, self.heads.head_dim
        k.barrier()
        for i, to in enumerate(self.keys):
            there = keys.count - base - i * BLOCK_TOKENS
            k.async_copy(to, keys.cache.keys, self.block(keys, base, i), keys.kv_head, 0, 0, columns=there)
        k.async_wait()
        for i, block in enumerate(self.keys):
            tile = k.tile(ROWS, BLOCK_TOKENS)
            tile.mma(self.query, (0, 0), block, (0, 0), k=dim)
            tile.store(self.scores, (0, i * BLOCK_TOKENS))
        k.barrier()

    def block(self, keys: Keys, base: Value, i: int) -> Value:
        """The cache's number of block i from `base` on; past the last block, that."""
        return keys.block(self.k.minimum(base // BLOCK_TOKENS + i, keys.n_blocks - 1))

    def mine(self, row: Row, base: Value) -> list[tuple[Value, Value]]:
        """Whether the row sees each of the thread's keys, and its score. Neighbouring threads take neighbouring keys."""
        k, found = self.k, []
        for n in range(MINE):
            j = self.share + n * SHARES
            found.append((base + j <= row.last, k.gather(self.scores, self.row, j)))
        return found

    def measure(self, row: Row, base: Value) -> None:
        """Adds a tile of keys to the largest score and the sum of weights."""
        k, before = self.k, row.peak.value
        scores = [k.select(seen, score, LOWEST) for seen, score in self.mine(row, base)]
        peak = before
        for score in scores:
            peak = greater(k, score, peak)
        weight = row.weight.value * power_of_two(k, before - peak)
        for score in scores:
            weight = weight + k.select(score > LOWEST, power_of_two(k, score - peak), 0.0)
        row.peak.set(peak)
        row.weight.set(weight)

    def join(self, row: Row) -> tuple[Value, Value]:
        """The row's largest score, and WEIGHT_SCALE divided by its sum of weights, over all of its threads."""
        k, (peaks, weights) = self.k, self.shared
        k.scatter(peaks, row.peak.value, self.row, self.share)
        k.scatter(weights, row.weight.value, self.row, self.share)
        k.barrier()
        every = [(k.gather(peaks, self.row, s), k.gather(weights, self.row, s)) for s in range(SHARES)]
        peak = every[0][0]
        for other, _ in every[1:]:
            peak = greater(k, other, peak)
        total = k.const(0.0, f32)
        for other, weight in every:
            total = total + weight * power_of_two(k, other - peak)
        return peak, WEIGHT_SCALE / total

    def weigh(self, row: Row, base: Value, peak: Value, factor: Value) -> None:
        """powers = the weights of a tile of keys, 0 for those that the row does not see."""
        k = self.k
        for n, (seen, score) in enumerate(self.mine(row, base)):
            power = k.select(seen, power_of_two(k, score - peak) * factor, 0.0)
            k.scatter(self.powers, power, self.row, self.share + n * SHARES)

    def fetch_values(self, keys: Keys, base: Value) -> None:
        """Begins to copy a tile's values, 0 past the last key: there lies whatever was there before."""
        for i, to in enumerate(self.values):
            there = keys.count - base - i * BLOCK_TOKENS
            block = self.block(keys, base, i)
            self.k.async_copy(to, keys.cache.values, block, keys.kv_head, 0, 0, rows=there)


@kernel
def one_tile_per_program(k: Tracer, *arguments: Any, scale: float, heads: int, kv_heads: int, head_dim: int) -> None:
    # of each row: m = max S, l = sum 2^(S - m), S = scale log2(e) q K; then O = sum 2^(S - m) / l V
    given, sizes, head = arguments_of(arguments), Heads(heads, kv_heads, head_dim), k.program(0)
    work = Work(k, sizes, head)
    for run in runs_of(k, given, ROWS):
        row, end = work.start(given, run, scale), run.greatest + 1
        keys = Keys(k, given.cache, given.table, run.slot, head // sizes.group, k.const(0, i64), end)
        for base in k.range(0, end, TILE_KEYS):
            work.score(keys, base)
            work.measure(row, base)
        peak, factor = work.join(row)
        total = k.tile(ROWS, head_dim)
        for base in k.range(0, end, TILE_KEYS):
            work.score(keys, base)
            work.fetch_values(keys, base)
            work.weigh(row, base, peak, factor)
            k.async_wait()
            for i, values in enumerate(work.values):
                total.mma(work.powers, (0, i * BLOCK_TOKENS), values, (0, 0), k=BLOCK_TOKENS)
        total.scale(1 / WEIGHT_SCALE)
        total.store(given.rest[0], (run.first, head * head_dim), rows=run.n_tokens)


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None; next tokens of sequences are left to `split_threads`."""
    if target.backend != "cuda" or not has_threads(target):
        return "takes GPUs with matrix units for f16: NVIDIA's"
    if (reason := without_options(node)) is not None:
        return reason
    dim = node.attrs["head_dim"]
    if node.attrs.get("precision") != "bf16":
        return "takes precision 'bf16'"
    if node.inputs[1].dtype != f16:
        return f"takes a cache of f16; got {node.inputs[1].dtype}"
    if dim % BLOCK_TOKENS or dim > MOST_DIM:
        return f"takes heads of up to {MOST_DIM} columns, a multiple of {BLOCK_TOKENS}; got {dim}"
    if bound(node.inputs[0].shape[0]) <= split.MAX_TOKENS:
        return f"takes more than {split.MAX_TOKENS} tokens; got {bound(node.inputs[0].shape[0])}"
    return None


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds a launch with programs (q head, tile of tokens)."""
    tokens, sizes = node.inputs[0].shape[0], {name: node.attrs[name] for name in ("heads", "kv_heads", "head_dim")}
    launch = ops.Launch(
        one_tile_per_program,
        (*reads(node), ops.write(0)),
        (ops.Cells(sizes["heads"]), ops.Cells(tokens, per=ROWS)),
        {"scale": node.attrs["scale"], **sizes},
        extents=(tokens,) if isinstance(tokens, Extent) else (),
        lanes=THREADS,
    )
    return ops.Build((launch,))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """An estimate; `tiled` took 690 us for 512 tokens of 9 heads on an H200, 0.24 multiply-adds per ns and its 47."""
    return multiply_adds(node) / 2000.0


VARIANT = ops.KernelVariant("unit_threads", frozenset({"cuda"}), _build, _supports, _cost, tolerance=TOLERANCE)
