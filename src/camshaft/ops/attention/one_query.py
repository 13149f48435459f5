"""The general variant of attention: a program per token and head, for any lane width and head size."""

from __future__ import annotations

from typing import Any

from camshaft.dtypes import f32, i64
from camshaft.lang.kernel import kernel
from camshaft.lang.tracing.tracer import Array, Tracer
from camshaft.ops import op as ops
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.attention.paged import LOWEST, Heads, cache_of, multiply_adds, reads

RATE = 5.0  # multiply-adds per ns, measured on one core of a Zen 4 server (its peak is 59)


@kernel
def one_query_per_program(
    k: Tracer,
    q: Array,
    k_cache: Array,
    v_cache: Array,
    positions: Array,
    slots: Array,
    block_table: Array,
    *rest: Any,
    scale: float,
    **sizes: int,
) -> None:
    # for each block of 16 keys: s = scale q K; m' = max(m, s); p = e^(s - m'); l = e^(m - m') l + sum p; o likewise with p V
    cache, (out, *_) = cache_of(k_cache, v_cache, rest)
    shape = Heads(**sizes)
    token, head, head_dim = k.program(0), k.program(1), shape.head_dim
    kv_head, first = head // shape.group, head * head_dim
    scores, total = k.scratch(f32, BLOCK_TOKENS), k.scratch(f32, head_dim)
    peak, weight = k.var(LOWEST), k.var(0.0)
    n_keys = positions[token].to(i64) + 1
    for d in k.lanes(head_dim):
        total[d] = 0.0
    for base in k.range(0, n_keys, BLOCK_TOKENS):
        block, count = block_table[slots[token], base // BLOCK_TOKENS], k.minimum(n_keys - base, BLOCK_TOKENS)
        for j in k.lanes(count):
            scores[j] = 0.0
        for d in k.range(head_dim):
            x = q[token, first + d] * scale
            for j in k.lanes(count):
                scores[j] = scores[j] + x * cache.key_in_lanes(k, block, kv_head, d, j)
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
                total[d] = total[d] + scores[j] * cache.value_in_lanes(k, block, kv_head, j, d)
        k.barrier()
    for d in k.lanes(head_dim):
        out[token, first + d] = total[d] / weight.value


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    constants = {name: node.attrs[name] for name in ("heads", "kv_heads", "head_dim", "scale")}
    grid = (ops.Cells(node.inputs[0].shape[0]), ops.Cells(node.attrs["heads"]))
    return ops.Build((ops.Launch(one_query_per_program, (*reads(node), ops.write(0)), grid, constants),))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    return multiply_adds(node) / RATE


VARIANT = ops.KernelVariant("one_query_per_program", ops.EVERYWHERE, _build, cost=_cost)
