"""Attention with a token's head per program, in lanes: right at any width and head size, and slow. A variant of ops/attention."""

from __future__ import annotations

from camshaft.dtypes import f32, i64
from camshaft.lang.kernel import kernel
from camshaft.lang.tracer import Array, Tracer
from camshaft.ops import op as ops
from camshaft.ops.kv_cache_update import BLOCK_TOKENS

LOWEST = -3.0e38


@kernel
def one_query_per_program(
    k: Tracer,
    q: Array,
    k_cache: Array,
    v_cache: Array,
    positions: Array,
    slots: Array,
    block_table: Array,
    out: Array,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
) -> None:
    # for each block of 16 keys: s = scale q K; m' = max(m, s); p = e^(s - m'); l = e^(m - m') l + sum p; o likewise with p V
    token, head = k.program(0), k.program(1)
    kv_head, first = head // (heads // kv_heads), head * head_dim
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
                scores[j] = scores[j] + x * k_cache[block, kv_head, d, j]
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
                total[d] = total[d] + scores[j] * v_cache[block, kv_head, j, d]
        k.barrier()
    for d in k.lanes(head_dim):
        out[token, first + d] = total[d] / weight.value


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """A program per token and head."""
    arrays = (*(ops.read(i) for i in range(6)), ops.write(0))
    constants = {name: node.attrs[name] for name in ("heads", "kv_heads", "head_dim", "scale")}
    grid = (ops.Cells(node.inputs[0].shape[0]), ops.Cells(node.attrs["heads"]))
    return ops.Build((ops.Launch(one_query_per_program, arrays, grid, constants),))
