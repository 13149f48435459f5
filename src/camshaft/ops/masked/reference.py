"""The float64 reference of attention with options, over keys and values of each slot as plain arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from camshaft.ops import op as ops
from camshaft.ops.masked.options import Options

# slot, keys -> K [kv_heads, keys, head_dim] and V [kv_heads, keys, v_dim] in float64
Fetch = Callable[[int, ops.Array], tuple[ops.Array, ops.Array]]


def visible(options: Options, position: int, capacity: int, prefix: int, length: int | None) -> ops.Array:
    """Returns the numbers of the keys that a token may see, without the boolean mask."""
    end = position + 1 if options.ring else capacity
    keys = np.arange(max(0, end - capacity), end)
    seen = keys <= position if options.causal else np.ones(len(keys), bool)
    if options.window:
        seen &= keys > position - options.window
        if not options.causal:
            seen &= keys < position + options.window
    if options.chunk:
        seen &= keys // options.chunk == position // options.chunk
    seen |= keys < prefix
    return np.asarray(keys[seen if length is None else seen & (keys < length)])


def attend(
    options: Options,
    queries: ops.Array,
    places: tuple[ops.Array, ops.Array],
    fetch: Fetch,
    given: Mapping[str, ops.Array],
    capacity: int,
    v_dim: int,
    scale: float,
) -> tuple[ops.Array, ...]:
    """Returns attention of float64 queries [tokens, heads, head_dim] at places (positions, slots): [tokens, heads, v_dim],
    and the log-sum-exp [tokens, heads]."""
    tokens, heads, _ = queries.shape
    out, sums = np.zeros((tokens, heads, v_dim)), np.full((tokens, heads), -np.inf)
    for row, (position, slot) in enumerate(zip(*(place.tolist() for place in places), strict=True)):
        prefix = int(given["prefix"][slot]) if "prefix" in given else 0
        length = int(given["lengths"][slot]) if "lengths" in given else None
        keys = visible(options, position, capacity, prefix, length)
        mask = given.get("mask")
        bias = np.zeros((heads, len(keys)))
        if mask is not None:
            keys = keys[keys < mask.shape[3]]
            part = mask[slot % len(mask)][:, row % mask.shape[2]][:, keys]
            added = np.where(part, 0.0, -np.inf) if part.dtype == bool else part.astype(np.float64)
            bias = np.broadcast_to(added, (heads, len(keys)))
        if "slopes" in given:
            distance = keys - position if options.causal else -np.abs(keys - position)
            bias = bias + given["slopes"].astype(np.float64)[:, None] * distance
        if len(keys):
            k, v = fetch(slot, keys)
        else:
            k, v = np.zeros((1, 0, queries.shape[2])), np.zeros((1, 0, v_dim))
        group = heads // len(k)
        scores = scale * np.einsum("hd,hkd->hk", queries[row], np.repeat(k, group, axis=0))
        if options.cap:
            scores = options.cap * np.tanh(scores / options.cap)
        out[row], sums[row] = _mixed(scores + bias, np.repeat(v, group, axis=0), given.get("sinks"))
    return out, sums


def _mixed(scores: ops.Array, values: ops.Array, sinks: ops.Array | None) -> tuple[ops.Array, ops.Array]:
    """Returns softmax(scores) V per head, and the log-sum-exp."""
    extra = np.full((len(scores), 1), -np.inf) if sinks is None else sinks.astype(np.float64)[:, None]
    every = np.concatenate([scores, extra], -1)
    peak = every.max(-1, keepdims=True)
    peak = np.where(peak == -np.inf, 0.0, peak)
    weights = np.exp(every - peak)
    total = weights.sum(-1)
    with np.errstate(divide="ignore"):
        sums = peak[:, 0] + np.log(total)
    mixed = np.einsum("hk,hkd->hd", weights[:, :-1], np.where(weights[:, :-1, None] == 0, 0.0, values))
    return mixed / np.where(total == 0, 1.0, total)[:, None], sums
