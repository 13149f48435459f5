"""Causal depthwise convolutions over the rows of slots, whose last rows stay in the slot's state.

conv_slots: y[t, c] = silu(sum_j w[j, c] x[t + j - (J - 1), c] + bias[c]), with the slot's J - 1 rows of before.
short_conv_slots is LFM2's, of the three parts of a row: y = c conv(b x).
"""

from __future__ import annotations

from typing import Any

from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.parameters import Attribute
from camshaft.ops.recurrent.convolution import convolved
from camshaft.ops.recurrent.state_layout import WIDTH
from camshaft.ops.slot_states.frame import FRESH, Sizes, SlotColumns, SlotOp, columns_grid, slot_op


@kernel
def rows_of_slot(
    k: Tracer, x: Array, w: Array, state: Array, rows: Array, *rest: Array, channels: int, taps: int, silu: bool,
    gated: bool,
) -> None:  # fmt: skip
    # y[t, c] = act(sum_j w[j, c] x[t + j - (taps - 1), c] + bias[c]); the last taps - 1 rows stay in registers
    bias, out = rest[0] if len(rest) > 1 else None, rest[-1]
    s = SlotColumns(k, channels)
    first, end = s.span(rows)
    with k.when(first < end):
        before = [s.zeros() for _ in range(taps - 1)]
        with k.when(rows[s.slot, FRESH] == 0):
            for j, past in enumerate(before):
                _set(past, s.load(state, s.slot * (taps - 1) + j))
        weights = [s.load(w, j) for j in range(taps)]
        for t in k.range(first, end):
            new = s.load(x, t, 2 * channels if gated else 0)
            if gated:
                new = [a * b for a, b in zip(new, s.load(x, t), strict=True)]
            totals = [k.splat(0.0, WIDTH) for _ in new] if bias is None else s.load(bias, 0)
            seen = [*([v.value for v in past] for past in before), new]
            for weight, row in zip(weights, seen, strict=True):
                totals = [k.fma(a, b, total) for a, b, total in zip(weight, row, totals, strict=True)]
            if gated:
                totals = [a * b for a, b in zip(totals, s.load(x, t, channels), strict=True)]
            s.store(out, t, [y / (1.0 + k.exp(-y)) if silu else y for y in totals])
            for past, following in zip(before, seen[1:], strict=True):
                _set(past, following)
        for j, past in enumerate(before):
            s.store(state, s.slot * (taps - 1) + j, [v.value for v in past])


def _set(variables: Any, values: list[Value]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.set(value)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    (tokens, width), (taps, channels) = node.inputs[0].bounds, node.inputs[1].bounds
    slots = node.inputs[2].bounds[0]
    arrays = [ops.read(0, shape=(tokens, width)), ops.read(1), ops.update(2, shape=(slots * (taps - 1), channels))]
    arrays += [ops.read(3), *(ops.read(i, shape=(1, channels)) for i in range(4, len(node.inputs)))]
    silu = node.attrs.get("activation", "none") == "silu"
    constants = {"channels": channels, "taps": taps, "silu": silu, "gated": width != channels}
    grid = columns_grid(slots, channels)
    return ops.Build((ops.Launch(rows_of_slot, (*arrays, ops.write(0)), grid, constants),))


def _sizes(op: str, parts: int) -> Any:
    def sizes(found: Sizes, attrs: ops.Attrs) -> Sizes:
        activation = attrs.get("activation", "none")
        ops.expect(activation in ("silu", "none"), op, f"activation {activation!r}", "activation silu or none")
        wanted = f"J, the weights of a channel, above 1, a state of J - 1 rows, and x of {parts} C columns"
        came = f"J {found['J']}, {found['R']} rows, {found['W']} columns of {found['C']}"
        good = found["R"] == found["J"] - 1 and found["W"] == parts * found["C"]
        ops.expect(good, op, came, wanted)
        return found

    return sizes


def _conv(x: Any, w: Any, state: Any, bias: Any = None, activation: str = "none") -> tuple[Any, Any]:
    y, after = convolved(x[None], w.T, state[None], bias, activation)
    return y[0], after[0]


def _short(x: Any, w: Any, state: Any) -> tuple[Any, Any]:
    n = w.shape[1]
    y, after = _conv(x[:, :n] * x[:, 2 * n :], w, state)
    return x[:, n : 2 * n] * y, after


_INPUTS = {"x": "TW", "w": "JC", "state": "SRC", "rows": "S3"}
_CONV = SlotOp(
    "conv_slots",
    {**_INPUTS, "*bias": "C"},
    "TC",
    _sizes("conv_slots", 1),
    _conv,
    [
        ({"W": 17, "C": 17, "J": 4, "R": 3}, {"activation": "silu"}),
        ({"W": 64, "C": 64, "J": 4, "R": 3}, {}),
    ],
    (Attribute("activation", "str", "none"),),
)
_SHORT = SlotOp(
    "short_conv_slots",
    _INPUTS,
    "TC",
    _sizes("short_conv_slots", 3),
    _short,
    [({"W": 51, "C": 17, "J": 3, "R": 2}, {}), ({"W": 192, "C": 64, "J": 3, "R": 2}, {})],
)


def _flops(node: ops.NodeSpec) -> float:
    return 2.0 * node.outputs[0].bounds[0] * node.inputs[1].bounds[0] * node.inputs[1].bounds[1]


OPS = {
    "conv_slots": slot_op(
        _CONV,
        "y[t, c] = act(sum_j w[j, c] x[t + j - (J - 1), c] + bias[c]), the slot's state before; the last J - 1 rows",
        _build,
        flops=_flops,
    ),
    "short_conv_slots": slot_op(
        _SHORT,
        "y = c conv(b x), for x [b, c, x] and the slot's state before; the last J - 1 rows of b x",
        _build,
        flops=_flops,
    ),
}
