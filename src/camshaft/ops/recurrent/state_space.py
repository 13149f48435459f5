"""selective_scan (Mamba 1) and mamba2_ssd (Mamba 2): state space models whose steps depend on the input.

Mamba 1 (Gu and Dao, 2023): a state of N numbers per channel, h = exp(dt a) h + dt x B; y = C . h + D x. Mamba 2 (Dao and
Gu, 2024): one decay per head of P channels, so it is gated linear attention with keys B, queries C and values dt x. dt
comes after softplus, a is negative (-exp(A_log)). States [B, C, N] and [B, H, P, N], as in transformers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE
from camshaft.ops.recurrent.delta_rule import check
from camshaft.ops.recurrent.frame import SequenceOp, sequence_op
from camshaft.ops.recurrent.gradient.selective_scan import rule

WIDTH = 16
# Channels of a program: a cache line of x and dt.
CHANNELS = 16


@kernel
def channels_per_program(
    k: Tracer, x: Array, dt: Array, a: Array, b: Array, c: Array, d: Array, *rest: Array,
    tokens: int, channels: int, size: int,
) -> None:  # fmt: skip
    # h = exp(dt a) h + dt x B; y = C . h + D x: the state of a channel is vectors of 16 numbers
    out, state = rest[-2:]
    given = rest[0] if len(rest) > 2 else None
    sequence, first = k.program(0), k.program(1) * CHANNELS
    last = k.minimum(first + CHANNELS, channels)
    starts = range(0, size, WIDTH)
    counts = [None if at + WIDTH <= size else size - at for at in starts]
    for channel in k.range(first, last):
        for at, count in zip(starts, counts, strict=True):
            zeros = k.splat(0.0, WIDTH)
            row = sequence * channels + channel
            h = zeros if given is None else k.load_vector(given, row, at, width=WIDTH, count=count)
            k.store_vector(state, h, row, at, count=count)
    for t in k.range(tokens):
        token = sequence * tokens + t
        for channel in k.range(first, last):
            row, value, step = sequence * channels + channel, x[token, channel], dt[token, channel]
            total = k.splat(0.0, WIDTH)
            for at, count in zip(starts, counts, strict=True):
                decay, into, seen, old = (
                    k.load_vector(*where, at, width=WIDTH, count=count)
                    for where in ((a, channel), (b, token), (c, token), (state, row))
                )
                h = k.fma(into, k.splat(step * value, WIDTH), k.exp(decay * step) * old)
                k.store_vector(state, h, row, at, count=count)
                total = k.fma(h, seen, total)
            out[token, channel] = k.fma(d[channel], value, k.vector_sum(total))


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    (sequences, tokens, channels), size = node.inputs[0].bounds, node.inputs[2].bounds[1]
    flat, state = (sequences * tokens, channels), (sequences * channels, size)
    seen = sequences * tokens, size
    arrays = [ops.read(0, shape=flat), ops.read(1, shape=flat), ops.read(2), ops.read(3, shape=seen)]
    arrays += [ops.read(4, shape=seen), ops.read(5)]
    arrays += [ops.read(6, shape=state)] if len(node.inputs) > 6 else []
    arrays += [ops.write(0, shape=flat), ops.write(1, shape=state)]
    grid = ops.Cells(sequences), ops.Cells(channels, CHANNELS)
    sizes = {"tokens": tokens, "channels": channels, "size": size}
    return ops.Build((ops.Launch(channels_per_program, tuple(arrays), grid, sizes),))


def _scan(x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, state: Any) -> Any:
    h = np.zeros((len(x), *a.shape)) if state is None else state.copy()
    out = np.zeros(x.shape)
    for t in range(x.shape[1]):
        h = np.exp(dt[:, t, :, None] * a) * h + (dt[:, t] * x[:, t])[..., None] * b[:, t, None]
        out[:, t] = (h * c[:, t, None]).sum(-1) + d * x[:, t]
    return out, h


def _scan_decompose(f: Any, x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, state: Any = None) -> Any:
    (sequences, tokens, channels), size = x.shape, a.shape[1]
    h, outs = np.zeros((sequences, channels, size), np.float32) if state is None else state, []
    column, row = (sequences, channels, 1), (sequences, 1, size)
    for t in range(tokens):
        step, value = dt[:, t].reshape(column), x[:, t].reshape(column)
        h = f.exp(step * a) * h + step * value * b[:, t].reshape(row)
        outs.append(f.sum(h * c[:, t].reshape(row), axes=-1).reshape((sequences, 1, channels)))
    return (f.concat(*outs, axis=1) if tokens > 1 else outs[0]) + d * x, h


def _ssd(x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, state: Any) -> Any:
    heads = x.shape[2]
    b, c = (np.repeat(m, heads // b.shape[2], 2) for m in (b, c))
    h = np.zeros((len(x), heads, x.shape[3], b.shape[3])) if state is None else state.copy()
    out = np.zeros(x.shape)
    for t in range(x.shape[1]):
        added = (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
        h = np.exp(dt[:, t] * a)[..., None, None] * h + added
        out[:, t] = np.einsum("bhpn,bhn->bhp", h, c[:, t]) + d[:, None] * x[:, t]
    return out, h


def _ssd_decompose(f: Any, x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, state: Any = None) -> Any:
    turned = (0, 1, 3, 2)
    before = () if state is None else (f.transpose(state, axes=turned),)
    values = x * dt.reshape((*dt.shape, 1))
    y, after = f.gated_linear_attention(c, b, values, dt * a, *before, scale=1.0)
    return y + x * d.reshape((d.shape[0], 1)), f.transpose(after, axes=turned)


def _steps(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return np.log1p(np.exp(rng.normal(size=shape) - 2))


def _negative(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return -np.exp(rng.normal(size=shape))


_DRAWS = {"dt": _steps, "a": _negative}
_SCAN = SequenceOp(
    "selective_scan",
    {"x": "BTC", "dt": "BTC", "a": "CN", "b": "BTN", "c": "BTN", "d": "C", "*state": "BCN"},
    ("BTC", "BCN"),
    _scan,
    [{"B": 2, "T": 3, "C": 17, "N": 16}, {"B": 1, "T": 1, "C": 5, "N": 17}],
    draws=_DRAWS,
)
_SSD = SequenceOp(
    "mamba2_ssd",
    {"x": "BTHP", "dt": "BTH", "a": "H", "b": "BTGN", "c": "BTGN", "d": "H", "*state": "BHPN"},
    ("BTHP", "BHPN"),
    _ssd,
    [{"B": 1, "T": 67, "H": 2, "P": 32, "G": 1, "N": 32}, {"B": 2, "T": 3, "H": 2, "P": 5, "G": 2, "N": 17}],
    check=check("mamba2_ssd"),
    draws=_DRAWS,
)
_TOLERANCE = TO_TOLERANCE | {"f32": 4e-12}
OPS = {
    "selective_scan": sequence_op(
        _SCAN,
        "h = exp(dt a) h + dt x B; y = C . h + D x; the last h",
        _scan_decompose,
        variants=(ops.KernelVariant("channels_per_program", ops.EVERYWHERE, _build),),
        flops=lambda node: 12.0 * float(np.prod(node.inputs[0].bounds)) * node.inputs[2].bounds[1],
        tolerance=_TOLERANCE,
        vjp=rule,
    ),
    "mamba2_ssd": sequence_op(
        _SSD,
        "h = exp(dt a) h + outer(dt x, B); y = h C + D x, per head; the last h",
        _ssd_decompose,
        tolerance=_TOLERANCE,
    ),
}
