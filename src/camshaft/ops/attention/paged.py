"""The operands of attention's kernels: heads, their columns as vectors, and keys and values of the paged cache.

The cache is plain or quantized; its layouts are those of kv_cache_update.py and kv_cache_quantize.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import e, log2
from typing import Any

from camshaft.dtypes import f32, i8, i32, i64, u8
from camshaft.lang import Array, Number, Tracer, Value
from camshaft.ops import op as ops
from camshaft.ops.attention.kv_cache_quantize import GROUP, NIBBLE_ZERO
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.kernels.launch import has_threads
from camshaft.ops.masked.options import Options
from camshaft.ops.spec import TensorSpec, bound

WIDTH = 16  # elements of an explicit vector: a block of keys
LOG2_E = log2(e)
LOWEST = -3.0e38  # below every score: the initial maximum
LINE_NBYTES = 64  # a CPU's cache line
N_INPUTS = 6  # q, K, V, positions, slots, block table; K and V scales after them


@dataclass(frozen=True)
class Heads:
    """The numbers of heads of queries and of keys, and the columns of a head."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """q heads that share a kv head."""
        return self.heads // self.kv_heads

    @property
    def columns(self) -> range:
        """The first column of each vector of a head."""
        return columns_of(self.head_dim)

    @property
    def padded(self) -> int:
        """A head's columns rounded up to whole vectors, for scratch."""
        return -(-self.head_dim // WIDTH) * WIDTH

    def even_steps(self, most: int) -> list[list[int]]:
        """Splits the vectors' columns into the fewest runs of at most `most`, of nearly equal length."""
        starts = list(self.columns)
        n = -(-len(starts) // max(1, most))
        step = -(-len(starts) // n)
        return [starts[i : i + step] for i in range(0, len(starts), step)]

    def load_query(self, k: Tracer, q: Array, at: tuple[Value, Value], query: Array, row: Value, scale: float) -> None:
        """Loads q[at], one head of one token, into query[row], scaled for powers of two."""
        token, column = at
        for d in self.columns:
            x = k.load_vector(q, token, column + d, width=WIDTH, count=inside(self.head_dim, d))
            k.store_vector(query, x * (scale * LOG2_E), row, d)


def register_vectors(target: ops.Target) -> int:
    """Returns how many accumulators of 16 f32 fit: 24 of AVX-512's 32 registers; 6 of two registers each for AVX2's 16, or of
    four each for NEON's 32. On a GPU a vector is one register in each of 16 threads."""
    return 24 if {"avx512f", "avx512vl"} <= target.features or has_threads(target) else 6


def columns_of(head_dim: int) -> range:
    """Returns the first column of each vector of a head. The last vector may pass the head's end."""
    return range(0, head_dim, WIDTH)


def inside(head_dim: int, column: int) -> int | None:
    """Returns how many elements of the vector at `column` are in the head; None for all (no mask)."""
    return None if column + WIDTH <= head_dim else head_dim - column


def multiply_adds(node: ops.NodeSpec) -> float:
    """Returns the multiply-adds of q K and p V at the bounds, without the masked half of the square of new tokens."""
    tokens, length = node.inputs[0].bounds[0], bound(node.attrs["length"])
    pairs = tokens * max(1.0, length - min(tokens, length) / 2)
    return 2.0 * pairs * float(node.attrs["heads"] * node.attrs["head_dim"])


def is_quantized(node: ops.NodeSpec) -> bool:
    """Returns whether an attention node reads a quantized cache (codes and scales)."""
    return node.inputs[1].dtype in (i8, u8)


def reads(node: ops.NodeSpec) -> tuple[ops.Operand, ...]:
    """Returns the operands that every kernel of attention reads first."""
    return tuple(ops.read(i) for i in range(len(node.inputs)))


def caches(node: ops.NodeSpec) -> tuple[TensorSpec, ...]:
    """Returns the operands of keys and values, and of their scales if the cache is quantized."""
    return node.inputs[1:3] + (node.inputs[N_INPUTS : N_INPUTS + 2] if is_quantized(node) else ())


def without_options(node: ops.NodeSpec, target: ops.Target | None = None) -> str | None:
    """Returns why a kernel of causal attention with heads of one size does not take a node, or None."""
    plain = node.inputs[2].bounds[3] == node.inputs[1].bounds[2]
    if Options.of("attention", node.attrs).is_plain and plain:
        return None
    return "takes causal attention without options, with heads of keys and values of one size"


@dataclass(frozen=True)
class Cache:
    """A cache's arrays. With scales, keys and values are codes: signed bytes, or two 4-bit codes per byte."""

    keys: Array
    values: Array
    key_scales: Array | None = None
    value_scales: Array | None = None

    @property
    def is_quantized(self) -> bool:
        """Whether keys and values are codes."""
        return self.key_scales is not None

    @property
    def has_nibbles(self) -> bool:
        """Whether a byte has two codes."""
        return self.keys.dtype == u8

    @property
    def head_dim(self) -> int:
        """The columns of a head."""
        return int(self.keys.shape[2]) * (2 if self.has_nibbles else 1)


@dataclass(frozen=True)
class Arguments:
    """The arguments of a kernel of attention; `rest` are the arrays that it writes, then run-time scalars."""

    q: Array
    cache: Cache
    positions: Array
    slots: Array
    table: Array
    rest: tuple[Any, ...]


def arguments_of(arguments: tuple[Any, ...]) -> Arguments:
    """Returns a kernel's arguments by name. A cache of codes has scales, after the block table."""
    q, keys, values, positions, slots, table, *rest = arguments
    n = 2 if keys.dtype in (i8, u8) else 0
    return Arguments(q, Cache(keys, values, *rest[:n]), positions, slots, table, tuple(rest[n:]))


@dataclass(frozen=True)
class Keys:
    """`count` keys of slot `slot` from position `base` on, a multiple of 16; heads count from `kv_head`.

    Components and columns come as f32 vectors of 16: of a component, 16 keys; of a key's value, 16 columns. Each load
    prefetches `ahead` bytes after it into the second cache, if that is not 0; past the end of the cache that has no effect. Into
    the first cache 4096 keys of 32/8 heads of 128 take 1.4 times as long on a Zen 4 core.
    """

    k: Tracer
    cache: Cache
    table: Array
    slot: Value
    kv_head: Value
    base: Value
    count: Value
    ahead: int = 0

    @property
    def n_blocks(self) -> Value:
        """The number of blocks of these keys; the last may be partial."""
        return (self.count + (BLOCK_TOKENS - 1)) // BLOCK_TOKENS

    def block(self, index: Number) -> Value:
        """Returns the cache's block number of block `index` of these keys."""
        return self.table[self.slot, self.base // BLOCK_TOKENS + index].to(i64)

    def in_block(self, index: Value) -> Value:
        """Returns the number of these keys in block `index`, at most 16."""
        return self.k.minimum(self.count - index * BLOCK_TOKENS, BLOCK_TOKENS)

    def parts(self) -> Iterator[Value | None]:
        """Returns the parts of a head that have one scale per key; without scales one part, None."""
        if self.cache.is_quantized:
            yield from self.k.range(self.cache.head_dim // GROUP)
        else:
            yield None

    def key_scales(self, blocks: list[Value], h: Number, part: Value | None) -> list[Value] | None:
        """Returns the scales of a part's components for the 16 keys of each block; None without scales."""
        scales = self.cache.key_scales
        if scales is None or part is None:
            return None
        return [self.k.load_vector(scales, block, self.kv_head + h, part, 0, width=WIDTH) for block in blocks]

    def components(
        self, blocks: list[Value], h: Number, part: Value | None, chains: int
    ) -> Iterator[tuple[int, Number, list[Value]]]:
        """Yields each component of a part of head kv_head + h: the chain that it is added to, its index, and its unscaled
        value for the 16 keys of each block. With parts, `chains` must be a power of two."""
        k, cache = self.k, self.cache
        rows = cache.keys.shape[2] if part is None else GROUP // 2 if cache.has_nibbles else GROUP
        step = max(1, chains // 2) if cache.has_nibbles else chains
        whole = rows // step * step
        first: Number = 0 if part is None else part * rows
        for row in k.range(0, whole, step):
            for i in range(step):
                yield from self._row(blocks, h, part, first + (row + i), row + i, i, chains)
        for i in range(rows - whole):
            yield from self._row(blocks, h, part, first + (whole + i), whole + i, i, chains)

    def _row(
        self, blocks: list[Value], h: Number, part: Value | None, stored: Number, row: Number, i: int, chains: int
    ) -> Iterator[tuple[int, Number, list[Value]]]:
        """The one or two components in row `row` of a part."""
        k, cache = self.k, self.cache
        row_nbytes = WIDTH * cache.keys.dtype.nbytes
        if self.ahead and i * row_nbytes % LINE_NBYTES == 0:
            for block in blocks:
                k.prefetch(cache.keys, block, self.kv_head + h, stored + self.ahead // row_nbytes, 0, near=False)
        lines = [k.load_vector(cache.keys, block, self.kv_head + h, stored, 0, width=WIDTH) for block in blocks]
        if part is None:
            yield i, stored, lines
        elif not cache.has_nibbles:
            yield i, stored, [line.to(f32) for line in lines]
        else:
            for high in (0, 1):
                component = part * GROUP + row + high * (GROUP // 2)
                yield (2 * i + high) % chains, component, [nibble(line, high) for line in lines]

    def values(self, block: Value, h: Number, j: Value, column: int) -> Value:
        """Returns 16 columns of the value of a block's key j; 0 past the last column."""
        if self.cache.value_scales is None:
            return self.value_codes(block, h, j, column)
        scale = self.cache.value_scales[block, self.kv_head + h, column // GROUP, j]
        return self.value_codes(block, h, j, column) * scale

    def value_scales(self, block: Value, h: Number, part: int) -> Value:
        """Returns the scales of the values of a block's 16 keys in a part of the head."""
        scales = self.cache.value_scales
        assert scales is not None
        return self.k.load_vector(scales, block, self.kv_head + h, part, 0, width=WIDTH)

    def value_codes(self, block: Value, h: Number, j: Value, column: int) -> Value:
        """Like `values`, without the scales."""
        k, cache, head = self.k, self.cache, self.kv_head + h
        nbytes = cache.values.dtype.nbytes
        stored = int(cache.values.shape[3])
        if self.ahead and column * nbytes % LINE_NBYTES == 0:
            k.prefetch(cache.values, block, head, j + self.ahead // (stored * nbytes), column, near=False)
        if cache.value_scales is None:
            count = inside(stored, column)
            return k.load_vector(cache.values, block, head, j, column, width=WIDTH, count=count)
        part, within = divmod(column, GROUP)
        start = part * (GROUP // 2) if cache.has_nibbles else column
        line = k.load_vector(cache.values, block, head, j, start, width=WIDTH)
        return nibble(line, within // WIDTH) if cache.has_nibbles else line.to(f32)


def nibble(line: Value, high: int) -> Value:
    """Converts the low or high 4-bit codes of bytes to f32, centred at 0."""
    wide = line.to(i32)
    return ((wide >> 4 if high else wide & 15) - NIBBLE_ZERO).to(f32)
