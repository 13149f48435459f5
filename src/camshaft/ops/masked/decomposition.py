"""Attention with options as matmul, where and sums per head, over the keys of all slots at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np

from camshaft.dtypes import boolean
from camshaft.ops.masked.options import Options

LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Places:
    """The tokens of a call and the rows of all slots, one slot after the other. `f` has the ops as functions."""

    f: Any
    positions: Any
    slots: Any
    n_slots: int
    capacity: int

    @cached_property
    def position(self) -> Any:
        """The tokens' positions, [tokens, 1]."""
        return self.positions.reshape((self.positions.shape[0], 1))

    def of_slot(self, values: Any) -> Any:
        """A number of each token's slot, [tokens, 1]."""
        return self.f.gather(values, self.slots).reshape((self.slots.shape[0], 1))

    def keys(self, ring: bool) -> tuple[Any, Any]:
        """Returns the key in each row of all slots, [rows] or in a ring [tokens, rows], and whether it is a key of the token."""
        f, row = self.f, np.arange(self.n_slots * self.capacity, dtype=np.int32)
        own = f.equal(self.slots.reshape((self.slots.shape[0], 1)), row // self.capacity)
        within = (row % self.capacity).astype(np.int32)
        if not ring:
            return within, own
        key = self.position - f.remainder(self.position - within, self.capacity)
        return key, f.logical_and(own, f.less_equal(0, key))

    def seen(self, options: Options, key: Any, own: Any, given: Mapping[str, Any]) -> Any:
        """Returns which rows each token sees, [tokens, rows], without the mask."""
        f, p = self.f, self.position
        rules = [f.less_equal(key, p)] if options.causal else []
        if options.window:
            rules.append(f.less(p - options.window, key))
            if not options.causal:
                rules.append(f.less(key, p + options.window))
        if options.chunk:
            rules.append(f.equal(_chunk(f, key, options.chunk), _chunk(f, p, options.chunk)))
        seen = _all(f, rules)
        if options.has("prefix") and seen is not None:
            seen = f.logical_or(seen, f.less(key, self.of_slot(given["prefix"])))
        length = [f.less(key, self.of_slot(given["lengths"]))] if options.has("lengths") else []
        return _all(f, [*([] if seen is None else [seen]), *length, own])

    def rows_of(self, mask: Any) -> Any:
        """Returns the mask of one head, [slots or 1, tokens, keys], for each token and row: [tokens, rows]."""
        f, (slots, times, columns) = self.f, mask.shape
        tokens = self.slots.shape[0]
        if slots == 1 and times in (1, tokens):
            wide = mask.reshape((times, columns))
        else:
            index = np.arange(tokens, dtype=np.int32) % times
            at = self.slots * times + index if slots > 1 else f.add(f.multiply(self.slots, 0), index)
            wide = f.gather(mask.reshape((slots * times, columns)), at)
        wide = wide[:, : self.capacity] if columns > self.capacity else wide
        short = self.capacity - min(columns, self.capacity)
        if short:
            wide = f.concat(wide, _none(f, wide, short), axis=1)
        return f.concat(*[wide] * self.n_slots, axis=1) if self.n_slots > 1 else wide


def _chunk(f: Any, number: Any, size: int) -> Any:
    """The chunk that a key or position is in."""
    return number // np.int32(size) if isinstance(number, np.ndarray) else f.floor_divide(number, np.int32(size))


def _all(f: Any, rules: Sequence[Any]) -> Any:
    """Whether all rules let a key be seen; None without rules."""
    return reduce(f.logical_and, rules) if rules else None


def mix(
    options: Options,
    places: Places,
    queries: Sequence[Any],
    keys: Sequence[Any],
    values: Sequence[Any],
    given: Mapping[str, Any],
) -> Any:
    """The results of all heads, [tokens, heads * v_dim], and with `lse` their sums. Keys and values are [size, rows] per head."""
    f = places.f
    key, own = places.keys(options.ring)
    seen = places.seen(options, key, own, given)
    made, sums = [], []
    for head, query in enumerate(queries):
        kv_head = head * len(keys) // len(queries)
        score, visible = _scores(options, places, f.matmul(query, keys[kv_head]), seen, key, given, head)
        finite, lost = finite_values(f, values[kv_head], visible)
        sink = given["sinks"][head : head + 1] if options.has("sinks") else None
        mixed, total = _mixed(f, score, finite, sink)
        made.append(f.where(lost, float("nan"), mixed))
        sums.append(total)
    out, sums_of_all = (f.concat(*part, axis=1) if len(part) > 1 else part[0] for part in (made, sums))
    return (out, sums_of_all) if options.lse else out


def _scores(
    options: Options, places: Places, score: Any, seen: Any, key: Any, given: Mapping[str, Any], head: int
) -> tuple[Any, Any]:
    """The scores of one head, LOWEST where a key is not visible, and which are visible."""
    f = places.f
    if options.cap:
        score = f.tanh(score * (1 / options.cap)) * options.cap
    if options.has("slopes"):
        distance = f.cast(f.subtract(key, places.position), to="f32")
        score = score + (distance if options.causal else f.negate(f.abs(distance))) * given["slopes"][head : head + 1]
    if options.has("mask"):
        mask = given["mask"]
        wide = places.rows_of(mask[:, min(head, mask.shape[1] - 1)])
        if mask.dtype == boolean:
            seen = f.logical_and(seen, wide)
        else:
            wide = f.cast(wide, to="f32")
            # an infinity is not a number to add where the score may be one
            seen = f.logical_and(seen, f.logical_not(f.less(wide, LOWEST)))
            score = score + f.maximum(wide, LOWEST / 4)
    return f.where(seen, f.maximum(score, LOWEST), LOWEST), seen


def _mixed(f: Any, score: Any, values: Any, sink: Any) -> tuple[Any, Any]:
    """softmax of scores and sink times values [v_dim, rows], and the log-sum-exp [tokens, 1]."""
    peak = f.max(score, axes=-1, keepdims=True)
    if sink is not None:
        peak = f.maximum(peak, sink)
    weights = f.where(f.less_equal(score, LOWEST), 0.0, f.exp(score - peak))
    total = f.sum(weights, axes=-1, keepdims=True)
    if sink is not None:
        total = total + f.exp(sink - peak)
    none = f.equal(total, 0.0)
    divisor = f.where(none, 1.0, total)
    sums = f.where(none, float("-inf"), peak + f.log(divisor))
    return f.matmul(weights, values, transpose_b=True) / divisor, sums


def _none(f: Any, wide: Any, n: int) -> Any:
    """Columns of a mask that hide their keys."""
    zeros = f.cast(wide[:, :1], to="f32") * 0.0
    columns = f.add(zeros, np.zeros(n, np.float32))
    return f.less(columns, 0.0) if wide.dtype == boolean else f.cast(columns, to=wide.dtype.name)


def finite_values(f: Any, values: Any, seen: Any) -> tuple[Any, Any]:
    """The values with 0 for NaN and infinities, which weights of 0 would not remove, and which results [tokens, head_dim] have
    one of these among their keys: they become NaN."""
    bad = f.logical_or(f.isnan(values), abs(values) > -LOWEST)
    seen_bad = f.matmul(f.cast(seen, to="f32"), f.cast(bad, to="f32"), transpose_b=True)
    return f.where(bad, 0, values), seen_bad > 0
