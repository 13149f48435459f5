"""Recurrences over the rows of slots whose states decay by one factor per element of a key: RWKV-6's, RWKV-7's, Kimi's.

Per head a state S [K, V], its columns in blocks (layout.py). dplr_slots has a diagonal plus a matrix of rank one as transition:
S = diag(w) S + outer(b, a.T S) + outer(k, v); o = r.T S. That is RWKV-7 (Peng et al., 2025), and with a = -w k and b = beta k,
and beta k in place of k, the delta rule with a decay per channel of Kimi Linear (2025). rwkv6_slots (Peng et al., 2024) gives
a token's own part another weight u: o = r.T (S + diag(u) outer(k, v)); S = diag(w) S + outer(k, v). Decays w are above 0, at
most 1. r, w, k, a and b are [T, H K], v [T, H V], u [H K].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.recurrent.state_layout import WIDTH, from_blocks, in_blocks
from camshaft.ops.slot_states.frame import Sizes, SlotColumns, SlotOp, expect_blocks, heads_build, slot_op, state_flops


@kernel
def dplr_of_slot(
    k: Tracer, r: Array, w: Array, key: Array, v: Array, a: Array, b: Array, state: Array, rows: Array, out: Array,
    *, heads: int, key_size: int, value_size: int,
) -> None:  # fmt: skip
    # S = diag(w) S + outer(b, a.T S) + outer(k, v); o = r.T S
    s = SlotColumns(k, value_size, heads)
    first, (begin, end) = s.first_row(key_size), s.span(rows)
    of_keys, of_values = s.head * key_size, s.head * value_size
    s.clear(state, first, key_size, rows)
    for t in k.range(begin, end):
        found, total, values = s.zeros(), s.zeros(), s.load(v, t, of_values)
        for d in k.range(key_size):
            s.add(found, a[t, of_keys + d], s.load_state(state, first + d))
        seen = [x.value for x in found]
        for d in k.range(key_size):
            decay, into, own = (k.splat(x[t, of_keys + d], WIDTH) for x in (w, b, key))
            new = [
                k.fma(own, value, k.fma(into, y, decay * old))
                for value, y, old in zip(values, seen, s.load_state(state, first + d), strict=True)
            ]
            s.add(total, r[t, of_keys + d], new)
            s.store_state(state, first + d, new)
        s.store(out, t, [x.value for x in total], of_values)


@kernel
def rwkv6_of_slot(
    k: Tracer, r: Array, w: Array, key: Array, v: Array, u: Array, state: Array, rows: Array, out: Array,
    *, heads: int, key_size: int, value_size: int,
) -> None:  # fmt: skip
    # o = r.T (S + diag(u) outer(k, v)); S = diag(w) S + outer(k, v)
    s = SlotColumns(k, value_size, heads)
    first, (begin, end) = s.first_row(key_size), s.span(rows)
    of_keys, of_values = s.head * key_size, s.head * value_size
    s.clear(state, first, key_size, rows)
    for t in k.range(begin, end):
        total, values = s.zeros(), s.load(v, t, of_values)
        for d in k.range(key_size):
            own, decay = k.splat(key[t, of_keys + d], WIDTH), k.splat(w[t, of_keys + d], WIDTH)
            bonus, old = k.splat(u[0, of_keys + d], WIDTH), s.load_state(state, first + d)
            added = [own * value for value in values]
            s.add(total, r[t, of_keys + d], [k.fma(bonus, x, y) for x, y in zip(added, old, strict=True)])
            s.store_state(state, first + d, [k.fma(decay, y, x) for x, y in zip(added, old, strict=True)])
        s.store(out, t, [x.value for x in total], of_values)


def _build_dplr(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    return heads_build(node, dplr_of_slot, (ops.read(i) for i in range(6)), 6)


def _build_six(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    bonus = ops.read(4, shape=(1, node.inputs[4].bounds[0]))
    return heads_build(node, rwkv6_of_slot, (*(ops.read(i) for i in range(4)), bonus), 5)


def _sizes_of(op: str) -> Any:
    def sizes(found: Sizes, attrs: ops.Attrs) -> Sizes:
        values = expect_blocks(op, found)
        wanted = {"W": found["H"] * found["K"], "O": found["H"] * values}
        came = f"rows of {found['W']} and {found['O']} columns"
        good = all(found[axis] == n for axis, n in wanted.items())
        ops.expect(good, op, came, f"H K = {wanted['W']} of keys and H V = {wanted['O']} of values")
        return found

    return sizes


def _heads(x: Any, heads: int) -> Any:
    return x.reshape(len(x), heads, -1)


def _dplr(r: Any, w: Any, k: Any, v: Any, a: Any, b: Any, state: Any) -> tuple[Any, Any]:
    s, out = from_blocks(state), []
    r, w, k, v, a, b = (_heads(x, len(s)) for x in (r, w, k, v, a, b))
    for t in range(len(r)):
        seen = np.einsum("hk,hkv->hv", a[t], s)
        s = w[t][..., None] * s + b[t][..., None] * seen[:, None] + k[t][..., None] * v[t][:, None]
        out.append(np.einsum("hk,hkv->hv", r[t], s).ravel())
    return np.array(out), in_blocks(s)


def _six(r: Any, w: Any, k: Any, v: Any, u: Any, state: Any) -> tuple[Any, Any]:
    s, out = from_blocks(state), []
    r, w, k, v = (_heads(x, len(s)) for x in (r, w, k, v))
    for t in range(len(r)):
        added = k[t][..., None] * v[t][:, None]
        out.append(np.einsum("hk,hkv->hv", r[t], s + u.reshape(r[t].shape)[..., None] * added).ravel())
        s = w[t][..., None] * s + added
    return np.array(out), in_blocks(s)


_KEYS = {"r": "TW", "w": "TW", "k": "TW", "v": "TO"}
_STATE = {"state": "SHBKV", "rows": "S3"}
_SAMPLES: list[tuple[Sizes, ops.Attrs]] = [
    ({"W": 15, "O": 30, "H": 3, "K": 5, "B": 1, "V": 10}, {}),
    ({"W": 32, "O": 256, "H": 2, "K": 16, "B": 2, "V": 64}, {}),
]
_DRAWS = {"w": lambda rng, shape: np.exp(-np.exp(rng.normal(size=shape)))}
_DRAWS |= {name: lambda rng, shape: rng.normal(size=shape) / 4 for name in "kab"}


OPS = {
    "dplr_slots": slot_op(
        SlotOp(
            "dplr_slots", _KEYS | {"a": "TW", "b": "TW"} | _STATE, "TO", _sizes_of("dplr_slots"), _dplr, _SAMPLES,
            draws=_DRAWS,
        ),
        "S = diag(w) S + outer(b, a.T S) + outer(k, v); o = r.T S, S of the slot",
        _build_dplr,
        flops=state_flops(6, 9.0),
    ),
    "rwkv6_slots": slot_op(
        SlotOp("rwkv6_slots", _KEYS | {"u": "W"} | _STATE, "TO", _sizes_of("rwkv6_slots"), _six, _SAMPLES, draws=_DRAWS),
        "o = r.T (S + diag(u) outer(k, v)); S = diag(w) S + outer(k, v), S of the slot",
        _build_six,
        flops=state_flops(5, 7.0),
    ),
}  # fmt: skip
