"""attention as matmul, where and softmax per head, over the keys of all slots at once.

It is exact but not cheap: a token's scores take n_slots times the capacity of a slot, and all but its own slot's are masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import u8
from camshaft.ops.attention.kv_cache_quantize import GROUP, NIBBLE_ZERO
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.masked.decomposition import LOWEST, Places, finite_values, mix
from camshaft.ops.masked.options import Options


def decompose(
    f: Any, q: Any, k_cache: Any, v_cache: Any, positions: Any, slots: Any, block_table: Any, *others: Any,
    heads: int, kv_heads: int, head_dim: int, scale: float, length: Any, **attrs: Any,
) -> Any:  # fmt: skip
    """softmax(scale q K^T) V per head, with scores of other slots and of keys that are not visible at the lowest number."""
    options = Options.of("attention", attrs)
    (n_slots, per_slot), tokens, n = block_table.shape, q.shape[0], len(others) - len(options.extras)
    k_scales, v_scales = others[:n] or (None, None)
    blocks = block_table.reshape((n_slots * per_slot,))
    keys = _rows(f, _numbers(f, k_cache, k_scales), blocks)
    values = _rows(f, _numbers(f, f.transpose(v_cache, axes=(0, 1, 3, 2)), v_scales), blocks)
    if not options.is_plain:
        places = Places(f, positions, slots, n_slots, per_slot * BLOCK_TOKENS)
        given = dict(zip(options.extras, others[n:], strict=True))
        return mix(options, places, _queries(q, heads, head_dim, scale), keys, values, given)

    number = np.arange(n_slots * per_slot * BLOCK_TOKENS, dtype=np.int32)
    first = slots.reshape((tokens, 1)) * (per_slot * BLOCK_TOKENS)
    seen = f.logical_and(first <= number, f.less_equal(number, first + positions.reshape((tokens, 1))))

    made = []
    for kv_head in range(kv_heads):
        finite, lost = finite_values(f, values[kv_head], seen)
        for query in _queries(q, heads, head_dim, scale)[
            kv_head * heads // kv_heads : (kv_head + 1) * heads // kv_heads
        ]:
            weights = f.softmax(f.where(seen, f.matmul(query, keys[kv_head]), LOWEST))
            made.append(f.where(lost, float("nan"), f.matmul(weights, finite, transpose_b=True)))
    return f.concat(*made, axis=1) if len(made) > 1 else made[0]


def _queries(q: Any, heads: int, head_dim: int, scale: float) -> list[Any]:
    """The scaled queries of each head."""
    return [q[:, head * head_dim : (head + 1) * head_dim] * scale for head in range(heads)]


def _numbers(f: Any, codes: Any, scales: Any) -> Any:
    """A cache [blocks, kv_heads, head_dim, 16] as f32: scale times code where it is quantized, in groups of 32 along the head."""
    if scales is None:
        return f.cast(codes, to="f32")
    n_blocks, kv_heads, groups, places = scales.shape
    grouped = codes.reshape((n_blocks, kv_heads, groups, -1, places))
    if codes.dtype == u8:
        grouped = f.concat(f.remainder(grouped, GROUP // 2), f.floor_divide(grouped, GROUP // 2), axis=3)
    wide = f.cast(grouped, to="f32")
    wide = (wide - NIBBLE_ZERO if codes.dtype == u8 else wide) * f.cast(scales, to="f32").reshape(
        (n_blocks, kv_heads, groups, 1, places)
    )
    return wide.reshape((n_blocks, kv_heads, groups * GROUP, places))


def _rows(f: Any, cache: Any, blocks: Any) -> Sequence[Any]:
    """The blocks of all slots in order, [head_dim, keys] for each head of the cache."""
    n_blocks, kv_heads, head_dim, places = cache.shape
    taken = f.gather(cache.reshape((n_blocks, -1)), blocks).reshape((-1, kv_heads, head_dim, places))
    ordered = f.transpose(taken, axes=(1, 2, 0, 3)).reshape((kv_heads, head_dim, -1))
    return [ordered[head] for head in range(kv_heads)]
