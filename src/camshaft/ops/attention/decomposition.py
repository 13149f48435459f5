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

_LOWEST = float(np.finfo(np.float32).min)


def decompose(
    f: Any, q: Any, k_cache: Any, v_cache: Any, positions: Any, slots: Any, block_table: Any, *scales: Any,
    heads: int, kv_heads: int, head_dim: int, scale: float, length: Any,
) -> Any:  # fmt: skip
    """softmax(scale q K^T) V per head, with scores of other slots and of later keys at the lowest number."""
    (n_slots, per_slot), tokens = block_table.shape, q.shape[0]
    k_scales, v_scales = scales or (None, None)
    blocks = block_table.reshape((n_slots * per_slot,))
    keys = _rows(f, _numbers(f, k_cache, k_scales), blocks)
    values = _rows(f, _numbers(f, f.transpose(v_cache, axes=(0, 1, 3, 2)), v_scales), blocks)

    number = np.arange(n_slots * per_slot * BLOCK_TOKENS, dtype=np.int32)
    first = slots.reshape((tokens, 1)) * (per_slot * BLOCK_TOKENS)
    seen = f.logical_and(first <= number, f.less_equal(number, first + positions.reshape((tokens, 1))))

    made = []
    for kv_head in range(kv_heads):
        finite, lost = _finite(f, values[kv_head], seen)
        for head in range(kv_head * heads // kv_heads, (kv_head + 1) * heads // kv_heads):
            query = q[:, head * head_dim : (head + 1) * head_dim] * scale
            weights = f.softmax(f.where(seen, f.matmul(query, keys[kv_head]), _LOWEST))
            made.append(f.where(lost, float("nan"), f.matmul(weights, finite, transpose_b=True)))
    return f.concat(*made, axis=1) if len(made) > 1 else made[0]


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


def _finite(f: Any, values: Any, seen: Any) -> tuple[Any, Any]:
    """The values with 0 for NaN and infinities, which weights of 0 would not remove, and which results [tokens, head_dim] have
    one of these among their keys: they become NaN."""
    bad = f.logical_or(f.isnan(values), abs(values) > -_LOWEST)
    seen_bad = f.matmul(f.cast(seen, to="f32"), f.cast(bad, to="f32"), transpose_b=True)
    return f.where(bad, 0, values), seen_bad > 0
