"""State space models over the rows of slots: selective_scan_slots (Mamba 1) and ssd_slots (Mamba 2).

Mamba 1 (Gu and Dao, 2023) has a state of N numbers per channel: h = exp(s a) h + s x B; y = C . h + D x. Mamba 2 (Dao and Gu,
2024) has one decay per head of P channels: S = exp(s a) S + outer(B, s x); y = C.T S + D x. The step is s = softplus(dt + bias),
a is negative. States are [slots, N, C] and [slots, H, N, P], their last axis in blocks (layout.py): a vector has channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.parameters import Attribute
from camshaft.ops.recurrent.state_layout import WIDTH, from_blocks, in_blocks
from camshaft.ops.slot_states.frame import (
    Sizes,
    SlotColumns,
    SlotOp,
    columns_grid,
    expect_blocks,
    expect_groups,
    heads_build,
    slot_op,
    softplus,
    state_flops,
)


@kernel
def scan_of_slot(
    k: Tracer, x: Array, dt: Array, b: Array, c: Array, a: Array, d: Array, bias: Array, state: Array, rows: Array,
    out: Array, *, channels: int, size: int,
) -> None:  # fmt: skip
    # h = exp(s a) h + s x B; y = C . h + D x, s = softplus(dt + bias), of 16 or 64 channels
    s = SlotColumns(k, channels)
    first, (begin, end) = s.first_row(size), s.span(rows)
    s.clear(state, first, size, rows)
    skip, added = s.load(d, 0), s.load(bias, 0)
    for t in k.range(begin, end):
        values = s.load(x, t)
        steps = [softplus(k, y + z) for y, z in zip(s.load(dt, t), added, strict=True)]
        into, totals = [y * z for y, z in zip(steps, values, strict=True)], s.zeros()
        for n in k.range(size):
            key, decays = k.splat(b[t, n], WIDTH), [k.exp(y * z) for y, z in zip(s.load(a, n), steps, strict=True)]
            old = s.load_state(state, first + n)
            new = [k.fma(key, y, decay * z) for y, decay, z in zip(into, decays, old, strict=True)]
            s.add(totals, c[t, n], new)
            s.store_state(state, first + n, new)
        s.store(out, t, [k.fma(y, z, total.value) for y, z, total in zip(skip, values, totals, strict=True)])


@kernel
def ssd_of_slot(
    k: Tracer, xbc: Array, dt: Array, a: Array, d: Array, bias: Array, state: Array, rows: Array, out: Array,
    *, groups: int, heads: int, key_size: int, value_size: int,
) -> None:  # fmt: skip
    # S = exp(s a) S + outer(B, s x); y = C.T S + D x, s = softplus(dt + bias), per head
    s = SlotColumns(k, value_size, heads)
    head, first, (begin, end) = s.head, s.first_row(key_size), s.span(rows)
    group = head // (heads // groups)
    of_b = group * key_size + heads * value_size
    s.clear(state, first, key_size, rows)
    for t in k.range(begin, end):
        step = softplus(k, dt[t, head] + bias[head])
        values, wide, decay = (
            s.load(xbc, t, head * value_size),
            k.splat(step, WIDTH),
            k.splat(k.exp(step * a[head]), WIDTH),
        )
        into, totals = [wide * x for x in values], s.zeros()
        for n in k.range(key_size):
            key, old = k.splat(xbc[t, of_b + n], WIDTH), s.load_state(state, first + n)
            new = [k.fma(key, x, decay * y) for x, y in zip(into, old, strict=True)]
            s.add(totals, xbc[t, of_b + groups * key_size + n], new)
            s.store_state(state, first + n, new)
        skip = k.splat(d[head], WIDTH)
        s.store(out, t, [k.fma(skip, x, y.value) for x, y in zip(values, totals, strict=True)], head * value_size)


def _build_scan(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    slots, blocks, size, columns = node.inputs[7].bounds
    channels, n_rows = blocks * columns, slots * blocks * size
    rows = (ops.read(i, shape=(1, channels)) for i in (5, 6))
    arrays = (*(ops.read(i) for i in range(5)), *rows, ops.update(7, shape=(n_rows, columns)), ops.read(8))
    sizes = {"channels": channels, "size": size}
    return ops.Build((ops.Launch(scan_of_slot, (*arrays, ops.write(0)), columns_grid(slots, channels), sizes),))


def _build_ssd(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    return heads_build(node, ssd_of_slot, (ops.read(i) for i in range(5)), 5, groups=node.attrs["groups"])


def _ssd_sizes(found: Sizes, attrs: ops.Attrs) -> Sizes:
    groups = expect_groups("ssd_slots", found, attrs)
    inner = found["H"] * expect_blocks("ssd_slots", found)
    width = inner + 2 * groups * found["N"]
    ops.expect(
        found["W"] == width, "ssd_slots", f"xbc of {found['W']} columns", f"{width}: H P + 2 G N, of H P {inner}"
    )
    return {**found, "O": inner}


def _scan_sizes(found: Sizes, attrs: ops.Attrs) -> Sizes:
    columns = expect_blocks("selective_scan_slots", found)
    ops.expect(columns == found["C"], "selective_scan_slots", f"a state of {columns} columns", f"{found['C']}, C")
    return found


def _scan(x: Any, dt: Any, b: Any, c: Any, a: Any, d: Any, bias: Any, state: Any) -> tuple[Any, Any]:
    steps, h, out = np.logaddexp(0, dt + bias), from_blocks(state), np.zeros(x.shape)
    for t in range(len(x)):
        h = np.exp(steps[t] * a) * h + np.outer(b[t], steps[t] * x[t])
        out[t] = c[t] @ h + d * x[t]
    return out, in_blocks(h)


def _ssd(xbc: Any, dt: Any, a: Any, d: Any, bias: Any, state: Any, *, groups: int) -> tuple[Any, Any]:
    state = from_blocks(state)
    heads, size, channels = state.shape
    x, b, c = np.split(xbc, [heads * channels, heads * channels + groups * size], axis=1)
    order = np.arange(heads) // (heads // groups)
    x, b, c = (
        x.reshape(len(x), heads, -1),
        b.reshape(len(x), groups, -1)[:, order],
        c.reshape(len(x), groups, -1)[:, order],
    )
    steps, out = np.logaddexp(0, dt + bias), np.zeros(x.shape)
    for t in range(len(x)):
        added = b[t][:, :, None] * (steps[t][:, None] * x[t])[:, None]
        state = np.exp(steps[t] * a)[:, None, None] * state + added
        out[t] = np.einsum("hn,hnp->hp", c[t], state) + d[:, None] * x[t]
    return out.reshape(len(x), -1), in_blocks(state)


_DRAWS = {"a": lambda rng, shape: -np.exp(rng.normal(size=shape))}
_SCAN = SlotOp(
    "selective_scan_slots",
    {"x": "TC", "dt": "TC", "b": "TN", "c": "TN", "a": "NC", "d": "C", "bias": "C", "state": "SBNV", "rows": "S3"},
    "TC",
    _scan_sizes,
    _scan,
    [({"C": 17, "N": 5, "B": 1, "V": 17}, {}), ({"C": 128, "N": 16, "B": 2, "V": 64}, {})],
    draws=_DRAWS,
)
_SSD = SlotOp(
    "ssd_slots",
    {"xbc": "TW", "dt": "TH", "a": "H", "d": "H", "bias": "H", "state": "SHBNV", "rows": "S3"},
    "TO",
    _ssd_sizes,
    _ssd,
    [
        ({"W": 60, "H": 4, "N": 5, "B": 1, "V": 10}, {"groups": 2}),
        ({"W": 288, "H": 2, "N": 16, "B": 2, "V": 64}, {"groups": 1}),
    ],
    (Attribute("groups", "int"),),
    _DRAWS,
)


OPS = {
    "selective_scan_slots": slot_op(
        _SCAN,
        "h = exp(s a) h + s x B; y = C . h + D x, s = softplus(dt + bias), h of the slot",
        _build_scan,
        flops=state_flops(7, 7.0),
    ),
    "ssd_slots": slot_op(
        _SSD,
        "S = exp(s a) S + outer(B, s x); y = C.T S + D x, s = softplus(dt + bias), S of the slot",
        _build_ssd,
        flops=state_flops(5, 5.0),
    ),
}
