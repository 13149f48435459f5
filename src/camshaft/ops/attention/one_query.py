"""The general variant of attention: a program per token and head, for any lane width and head size."""

from __future__ import annotations

from dataclasses import dataclass

from camshaft.dtypes import f32, i64
from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.attention.paged import Cache, is_quantized
from camshaft.ops.attention.registers import LOWEST


@dataclass(frozen=True)
class _Sizes:
    heads: int
    kv_heads: int
    head_dim: int


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
    scale: float,
    **sizes: int,
) -> None:
    _one_query(k, (q, out), Cache(k_cache, v_cache), (positions, slots, block_table), scale, _Sizes(**sizes))


@kernel
def one_query_of_quantized_per_program(
    k: Tracer,
    q: Array,
    k_codes: Array,
    v_codes: Array,
    positions: Array,
    slots: Array,
    block_table: Array,
    k_scales: Array,
    v_scales: Array,
    out: Array,
    *,
    scale: float,
    **sizes: int,
) -> None:
    cache = Cache(k_codes, v_codes, k_scales, v_scales)
    _one_query(k, (q, out), cache, (positions, slots, block_table), scale, _Sizes(**sizes))


def _one_query(
    k: Tracer,
    rows: tuple[Array, Array],
    cache: Cache,
    places: tuple[Array, Array, Array],
    scale: float,
    sizes: _Sizes,
) -> None:
    # for each block of 16 keys: s = scale q K; m' = max(m, s); p = e^(s - m'); l = e^(m - m') l + sum p; o likewise with p V
    (q, out), (positions, slots, table), head_dim = rows, places, sizes.head_dim
    token, head = k.program(0), k.program(1)
    kv_head, first = head // (sizes.heads // sizes.kv_heads), head * head_dim
    scores, total = k.scratch(f32, BLOCK_TOKENS), k.scratch(f32, head_dim)
    peak, weight = k.var(LOWEST), k.var(0.0)
    n_keys = positions[token].to(i64) + 1
    for d in k.lanes(head_dim):
        total[d] = 0.0
    for base in k.range(0, n_keys, BLOCK_TOKENS):
        block, count = table[slots[token], base // BLOCK_TOKENS], k.minimum(n_keys - base, BLOCK_TOKENS)
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


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds a launch with a program per token and head."""
    arrays = (*(ops.read(i) for i in range(len(node.inputs))), ops.write(0))
    constants = {name: node.attrs[name] for name in ("heads", "kv_heads", "head_dim", "scale")}
    grid = (ops.Cells(node.inputs[0].shape[0]), ops.Cells(node.attrs["heads"]))
    kernel = one_query_of_quantized_per_program if is_quantized(node) else one_query_per_program
    return ops.Build((ops.Launch(kernel, arrays, grid, constants),))
