"""The kernels of attention with options, for any head size and lane count: a span of one token's keys per program, then a merge.

A cache's codes are behind `Codec` (codec.py): plain numbers, blocks of 32 with a scale, or TurboQuant.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

from camshaft.dtypes import boolean, f32, i8, i64, u8
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.attention.paged import LOG2_E, LOWEST, WIDTH
from camshaft.ops.masked.codec import Codec, Plain
from camshaft.ops.masked.options import Options


@dataclass(frozen=True)
class Call:
    """The inputs of a token's program: options, additional inputs by name, the slot's row of the block table."""

    k: Tracer
    options: Options
    given: dict[str, Array]
    table: Array
    slot: Value
    position: Value
    token: Value

    def extent(self) -> tuple[Value, Value]:
        """Returns the start of the block of the first key and the end of the keys that the token may see."""
        first, end = self.bounds()
        return first // BLOCK_TOKENS * BLOCK_TOKENS, end

    def bounds(self) -> tuple[Value, Value]:
        """Returns the first key and the end of the keys that the token may see."""
        k, options, zero = self.k, self.options, self.k.const(0, i64)
        capacity = int(self.table.shape[1]) * BLOCK_TOKENS
        first = zero
        if options.window:
            first = k.maximum(first, self.position - (options.window - 1))
        if options.chunk:
            first = k.maximum(first, self.position // options.chunk * options.chunk)
        ends = [self.position + 1] if options.causal else []
        if options.window and not options.causal:
            ends.append(self.position + options.window)
        if options.chunk and not options.causal:
            ends.append((self.position // options.chunk + 1) * options.chunk)
        if options.has("prefix"):
            prefix = self.given["prefix"][self.slot].to(i64)
            first = k.select(prefix > 0, zero, first)
            ends = [k.maximum(end, prefix) for end in ends]
        if options.has("lengths"):
            ends.append(self.given["lengths"][self.slot].to(i64))
        if not options.ring:
            ends.append(k.const(capacity, i64))
        if options.has("mask"):
            ends.append(k.const(int(self.given["mask"].shape[3]), i64))
        return first, reduce(k.minimum, ends)

    def block(self, base: Value) -> Value:
        """Returns the cache's block of the keys from `base` on."""
        index = base // BLOCK_TOKENS
        if self.options.ring:
            index = index % int(self.table.shape[1])
        return self.table[self.slot, index].to(i64)

    def scored(self, score: Value, head: Value, key: Value) -> Value:
        """Returns the score of a key with cap, slope and mask; LOWEST where it is not visible."""
        k, options = self.k, self.options
        if options.cap:
            score = k.tanh(score * (1.0 / options.cap)) * options.cap
        if options.has("slopes"):
            distance = (key - self.position).to(f32)
            score = score + self.given["slopes"][head] * (distance if options.causal else -k.abs(distance))
        seen = self._seen(key)
        if options.has("mask"):
            mask = self.given["mask"]
            slots, heads, tokens, _ = (int(n) for n in mask.shape)
            zero = k.const(0, i64)
            at = self.slot if slots > 1 else zero, head if heads > 1 else zero, self.token % tokens
            found = mask[*at, key]
            if mask.dtype == boolean:
                seen = found if seen is None else seen & found
            else:
                score = score + found
        return score if seen is None else k.select(seen, score, LOWEST)

    def changed(self, score: Value, head: Value, key: Value) -> Value:
        """Returns the scores times log2(e) of the 16 keys from `key` on, with cap, slope and mask."""
        k, options = self.k, self.options
        if options.cap:
            score = k.tanh(score * (1.0 / (options.cap * LOG2_E))) * (options.cap * LOG2_E)
        if options.has("slopes"):
            distance = (k.iota(WIDTH, i64) + (key - self.position)).to(f32)
            distance = distance if options.causal else -k.abs(distance)
            score = score + distance * (self.given["slopes"][head] * LOG2_E)
        if options.has("mask"):
            mask = self.given["mask"]
            slots, heads, tokens, columns = (int(n) for n in mask.shape)
            zero = k.const(0, i64)
            place = self.slot if slots > 1 else zero, head if heads > 1 else zero, self.token % tokens
            count = k.maximum(k.minimum(columns - key, WIDTH), 0)
            found = k.load_vector(mask, *place, k.minimum(key, columns - 1), width=WIDTH, count=count)
            if mask.dtype == boolean:
                return k.select(found, score, LOWEST)
            score = k.maximum(score + found * LOG2_E, k.splat(LOWEST, WIDTH))
        return score

    def _seen(self, key: Value) -> Value | None:
        """Returns whether the numbers of token and key let it see the key; None if all of its extent is visible."""
        options, p = self.options, self.position
        prefix = options.has("prefix")
        rules = [key <= p] if options.causal and prefix else []
        if options.window:
            rules.append(key > p - options.window)
            if not options.causal and prefix:
                rules.append(key < p + options.window)
        if options.chunk:
            rules.append(key // options.chunk == p // options.chunk)
        if not rules:
            return None
        found: Value = reduce(lambda a, b: a & b, rules)
        return found | (key < self.given["prefix"][self.slot].to(i64)) if prefix else found


def part(
    k: Tracer,
    call: Call,
    codec: Codec,
    query: Array,
    kv_head: Value,
    head: Value,
    bounds: tuple[Value, Value],
    total: Array,
) -> tuple[Value, Value]:
    """Adds the weighted values of the keys in `bounds` to total. Returns the largest score and the sum of weights."""
    # for each block of 16 keys: s = q K; m' = max(m, s); p = e^(s - m'); l = e^(m - m') l + sum p; o likewise with p V
    scores = k.scratch(f32, BLOCK_TOKENS)
    peak, weight = k.var(LOWEST), k.var(0.0)
    for base in k.range(*bounds, BLOCK_TOKENS):
        at, count = (call.block(base), kv_head), k.minimum(bounds[1] - base, BLOCK_TOKENS)
        for j in k.lanes(count):
            scores[j] = 0.0
        for d in k.range(int(query.shape[0])):
            x = query[d]
            for j in k.lanes(count):
                scores[j] = k.fma(x, codec.key(k, at, d, j), scores[j])
        greatest, added = k.accumulator("max"), k.accumulator("sum")
        for j in k.lanes(count):
            scores[j] = call.scored(scores[j], head, base + j)
            greatest.combine(scores[j])
        new_peak = k.maximum(peak.value, k.lanes_max(greatest))
        shrink = k.exp(peak.value - new_peak)
        for j in k.lanes(count):
            # a score of LOWEST is not visible, even where no other is
            scores[j] = k.select(scores[j] <= LOWEST, 0.0, k.exp(scores[j] - new_peak))
            added += scores[j]
        weight.set(weight.value * shrink + k.lanes_sum(added))
        peak.set(new_peak)
        k.barrier()
        for d in k.lanes(int(total.shape[0])):
            total[d] = total[d] * shrink
        for j in k.range(count):
            with k.when(scores[j] != 0.0):
                for d in k.lanes(int(total.shape[0])):
                    total[d] = k.fma(scores[j], codec.value(k, at, j, d), total[d])
        k.barrier()
    return peak.value, weight.value


def options_of(constants: dict[str, Any]) -> Options:
    """Returns the options among a kernel's constants, and removes them."""
    return Options(**{name: constants.pop(name) for name in Options().constants()})


def attend_part(k: Tracer, codec: Codec, arrays: tuple[Any, ...], extras: tuple[Any, ...], written: tuple[Any, ...],
                scale: float, heads: int, kv_heads: int, keys: int, constants: dict[str, Any]) -> None:  # fmt: skip
    """The body of a kernel whose programs are (token, head, span of `keys` keys). `arrays` are q, positions, slots, table."""
    q, positions, slots, table = arrays
    partial, extremes = written
    options = options_of(constants)
    token, head, span = k.program(0), k.program(1), k.program(2)
    head_dim, v_dim = int(q.shape[1]) // heads, int(partial.shape[3])
    query, total = k.scratch(f32, head_dim), k.scratch(f32, v_dim)
    for d in k.lanes(head_dim):
        query[d] = q[token, head * head_dim + d] * scale
    for d in k.lanes(v_dim):
        total[d] = 0.0
    k.barrier()
    codec.start(k, query)
    given = dict(zip(options.extras, extras, strict=True))
    call = Call(k, options, given, table, slots[token].to(i64), positions[token].to(i64), token)
    first, end = call.extent()
    base = first + span * keys
    bounds = base, k.minimum(end, base + keys)
    peak, weight = part(k, call, codec, query, head // (heads // kv_heads), head, bounds, total)
    extremes[token, head, span, 0] = peak
    extremes[token, head, span, 1] = weight
    for d in k.lanes(v_dim):
        partial[token, head, span, d] = total[d]


@kernel
def span_per_program(
    k: Tracer, *arguments: Any, scale: float, heads: int, kv_heads: int, keys: int, **constants: Any
) -> None:
    # partial = sum of e^(s - m) V, extremes = (m, sum of e^(s - m)) over a span of a token's keys
    q, k_cache, v_cache, positions, slots, table, *rest = arguments
    n = 2 if k_cache.dtype in (i8, u8) else 0
    codec = Plain(k_cache, v_cache, *rest[:n])
    m = n + len(constants["extras"])
    extras, written = tuple(rest[n:m]), tuple(rest[m : m + 2])
    attend_part(k, codec, (q, positions, slots, table), extras, written, scale, heads, kv_heads, keys, constants)


def merged(k: Tracer, partial: Array, extremes: Array, sinks: Array | None, total: Array) -> tuple[Value, Value]:
    """total = the spans of a token and head together, divided by their weights. Returns the largest score and the sum."""
    token, head = k.program(0), k.program(1)
    n_spans, v_dim = int(partial.shape[2]), int(partial.shape[3])
    peak, weight = k.var(LOWEST), k.var(0.0)
    for span in k.range(n_spans):
        peak.set(k.maximum(peak.value, extremes[token, head, span, 0]))
    if sinks is not None:
        peak.set(k.maximum(peak.value, sinks[head]))
        weight.set(k.exp(sinks[head] - peak.value))
    for d in k.lanes(v_dim):
        total[d] = 0.0
    for span in k.range(n_spans):
        share = k.exp(extremes[token, head, span, 0] - peak.value)
        weight.set(weight.value + share * extremes[token, head, span, 1])
        for d in k.lanes(v_dim):
            total[d] = k.fma(share, partial[token, head, span, d], total[d])
    inverse = k.select(weight.value == 0.0, 0.0, 1.0 / weight.value)
    for d in k.lanes(v_dim):
        total[d] = total[d] * inverse
    return peak.value, weight.value


def store_sums(k: Tracer, sums: Array, peak: Value, weight: Value) -> None:
    """Stores the log-sum-exp of a token and head; -infinity where no key was visible."""
    none = weight == 0.0
    sums[k.program(0), k.program(1)] = k.select(none, float("-inf"), peak + k.log(k.select(none, 1.0, weight)))


@kernel
def merge_spans(k: Tracer, partial: Array, extremes: Array, *arguments: Any, sinks: bool, lse: bool) -> None:
    # out = sum e^(m_i - M) partial_i / (sum e^(m_i - M) l_i + e^(sink - M)), L = M + ln of that sum
    given, out, *others = arguments if sinks else (None, *arguments)
    v_dim = int(partial.shape[3])
    total = k.scratch(f32, v_dim)
    peak, weight = merged(k, partial, extremes, given, total)
    for d in k.lanes(v_dim):
        out[k.program(0), k.program(1) * v_dim + d] = total[d]
    if lse:
        store_sums(k, others[0], peak, weight)
