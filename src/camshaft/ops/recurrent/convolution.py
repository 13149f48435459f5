"""Causal depthwise convolutions over the tokens of a sequence.

conv1d_depthwise_causal: y[b, t, c] = sum_j w[c, j] x[b, t + j - (J - 1), c], with zeros before the sequence. ssm_conv: the
same with a bias, SiLU and a state, the J - 1 rows before the sequence; it returns the last J - 1 rows for the tokens that
follow. short_conv is LFM2's: y = c * conv(b * x).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.parameters import Attribute
from camshaft.ops.recurrent.frame import SequenceOp, sequence_op

# Tokens that share a load of the weights.
BLOCK = 8
ACTIVATION = Attribute("activation", "str", "silu")


@kernel
def tokens_per_program(
    k: Tracer, x: Array, w: Array, *rest: Array, tokens: int, channels: int, taps: int, state: bool, silu: bool
) -> None:
    # y[t, c] = act(sum_j w[c, j] x[t + j - (taps - 1), c]) for BLOCK tokens
    before, out = rest[0] if state else None, rest[-1]
    bias = rest[1] if len(rest) == 3 else None
    sequence, first = k.program(0), k.program(1) * BLOCK
    rows = [k.minimum(first + i, tokens - 1) for i in range(min(BLOCK, tokens))]
    for c in k.lanes(channels):
        weights = [k.gather(w, c, j) for j in range(taps)]
        for row in rows:
            total = k.const(0.0, weights[0].dtype) if bias is None else bias[c]
            for j, weight in enumerate(weights):
                at = row + (j - taps + 1)
                old = 0.0 if before is None else before[sequence * (taps - 1) + k.minimum(row + j, taps - 2), c]
                value = x[sequence * tokens + k.maximum(at, 0), c]
                total = k.fma(weight, value if j == taps - 1 else k.select(at >= 0, value, old), total)
            out[sequence * tokens + row, c] = total / (1.0 + k.exp(-total)) if silu else total


@kernel
def last_rows(k: Tracer, x: Array, before: Array, out: Array, *, tokens: int, channels: int, rows: int) -> None:
    # the last `rows` of before and x
    sequence, row = k.program(0), k.program(1)
    at = row + (tokens - rows)
    for c in k.lanes(channels):
        old = before[sequence * rows + k.minimum(row + tokens, rows - 1), c]
        out[sequence * rows + row, c] = k.select(at >= 0, x[sequence * tokens + k.maximum(at, 0), c], old)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    (sequences, tokens, channels), taps = node.inputs[0].bounds, node.inputs[1].bounds[1]
    flat, state = (sequences * tokens, channels), len(node.inputs) > 2
    rows = (sequences * (taps - 1), channels)
    x, past = (
        ops.read(0, shape=flat),
        tuple(ops.read(i, shape=rows if i == 2 else None) for i in range(2, len(node.inputs))),
    )
    constants = {"tokens": tokens, "channels": channels, "taps": taps, "state": state}
    silu = state and node.attrs.get("activation", "silu") == "silu"
    grid = ops.Cells(sequences), ops.Cells(tokens, BLOCK)
    arrays = (x, ops.read(1), *past, ops.write(0, shape=flat))
    launches = [ops.Launch(tokens_per_program, arrays, grid, constants | {"silu": silu})]
    if state:
        sizes = {"tokens": tokens, "channels": channels, "rows": taps - 1}
        grid = ops.Cells(sequences), ops.Cells(taps - 1)
        launches.append(ops.Launch(last_rows, (x, past[0], ops.write(1, shape=rows)), grid, sizes))
    return ops.Build(tuple(launches))


def convolved(x: Any, w: Any, state: Any = None, bias: Any = None, activation: str = "none") -> tuple[Any, Any]:
    """The convolution and the new state, of float64 arrays."""
    taps, tokens = w.shape[1], x.shape[1]
    before = np.zeros((len(x), taps - 1, x.shape[2])) if state is None else state
    rows = np.concatenate([before, x], 1)
    y = sum(w[:, j] * rows[:, j : j + tokens] for j in range(taps))
    y = y if bias is None else y + bias
    return y / (1 + np.exp(-y)) if activation == "silu" else y, rows[:, tokens:]


def _decompose(f: Any, x: Any, w: Any, state: Any = None, bias: Any = None, *, activation: str = "none") -> Any:
    taps, (sequences, tokens, channels) = w.shape[1], x.shape
    zeros = np.zeros((sequences, taps - 1, channels), np.float32)
    rows = x if taps == 1 else f.concat(zeros if state is None else state, x, axis=1)
    total = w[:, 0] * rows[:, :tokens]
    for j in range(1, taps):
        total = total + w[:, j] * rows[:, j : j + tokens]
    total = total if bias is None else total + bias
    y = f.silu(total) if activation == "silu" else total
    return y if state is None else (y, rows[:, tokens:])


def _check(name: str) -> Any:
    def check(sizes: Any, attrs: ops.Attrs) -> None:
        activation = attrs.get("activation", "silu")
        ops.expect(activation in ("silu", "none"), name, f"activation {activation!r}", "activation silu or none")
        wanted = "J, the weights of a channel, above 1, and a state of J - 1 rows"
        ops.expect(sizes["R"] == sizes["J"] - 1, name, f"J {sizes['J']} and {sizes['R']} rows", wanted)

    return check


_SIZES = [
    {"B": 2, "T": 9, "C": 17, "J": 4, "R": 3},
    {"B": 1, "T": 1, "C": 16, "J": 4, "R": 3},
    {"B": 1, "T": 2, "C": 33, "J": 4, "R": 3},
]
_VARIANTS = (ops.KernelVariant("tokens_per_program", ops.EVERYWHERE, _build),)
_PLAIN = SequenceOp(
    "conv1d_depthwise_causal",
    {"x": "BTC", "w": "CJ"},
    ("BTC",),
    lambda x, w: convolved(x, w)[:1],
    [*_SIZES, {"B": 1, "T": 3, "C": 5, "J": 1}],
)
_STATE = SequenceOp(
    "ssm_conv",
    {"x": "BTC", "w": "CJ", "state": "BRC", "*bias": "C"},
    ("BTC", "BRC"),
    lambda x, w, state, bias, activation="silu": convolved(x, w, state, bias, activation),
    _SIZES,
    attributes=(ACTIVATION,),
    given=({}, {}, {"activation": "none"}),
    check=_check("ssm_conv"),
)


def _short(b: Any, c: Any, x: Any, w: Any, state: Any) -> tuple[Any, ...]:
    y, after = convolved(b * x, w, state)
    return c * y, after


def _short_decompose(f: Any, b: Any, c: Any, x: Any, w: Any, state: Any) -> Any:
    y, after = f.ssm_conv(b * x, w, state, activation="none")
    return c * y, after


_SHORT = SequenceOp(
    "short_conv",
    {"b": "BTC", "c": "BTC", "x": "BTC", "w": "CJ", "state": "BRC"},
    ("BTC", "BRC"),
    _short,
    _SIZES,
    check=_check("short_conv"),
)


def _flops(node: ops.NodeSpec) -> float:
    return 2.0 * float(np.prod(node.inputs[0].bounds)) * node.inputs[1].bounds[1]


OPS = {
    "conv1d_depthwise_causal": sequence_op(
        _PLAIN,
        "y[b, t, c] = sum_j w[c, j] x[b, t + j - (J - 1), c], zeros before",
        _decompose,
        variants=_VARIANTS,
        flops=_flops,
    ),
    "ssm_conv": sequence_op(
        _STATE,
        "y[b, t, c] = silu(sum_j w[c, j] x[b, t + j - (J - 1), c] + bias[c]), the state before; the last J - 1 rows",
        lambda f, x, w, state, bias=None, activation="silu": _decompose(f, x, w, state, bias, activation=activation),
        variants=_VARIANTS,
        flops=_flops,
    ),
    "short_conv": sequence_op(
        _SHORT,
        "y = c conv(b x), causal and depthwise, the state before; the last J - 1 rows of b x",
        _short_decompose,
    ),
}
