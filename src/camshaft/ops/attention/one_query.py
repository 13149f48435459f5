"""The general variant of attention: a program per token and head, for any lane width and head size."""

from __future__ import annotations

from typing import Any

from camshaft.dtypes import f32, i32, i64
from camshaft.lang import Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.attention.kv_cache_quantize import GROUP, NIBBLE_ZERO
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.attention.paged import LOWEST, Cache, Heads, arguments_of, multiply_adds, reads, without_options

RATE = 5.0  # multiply-adds per ns, measured on one core of a Zen 4 server (its peak is 59)


@kernel
def one_query_per_program(k: Tracer, *arguments: Any, scale: float, **sizes: int) -> None:
    # for each block of 16 keys: s = scale q K; m' = max(m, s); p = e^(s - m'); l = e^(m - m') l + sum p; o likewise with p V
    given = arguments_of(arguments)
    q, cache, out = given.q, given.cache, given.rest[0]
    shape = Heads(**sizes)
    token, head, head_dim = k.program(0), k.program(1), shape.head_dim
    kv_head, first = head // shape.group, head * head_dim
    scores, total = k.scratch(f32, BLOCK_TOKENS), k.scratch(f32, head_dim)
    peak, weight = k.var(LOWEST), k.var(0.0)
    n_keys = given.positions[token].to(i64) + 1
    for d in k.lanes(head_dim):
        total[d] = 0.0
    for base in k.range(0, n_keys, BLOCK_TOKENS):
        block, count = given.table[given.slots[token], base // BLOCK_TOKENS], k.minimum(n_keys - base, BLOCK_TOKENS)
        for j in k.lanes(count):
            scores[j] = 0.0
        for d in k.range(head_dim):
            x = q[token, first + d] * scale
            for j in k.lanes(count):
                scores[j] = scores[j] + x * _key(cache, block, kv_head, d, j)
        greatest, added = k.accumulator("max"), k.accumulator("sum")
        for j in k.lanes(count):
            greatest.combine(scores[j])
        new_peak = k.maximum(peak.value, k.lanes_max(greatest))
        shrink = k.exp(peak.value - new_peak)
        for j in k.lanes(count):
            scores[j] = k.exp(scores[j] - new_peak)
            added += scores[j]
        weight.set(weight.value * shrink + k.lanes_sum(added))
        peak.set(new_peak)
        k.barrier()
        for d in k.lanes(head_dim):
            total[d] = total[d] * shrink
        for j in k.range(count):
            for d in k.lanes(head_dim):
                total[d] = total[d] + scores[j] * _value(k, cache, block, kv_head, j, d)
        k.barrier()
    for d in k.lanes(head_dim):
        out[token, first + d] = total[d] / weight.value


def _key(cache: Cache, block: Value, head: Value, d: Value, j: Value) -> Value:
    """Loads component d of keys j, with lanes over j."""
    if cache.key_scales is None:
        return cache.keys[block, head, d, j]
    code = cache.keys[block, head, _stored(cache, d), j]
    return _decoded(cache, code, d) * cache.key_scales[block, head, d // GROUP, j]


def _value(k: Tracer, cache: Cache, block: Value, head: Value, j: Value, d: Value) -> Value:
    """Loads columns d of key j's value, with lanes over d."""
    if cache.value_scales is None:
        return cache.values[block, head, j, d]
    code = k.gather(cache.values, block, head, j, _stored(cache, d))
    return _decoded(cache, code, d) * k.gather(cache.value_scales, block, head, d // GROUP, j)


def _stored(cache: Cache, d: Value) -> Value:
    """Returns the index of an element's code."""
    return d // GROUP * (GROUP // 2) + d % (GROUP // 2) if cache.has_nibbles else d


def _decoded(cache: Cache, code: Value, d: Value) -> Value:
    """Converts a code to f32, without its scale."""
    if not cache.has_nibbles:
        return code.to(f32)
    shift = (d // (GROUP // 2) % 2 * 4).to(i32)
    return (((code.to(i32) >> shift) & 15) - NIBBLE_ZERO).to(f32)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    constants = {name: node.attrs[name] for name in ("heads", "kv_heads", "head_dim", "scale")}
    grid = (ops.Cells(node.inputs[0].shape[0]), ops.Cells(node.attrs["heads"]))
    return ops.Build((ops.Launch(one_query_per_program, (*reads(node), ops.write(0)), grid, constants),))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    return multiply_adds(node) / RATE


VARIANT = ops.KernelVariant("one_query_per_program", ops.EVERYWHERE, _build, without_options, _cost)
