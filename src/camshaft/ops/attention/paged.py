"""Access to consecutive keys and values of one sequence in the paged cache, plain or quantized, for attention's kernels.

The layouts of the cache are those of kv_cache_update.py and kv_cache_quantize.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from camshaft.dtypes import f32, i32, i64, u8
from camshaft.lang import Array, Number, Tracer, Value
from camshaft.ops import op as ops
from camshaft.ops.attention.kv_cache_quantize import GROUP, NIBBLE_ZERO
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.attention.registers import WIDTH, inside
from camshaft.ops.spec import TensorSpec

LINE_NBYTES = 64  # a CPU's cache line
N_INPUTS = 6  # q, K, V, positions, slots, block table; K and V scales after them


def is_quantized(node: ops.NodeSpec) -> bool:
    """Returns whether an attention node reads a quantized cache (codes and scales)."""
    return len(node.inputs) > N_INPUTS


def caches(node: ops.NodeSpec) -> tuple[TensorSpec, ...]:
    """Returns the operands of keys and values, and of their scales if the cache is quantized."""
    return node.inputs[1:3] + node.inputs[N_INPUTS:]


@dataclass(frozen=True)
class Cache:
    """A cache's arrays. With scales, keys and values are codes: signed bytes, or two 4-bit codes per byte."""

    keys: Array
    values: Array
    key_scales: Array | None = None
    value_scales: Array | None = None

    @property
    def is_quantized(self) -> bool:
        return self.key_scales is not None

    @property
    def has_nibbles(self) -> bool:
        return self.keys.dtype == u8

    @property
    def head_dim(self) -> int:
        return self.keys.shape[2] * (2 if self.has_nibbles else 1)

    def key_in_lanes(self, k: Tracer, block: Value, head: Value, d: Value, j: Value) -> Value:
        """Loads component d of keys j, with lanes over j."""
        if self.key_scales is None:
            return self.keys[block, head, d, j]
        code = self.keys[block, head, self._stored(d), j]
        return self._decoded(code, d) * self.key_scales[block, head, d // GROUP, j]

    def value_in_lanes(self, k: Tracer, block: Value, head: Value, j: Value, d: Value) -> Value:
        """Loads columns d of key j's value, with lanes over d."""
        if self.value_scales is None:
            return self.values[block, head, j, d]
        code = k.gather(self.values, block, head, j, self._stored(d))
        return self._decoded(code, d) * k.gather(self.value_scales, block, head, d // GROUP, j)

    def _stored(self, d: Value) -> Value:
        """Returns the index of an element's code."""
        return d // GROUP * (GROUP // 2) + d % (GROUP // 2) if self.has_nibbles else d

    def _decoded(self, code: Value, d: Value) -> Value:
        """Converts a code to f32, without its scale."""
        if not self.has_nibbles:
            return code.to(f32)
        shift = (d // (GROUP // 2) % 2 * 4).to(i32)
        return (((code.to(i32) >> shift) & 15) - NIBBLE_ZERO).to(f32)


@dataclass(frozen=True)
class Keys:
    """`count` keys of slot `slot` from position `base` on, a multiple of 16; heads count from `kv_head`.

    Components and columns come as f32 vectors of 16: of a component, 16 keys; of a key's value, 16 columns. Each load
    prefetches `ahead` bytes after it, if that is not 0; past the end of the cache the prefetch has no effect.
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
                k.prefetch(cache.keys, block, self.kv_head + h, stored + self.ahead // row_nbytes, 0)
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
        if self.ahead and column * nbytes % LINE_NBYTES == 0:
            k.prefetch(cache.values, block, head, j + self.ahead // (cache.head_dim * nbytes), column)
        if cache.value_scales is None:
            count = inside(cache.head_dim, column)
            return k.load_vector(cache.values, block, head, j, column, width=WIDTH, count=count)
        part, within = divmod(column, GROUP)
        start = part * (GROUP // 2) if cache.has_nibbles else column
        line = k.load_vector(cache.values, block, head, j, start, width=WIDTH)
        return nibble(line, within // WIDTH) if cache.has_nibbles else line.to(f32)


def nibble(line: Value, high: int) -> Value:
    """Converts the low or high 4-bit codes of bytes to f32, centred at 0."""
    wide = line.to(i32)
    return ((wide >> 4 if high else wide & 15) - NIBBLE_ZERO).to(f32)
