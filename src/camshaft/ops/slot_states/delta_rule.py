"""gated_delta_slots: the gated delta rule over the rows of slots, from a layer's projections (Yang et al., 2024).

Per head of values a state S [K, V], its columns in blocks (layout.py): S = exp(g) S; d = beta (v - k.T S); S += outer(k, d);
o = q.T S / sqrt(K), of q and k of unit length, with g = a softplus(alpha + dt) and beta = sigmoid(beta).

A row of `qkv` has G heads of queries, G of keys and H of values. Runs of H / G heads of values share one of keys, or with `tiled`
those h that have an equal h % G.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.parameters import Attribute
from camshaft.ops.recurrent.delta_rule import gated_delta
from camshaft.ops.recurrent.tokens import NORM_EPS
from camshaft.ops.slot_states.frame import Columns, Sizes, SlotOp, columns_grid, expect_blocks, slot_op, softplus
from camshaft.ops.slot_states.layout import WIDTH, from_blocks, in_blocks


@kernel
def delta_of_slot(
    k: Tracer, qkv: Array, alpha: Array, beta: Array, a: Array, dt: Array, state: Array, rows: Array, out: Array,
    *, groups: int, heads: int, key_size: int, value_size: int, tiled: bool,
) -> None:  # fmt: skip
    # S = exp(g) S; d = beta (v - k.T S); S += outer(k, d); o = q.T S / sqrt(K)
    s = Columns(k, value_size, heads)
    head, first, (begin, end) = s.head, s.first_row(key_size), s.span(rows)
    group = head % groups if tiled else head // (heads // groups)
    of_q, of_k, of_v = group * key_size, (group + groups) * key_size, head * value_size + 2 * groups * key_size
    s.clear(state, first, key_size, rows)
    for t in k.range(begin, end):
        decay = k.exp(a[head] * softplus(k, alpha[t, head] + dt[head]))
        rate = 1.0 / (1.0 + k.exp(-beta[t, head]))
        query, key = (_inverse_length(k, qkv, t, at, key_size) for at in (of_q, of_k))
        found = s.zeros()
        for d in k.range(key_size):
            s.add(found, qkv[t, of_k + d], s.load_state(state, first + d))
        wide, seen = k.splat(rate, WIDTH), k.splat(decay * key, WIDTH)
        change = [wide * (v - seen * x.value) for v, x in zip(s.load(qkv, t, of_v), found, strict=True)]
        total, kept = s.zeros(), k.splat(decay, WIDTH)
        for d in k.range(key_size):
            part = k.splat(qkv[t, of_k + d] * key, WIDTH)
            new = [k.fma(part, x, kept * y) for x, y in zip(change, s.load_state(state, first + d), strict=True)]
            s.add(total, qkv[t, of_q + d], new)
            s.store_state(state, first + d, new)
        scale = k.splat(query * key_size**-0.5, WIDTH)
        s.store(out, t, [scale * x.value for x in total], head * value_size)


def _inverse_length(k: Tracer, array: Array, row: Value, first: Value, n: int) -> Value:
    """1 / sqrt(x . x + eps) of n columns of a row."""
    total = k.var(k.splat(0.0, WIDTH))
    for d in k.range(0, n, WIDTH):
        count = None if n % WIDTH == 0 else n - d
        x = k.load_vector(array, row, first + d, width=WIDTH, count=count)
        total.set(k.fma(x, x, total.value))
    return k.rsqrt(k.vector_sum(total.value) + NORM_EPS)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    slots, heads, blocks, keys, columns = node.inputs[5].bounds
    values, n_rows = blocks * columns, slots * heads * blocks * keys
    arrays = (*(ops.read(i) for i in range(5)), ops.update(5, shape=(n_rows, columns)), ops.read(6))
    constants = {"groups": node.attrs["groups"], "heads": heads, "key_size": keys, "value_size": values}
    constants["tiled"] = bool(node.attrs.get("tiled", False))
    grid = columns_grid(slots, values, heads)
    return ops.Build((ops.Launch(delta_of_slot, (*arrays, ops.write(0)), grid, constants),))


def _sizes(found: Sizes, attrs: ops.Attrs) -> Sizes:
    groups, heads = attrs.get("groups", 0), found["H"]
    good = groups > 0 and heads % groups == 0
    ops.expect(good, "gated_delta_slots", (heads, groups), "heads H a multiple of the groups, both above 0")
    values = expect_blocks("gated_delta_slots", found)
    width = 2 * groups * found["K"] + heads * values
    ops.expect(
        found["W"] == width, "gated_delta_slots", f"qkv of {found['W']} columns", f"{width}: 2 G K + H V, of V {values}"
    )
    return {**found, "O": heads * values}


def _compute(
    qkv: Any, alpha: Any, beta: Any, a: Any, dt: Any, state: Any, *, groups: int, tiled: bool = False
) -> tuple[Any, Any]:
    state = from_blocks(state)
    heads, keys, values = state.shape
    q, k, v = np.split(qkv, [groups * keys, 2 * groups * keys], axis=1)
    q, k = (x.reshape(len(qkv), groups, keys) for x in (q, k))
    order = np.arange(heads) % groups if tiled else np.arange(heads) // (heads // groups)
    g, rate = a * np.logaddexp(0, alpha + dt), 1 / (1 + np.exp(-beta))
    q, k, v, g, rate = (x[None] for x in (q[:, order], k[:, order], v.reshape(len(qkv), heads, values), g, rate))
    y, after = gated_delta(q, k, v, g, rate, state[None], None, True)
    return y[0].reshape(len(qkv), -1), in_blocks(after[0])


_ROW = SlotOp(
    "gated_delta_slots",
    {"qkv": "TW", "alpha": "TH", "beta": "TH", "a": "H", "dt": "H", "state": "SHBKV", "rows": "S3"},
    "TO",
    _sizes,
    _compute,
    [
        ({"W": 54, "H": 3, "K": 12, "B": 1, "V": 10}, {"groups": 1}),
        ({"W": 576, "H": 4, "K": 16, "B": 2, "V": 64}, {"groups": 2, "tiled": True}),
    ],
    (Attribute("groups", "int"), Attribute("tiled", "bool", False)),
    {"a": lambda rng, shape: -np.exp(rng.normal(size=shape))},
)
OP = slot_op(
    _ROW,
    "S = exp(a softplus(alpha + dt)) S; S += outer(k, sigmoid(beta) (v - k.T S)); o = q.T S / sqrt(K), S of the slot",
    _build,
    flops=lambda node: 8.0 * node.inputs[0].bounds[0] * float(np.prod(node.inputs[5].bounds[1:])),
)
