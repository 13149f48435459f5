"""The variant of attention with options for few tokens: the keys that a token sees are split among programs, then merged.

The products are those of attention/split_kernels.py; what differs is here: a split starts at the token's first key, scores are
changed before they become weights, and the merge adds sinks.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from camshaft.dtypes import i64
from camshaft.lang import Array, Number, Tracer, Value, first_elements, greater, kernel, power_of_two
from camshaft.ops import op as ops
from camshaft.ops.attention import split
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.attention.paged import (
    LOG2_E,
    LOWEST,
    WIDTH,
    Keys,
    arguments_of,
    columns_of,
    inside,
    reads,
    without_options,
)
from camshaft.ops.attention.split_kernels import Shape, Work
from camshaft.ops.masked.kernels import Call, options_of
from camshaft.ops.masked.options import Options
from camshaft.ops.masked.spans import length_of, pairs_of, scratch_of, sinks_of
from camshaft.ops.spec import bound

RATE = 17.0  # multiply-adds per ns, measured on one core of Emerald Rapids with caches in memory


@dataclass(frozen=True)
class RingKeys(Keys):
    """Keys whose block table is a ring."""

    def block(self, index: Number) -> Value:
        """Returns the cache's block number of block `index` of these keys."""
        return self.table[self.slot, (self.base // BLOCK_TOKENS + index) % int(self.table.shape[1])].to(i64)


class MaskedWork(Work):
    """The steps of a program that options change."""

    def __init__(self, k: Tracer, shape: Shape, keys: Keys, call: Call, first_row: Value, first_key: Value) -> None:
        """`first_row` is the head of row 0; keys before `first_key` are not seen."""
        super().__init__(k, shape, keys)
        self.call, self.first_row, self.first_key = call, first_row, first_key

    def weigh(self, row: Value) -> None:
        """Replaces scores[row] by 2^(changed score - maximum), 0 where a key is not seen. Stores the maximum in peaks and the sum
        in weights."""
        k, keys, scores = self.k, self.keys, self.scores
        peaks, weights = k.var(k.splat(LOWEST, WIDTH)), k.var(k.splat(0.0, WIDTH))
        for start in k.range(0, keys.n_blocks * WIDTH, WIDTH):
            score = k.load_vector(scores, row, start, width=WIDTH)
            score = self.call.changed(score, self.first_row + row, keys.base + start)
            score = k.select(first_elements(k, keys.count - start, WIDTH), score, LOWEST)
            score = k.select(first_elements(k, self.first_key - keys.base - start, WIDTH), LOWEST, score)
            k.store_vector(scores, score, row, start)
            peaks.set(greater(k, score, peaks.value))
        peak = k.vector_max(peaks.value)
        for start in k.range(0, keys.n_blocks * WIDTH, WIDTH):
            score = k.load_vector(scores, row, start, width=WIDTH)
            power = k.select(score <= LOWEST, 0.0, power_of_two(k, score - peak))
            k.store_vector(scores, power, row, start)
            weights += power
        self.peaks[row] = peak
        self.weights[row] = k.vector_sum(weights.value)


@kernel
def some_seen_keys_per_program(k: Tracer, *arguments: Any, scale: float, **constants: Any) -> None:
    # as some_keys_per_program, over the keys that the token may see: s = changed scores; nothing seen: extremes = (lowest, 0)
    options = options_of(constants)
    given, shape, n = arguments_of(arguments), Shape(**constants), len(options.extras)
    extras, (partial, extremes, *_) = dict(zip(options.extras, given.rest[:n], strict=True)), given.rest[n:]
    token, first_head, part = k.program(0), k.program(1) * shape.together, k.program(2)
    slot = given.slots[token].to(i64)
    call = Call(k, options, extras, given.table, slot, given.positions[token].to(i64), token)
    first, end = call.bounds()
    base = first // BLOCK_TOKENS * BLOCK_TOKENS + part * shape.keys
    first_row = first_head * shape.group
    with k.when(base >= end):
        for row in k.range(shape.together * shape.group):
            extremes[token, first_row + row, part, 0] = LOWEST
            extremes[token, first_row + row, part, 1] = 0.0
    with k.when(base < end):
        count = k.minimum(end - base, shape.keys)
        make = RingKeys if options.ring else Keys
        keys = make(k, given.cache, given.table, slot, first_head // shape.parts, base, count, shape.ahead)
        MaskedWork(k, shape, keys, call, first_row, first).run(
            given.q, (token, first_head, part), scale, partial, extremes
        )


@kernel
def merge_seen(k: Tracer, partial: Array, extremes: Array, *arguments: Any, v_dim: int, sinks: bool, lse: bool) -> None:
    # out = sum_i 2^(m_i - M) partial_i / (sum_i 2^(m_i - M) l_i + 2^(sink - M)), M = max(m_i, sink); L = M + ln of the divisor
    given, out, *others = arguments if sinks else (None, *arguments)
    token, head = k.program(0), k.program(1)
    peak, weight = k.var(LOWEST), k.var(0.0)
    n_splits = int(partial.shape[2])
    for part in k.range(n_splits):
        peak.set(greater(k, extremes[token, head, part, 0], peak.value))
    if given is not None:
        sink = given[head] * LOG2_E
        peak.set(greater(k, sink, peak.value))
        weight.set(power_of_two(k, sink - peak.value))
    totals = {d: k.var(k.splat(0.0, WIDTH)) for d in columns_of(v_dim)}
    for part in k.range(n_splits):
        with k.when(extremes[token, head, part, 1] != 0.0):  # where nothing is seen, nothing is stored
            share = power_of_two(k, extremes[token, head, part, 0] - peak.value)
            weight += share * extremes[token, head, part, 1]
            for d, total in totals.items():
                total += share * k.load_vector(partial, token, head, part, d, width=WIDTH)
    none = weight.value == 0.0
    divisor = k.select(none, 1.0, weight.value)
    for d, total in totals.items():
        x = total.value * (1.0 / divisor)
        k.store_vector(out, x, token, head * v_dim + d, count=inside(v_dim, d))
    if lse:
        others[0][token, head] = k.select(none, float("-inf"), peak.value * (1.0 / LOG2_E) + k.log(divisor))


def _splits(node: ops.NodeSpec, target: ops.Target) -> tuple[Shape, int]:
    """Returns the sizes of a program, and the number of splits of a token's keys."""
    span = Options.of("attention", node.attrs).span(length_of(node, 5))
    shape = split.shape_for(node, target, span)
    return shape, -(-span // shape.keys)


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not take a node, or None."""
    if without_options(node) is None:
        return "takes attention with options; others are faster without"
    options, tokens = Options.of("attention", node.attrs), bound(node.inputs[0].shape[0])
    if tokens > split.MAX_TOKENS:
        return f"takes at most {split.MAX_TOKENS} tokens; got {tokens}"
    if options.has("prefix") and (options.window or options.chunk):
        return "takes no prefix with a window or chunk"
    return split.refusal_of(_splits(node, target)[0])


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    options, tokens = Options.of("attention", node.attrs), node.inputs[0].shape[0]
    shape, n_splits = _splits(node, target)
    first = ops.Launch(
        some_seen_keys_per_program,
        (*reads(node), ops.scratch(0, "write"), ops.scratch(1, "write")),
        (ops.Cells(tokens), ops.Cells(shape.kv_heads // shape.together), ops.Cells(n_splits)),
        {"scale": node.attrs["scale"], **options.constants(), **asdict(shape)},
    )
    sinks = sinks_of(node, options)
    second = ops.Launch(
        merge_seen,
        (ops.scratch(0, "read"), ops.scratch(1, "read"), *sinks, *(ops.write(i) for i in range(len(node.outputs)))),
        (ops.Cells(tokens), ops.Cells(shape.heads)),
        {"v_dim": shape.v_dim, "sinks": bool(sinks), "lse": options.lse},
    )
    return ops.Build((first, second), scratch_of(node, shape.heads, shape.values.padded, n_splits))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    return pairs_of(node) * (node.inputs[0].bounds[1] + node.outputs[0].bounds[1]) / RATE


VARIANT = ops.KernelVariant("split_with_options", ops.VECTORS, _build, _supports, _cost)
