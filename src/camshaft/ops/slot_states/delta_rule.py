"""gated_delta_slots: the gated delta rule over the rows of slots, from a layer's projections (Yang et al., 2024).

Per head of values a state S [K, V], its columns in blocks (layout.py): S = exp(g) S; d = beta (v - k.T S); S += outer(k, d);
o = q.T S / sqrt(K), of q and k of unit length, with g = a softplus(alpha + dt) and beta = sigmoid(beta).

A row of `qkv` has G heads of queries, G of keys and H of values. Runs of H / G heads of values share one of keys, or with `tiled`
those h that have an equal h % G.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.parameters import Attribute
from camshaft.ops.recurrent.columns import inverse_length
from camshaft.ops.recurrent.delta_rule import gated_delta
from camshaft.ops.recurrent.state_layout import WIDTH, from_blocks, in_blocks
from camshaft.ops.slot_states.frame import (
    Sizes,
    SlotColumns,
    SlotOp,
    expect_blocks,
    expect_groups,
    heads_build,
    slot_op,
    softplus,
    state_flops,
)


@kernel
def delta_of_slot(
    k: Tracer, qkv: Array, alpha: Array, beta: Array, a: Array, dt: Array, state: Array, rows: Array, out: Array,
    *, groups: int, heads: int, key_size: int, value_size: int, tiled: bool,
) -> None:  # fmt: skip
    # S = exp(g) S; d = beta (v - k.T S); S += outer(k, d); o = q.T S / sqrt(K)
    s = SlotColumns(k, value_size, heads)
    head, first, (begin, end) = s.head, s.first_row(key_size), s.span(rows)
    group = head % groups if tiled else head // (heads // groups)
    of_q, of_k, of_v = group * key_size, (group + groups) * key_size, head * value_size + 2 * groups * key_size
    s.clear(state, first, key_size, rows)
    for t in k.range(begin, end):
        decay = k.exp(a[head] * softplus(k, alpha[t, head] + dt[head]))
        rate = 1.0 / (1.0 + k.exp(-beta[t, head]))
        query, key = (inverse_length(k, qkv, t, key_size, at) for at in (of_q, of_k))
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


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    arrays, tiled = (ops.read(i) for i in range(5)), bool(node.attrs.get("tiled", False))
    return heads_build(node, delta_of_slot, arrays, 5, groups=node.attrs["groups"], tiled=tiled)


def _sizes(found: Sizes, attrs: ops.Attrs) -> Sizes:
    groups, heads = expect_groups("gated_delta_slots", found, attrs), found["H"]
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
    flops=state_flops(5, 8.0),
)
