"""Consecutive keys of one sequence and kv head, as a kernel finds them in the cache. Used by split.py and tiled.py."""

from __future__ import annotations

from dataclasses import dataclass

from camshaft.dtypes import i64
from camshaft.lang.ir import Value
from camshaft.lang.tracer import Array, Number, Tracer
from camshaft.ops.attention.registers import WIDTH, inside
from camshaft.ops.kv_cache_update import BLOCK_TOKENS


@dataclass(frozen=True)
class Keys:
    """`count` keys of slot `slot` from position `base` on, a multiple of 16; heads count from `kv_head`."""

    k: Tracer
    k_cache: Array
    v_cache: Array
    table: Array
    slot: Value
    kv_head: Value
    base: Value
    count: Value

    @property
    def n_blocks(self) -> Value:
        """Blocks that hold them; the last may be partly theirs."""
        return (self.count + (BLOCK_TOKENS - 1)) // BLOCK_TOKENS

    def block(self, index: Number) -> Value:
        """Where the cache has their block `index`."""
        return self.table[self.slot, self.base // BLOCK_TOKENS + index].to(i64)

    def in_block(self, index: Value) -> Value:
        """How many of the 16 keys of block `index` are theirs."""
        return self.k.minimum(self.count - index * BLOCK_TOKENS, BLOCK_TOKENS)

    def keys(self, block: Value, h: Number, d: Number) -> Value:
        """Component d of a block's 16 keys of head kv_head + h, as f32."""
        return self.k.load_vector(self.k_cache, block, self.kv_head + h, d, 0, width=WIDTH)

    def values(self, block: Value, h: Number, j: Value, column: int) -> Value:
        """16 columns of the value of a block's key j, as f32; 0 past the last column."""
        head_dim = self.v_cache.shape[-1]
        at = block, self.kv_head + h, j, column
        return self.k.load_vector(self.v_cache, *at, width=WIDTH, count=inside(head_dim, column))
