"""selective_scan_gradient: the gradients of selective_scan (Mamba 1) without its D x, h = exp(dt a) h + dt x B; y = C . h.

From the last token to the first, with G the gradient of h: G += C dy; dC += h dy; dB += dt x G; d(dt x) = B . G; of the decay
exp(dt a) it is G h of the token before. That of a is given for each sequence.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.dtypes import f32
from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE
from camshaft.ops.kernels.launch import workgroup_nbytes
from camshaft.ops.recurrent.frame import SequenceOp, sequence_op
from camshaft.ops.recurrent.gradient.parts import SCAN_STEPS, summed
from camshaft.ops.recurrent.gradient.scan_kernel import CHANNELS, WIDTH, channels_backward
from camshaft.ops.spec import TensorSpec

NAME = "selective_scan_gradient"


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    (sequences, tokens, channels), size = node.inputs[0].bounds, node.inputs[2].bounds[1]
    flat, seen, states = (sequences * tokens, channels), (sequences * tokens, size), (sequences * channels, size)
    blocks, chunks, wide = -(-channels // CHANNELS), -(-tokens // SCAN_STEPS), -(-size // WIDTH) * WIDTH
    shapes = flat, flat, None, seen, seen, states, flat, states
    scratch = [TensorSpec((sequences * chunks * channels, wide), f32)]
    outs = [ops.write(i, shape=shape) for i, shape in enumerate((flat, flat, states, seen, seen, states))]
    if blocks > 1:
        parts = sequences * blocks * tokens, size
        scratch += [TensorSpec(parts, f32)] * 2
        outs[3:5] = [ops.scratch(i, "write", shape=parts) for i in (1, 2)]
    arrays = (*(ops.read(i, shape=shape) for i, shape in enumerate(shapes)), *outs, ops.scratch(0, "update"))
    sizes = {"tokens": tokens, "channels": channels, "size": size, "blocks": blocks}
    launches = [ops.Launch(channels_backward, arrays, (ops.Cells(sequences), ops.Cells(channels, CHANNELS)), sizes)]
    launches += [summed(i, 2 + i, node, sequences, blocks) for i in (1, 2) if blocks > 1]
    return ops.Build(tuple(launches), tuple(scratch))


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None: a program holds states, in workgroup memory on a GPU."""
    size, most = node.inputs[2].bounds[1], workgroup_nbytes(target)
    wide = -(-size // WIDTH) * WIDTH
    nbytes = 4 * (SCAN_STEPS + 3) * CHANNELS * wide
    return f"{nbytes} bytes of workgroup memory for states of {size}; there are {most}" if 0 < most < nbytes else None


def _numpy(x: Any, dt: Any, a: Any, b: Any, c: Any, state: Any, dy: Any, dstate: Any) -> tuple[Any, ...]:
    tokens, held = x.shape[1], [state]
    for t in range(tokens):
        held.append(np.exp(dt[:, t, :, None] * a) * held[-1] + (dt[:, t] * x[:, t])[..., None] * b[:, t, None])
    g, (dx, ddt, db, dc), da = dstate, (np.zeros(i.shape) for i in (x, dt, b, c)), np.zeros(state.shape)
    for t in reversed(range(tokens)):
        step, decay = dt[:, t, :, None], np.exp(dt[:, t, :, None] * a)
        g = g + dy[:, t, :, None] * c[:, t, None]
        dc[:, t] = (held[t + 1] * dy[:, t, :, None]).sum(1)
        db[:, t] = (g * (dt[:, t] * x[:, t])[..., None]).sum(1)
        of_into, of_decay = (g * b[:, t, None]).sum(-1), g * held[t] * decay
        dx[:, t], ddt[:, t] = of_into * dt[:, t], of_into * x[:, t] + (of_decay * a).sum(-1)
        da, g = da + of_decay * step, g * decay
    return dx, ddt, da, db, dc, g


def _decompose(f: Any, x: Any, dt: Any, a: Any, b: Any, c: Any, state: Any, dy: Any, dstate: Any) -> tuple[Any, ...]:
    (sequences, tokens, channels), size = x.shape, a.shape[1]
    column, row = (sequences, channels, 1), (sequences, 1, size)

    def at(value: Any, t: int) -> Any:
        return value[:, t].reshape(row if value is b or value is c else column)

    held, decays = [state], []
    for t in range(tokens):
        decays.append(f.exp(at(dt, t) * a))
        held.append(decays[-1] * held[-1] + at(dt, t) * at(x, t) * at(b, t))
    g, da, found = dstate, None, []
    for t in reversed(range(tokens)):
        g = g + at(dy, t) * at(c, t)
        of_into = f.sum(g * at(b, t), axes=2, keepdims=True)
        of_decay = g * held[t] * decays[t]
        made = (
            of_into * at(dt, t),
            of_into * at(x, t) + f.sum(of_decay * a, axes=2, keepdims=True),
            f.sum(g * (at(dt, t) * at(x, t)), axes=1, keepdims=True),
            f.sum(held[t + 1] * at(dy, t), axes=1, keepdims=True),
        )
        found.append([part.reshape((sequences, 1, -1)) for part in made])
        added = of_decay * at(dt, t)
        da, g = added if da is None else da + added, g * decays[t]
    dx, ddt, db, dc = (f.concat(*parts[::-1], axis=1) if tokens > 1 else parts[0] for parts in zip(*found, strict=True))
    return dx, ddt, da, db, dc, g


def _steps(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return np.log1p(np.exp(rng.normal(size=shape) - 2))


def _negative(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return -np.exp(rng.normal(size=shape))


_ROW = SequenceOp(
    NAME,
    {"x": "BTC", "dt": "BTC", "a": "CN", "b": "BTN", "c": "BTN", "state": "BCN", "dy": "BTC", "dstate": "BCN"},
    ("BTC", "BTC", "BCN", "BTN", "BTN", "BCN"),
    _numpy,
    [{"B": 2, "T": 3, "C": 17, "N": 16}, {"B": 1, "T": 1, "C": 5, "N": 17}, {"B": 1, "T": 35, "C": 33, "N": 4}],
    draws={"dt": _steps, "a": _negative},
)
OP = sequence_op(
    _ROW,
    "G += C dy; dC += h dy; dB += dt x G; dx = dt B . G; ddt = x B . G + sum G h exp(dt a) a, backward",
    _decompose,
    variants=(ops.KernelVariant("channels_backward", ops.EVERYWHERE, _build, _supports),),
    flops=lambda node: 40.0 * float(np.prod(node.inputs[0].bounds)) * node.inputs[2].bounds[1],
    tolerance=TO_TOLERANCE | {"f32": 4e-12},
)


def rule(f: Any, dys: Any, ys: Any, x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, state: Any = None) -> Any:
    """The vjp of selective_scan, to which it adds what D x passes on."""
    dy, dstate = dys
    channels, size = a.shape
    first = np.zeros((x.shape[0], channels, size), np.float32) if state is None else state
    dx, ddt, da, db, dc, dfirst = f.selective_scan_gradient(x, dt, a, b, c, first, dy, dstate)
    of_d = lambda: f.sum(dy * x, axes=(0, 1))  # noqa: E731 - called if d is learned
    made = (lambda: dx + dy * d, ddt, lambda: f.sum(da, axes=0), db, dc, of_d)
    return made if state is None else (*made, dfirst)
