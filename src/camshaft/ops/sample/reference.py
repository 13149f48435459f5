"""The reference of sample in float64 NumPy, and its samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from camshaft.dtypes import as_dtype, f32, i32, u32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.sample.kernel import LOWEST, keys, noise
from camshaft.ops.spec import TensorSpec


def distribution(logits: ops.Array, temperature: float, top_k: int, top_p: float, min_p: float) -> ops.Array:
    """The float64 weights of a draw from one row of logits: 1 for the likeliest token, 0 for those that a filter removes."""
    x = np.where(logits > LOWEST, logits, LOWEST).astype(np.float64)
    order = np.lexsort((np.arange(len(x)), -x))
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.where(x == x.max(), 1.0, np.exp((x - x.max()) / temperature))
    if 0 < top_k < len(x):
        weights[order[top_k:]] = 0
    if top_p < 1:
        ordered = weights[order]
        before = np.cumsum(ordered) - ordered
        weights[order[1:]] *= (before < top_p * ordered.sum())[1:]
    return np.where(weights >= min(min_p, 1.0), weights, 0.0)


def times(seed: ops.Array, n: int) -> ops.Array:
    """The exponential times e_i of one row's seed (low 32 bits, high 32 bits, step), float64 [n]."""
    low, high, step = (seed[i : i + 1].astype(np.uint32) for i in range(3))
    first, second = keys(low, high, step)
    bits = noise(np.arange(n, dtype=np.uint32), first, second)
    return -np.log1p(-np.minimum((bits + 0.5) * 2.0**-32, 1 - 2.0**-24))


def reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    logits, temperature, top_k, top_p, min_p, seed = inputs
    tokens = np.empty(len(logits), np.int32)
    for r, x in enumerate(logits):
        if not temperature[r] > 0:
            tokens[r] = np.where(x > LOWEST, x, LOWEST).argmax()
            continue
        weights = distribution(x, float(temperature[r]), int(top_k[r]), float(top_p[r]), float(min_p[r]))
        with np.errstate(divide="ignore"):
            tokens[r] = (times(seed[r], len(x)) / weights).argmin()
    return (tokens,)


def row_inputs(logits: ops.Array, settings: Sequence[tuple[float, int, float, float]]) -> tuple[ops.Array, ...]:
    """Inputs with the given settings (temperature, top_k, top_p, min_p), repeated over the rows of logits."""
    rows = [settings[r % len(settings)] for r in range(len(logits))]
    temperature, top_k, top_p, min_p = (np.array(column) for column in zip(*rows, strict=True))
    seed = np.array([(r, 7 * r, r // 3) for r in range(len(logits))], np.uint32)
    limits = (column.astype(np.float32) for column in (top_p, min_p))
    return (logits, temperature.astype(np.float32), top_k.astype(np.int32), *limits, seed)


SETTINGS = (
    (1.0, 0, 1.0, 0.0),
    (0.0, 0, 1.0, 0.0),
    (0.7, 5, 1.0, 0.0),
    (1.3, 0, 0.8, 0.0),
    (1.0, 0, 1.0, 0.2),
    (0.9, 12, 0.9, 0.05),
    (5.0, 40, 0.97, 0.01),
    (1e-3, 3, 0.5, 0.5),
)


def samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(18)
    for rows, n in ((8, 1), (16, 15), (16, 16), (16, 17), (16, 33), (16, 64), (16, 129), (8, 4099)):
        logits = (3 * rng.normal(size=(rows, n))).astype(np.float32)
        yield ops.Sample(f"{rows}x{n}", row_inputs(logits, SETTINGS))
    tied = rng.integers(0, 3, (24, 200)).astype(np.float32)
    yield ops.Sample("ties", row_inputs(tied, ((1.0, 7, 1.0, 0.0), (1.0, 150, 1.0, 0.0), (0.0, 0, 1.0, 0.0))))
    odd = rng.normal(size=(16, 70)).astype(np.float32)
    odd[:, 3::4], odd[:, 1::4] = np.nan, -np.inf
    odd[8:, 20] = 1e30
    yield ops.Sample("NaN and infinities", row_inputs(odd, SETTINGS))
    tokens, x = Extent("rows", 16), rng.normal(size=(16, 33)).astype(np.float32)
    inputs = row_inputs(x, SETTINGS)
    specs = tuple(TensorSpec((tokens, *a.shape[1:]), as_dtype(a.dtype)) for a in inputs)
    yield ops.Sample("7 of 16", inputs, {}, specs, {tokens: 7})


def error_samples() -> Iterable[ops.ErrorSample]:
    x, f, i = TensorSpec((2, 8), f32), TensorSpec((2,), f32), TensorSpec((2,), i32)
    seed = TensorSpec((2, 3), u32)
    yield ops.ErrorSample((x, f, i, f, f), {}, "wanted logits")
    yield ops.ErrorSample((TensorSpec((8,), f32), f, i, f, f, seed), {}, "wanted logits of f32")
    yield ops.ErrorSample((x, f, f, f, f, seed), {}, "wanted top_k of i32")
    yield ops.ErrorSample((x, f, i, f, f, TensorSpec((2,), u32)), {}, "wanted seed of u32")
