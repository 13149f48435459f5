"""sample: draws a token per row of logits: temperature, then top_k, top_p, min_p, then a categorical draw, in one kernel.

temperature 0 (or NaN) takes the largest logit, the first of equal ones. top_k 0, top_p 1 and min_p 0 are off, and so is a NaN.
At the limit of top_k and top_p, of equal tokens those with smaller indexes are kept. -inf counts as the lowest finite number:
never drawn unless all are. A row with a NaN gives -1. top_p ignores weights below 2^-28 of the likeliest token's. seed is the low
32 bits, the high 32 bits and the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import DType, f32, i32, u32
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.gradient import OF_INTEGERS
from camshaft.ops.parameters import Parameters
from camshaft.ops.sample.kept import LOWEST
from camshaft.ops.sample.kernel import MOST_TOKENS, NAN_TOKEN, one_row_per_program
from camshaft.ops.sample.uniform import keys, noise
from camshaft.ops.spec import TensorSpec

# Columns of a block; scratch limits their number. With top_k, 32 is the fastest of 32 to 256 (n = 49152, AVX-512, top_k 40,
# top_p 0.95, min_p 0.05: 19 microseconds, 24 with 64, 75 with 256); without it, they are equal.
BLOCK, MOST_BLOCKS = 32, 4096
PARAMETERS_OF_ROWS: tuple[tuple[str, DType, tuple[int, ...]], ...] = (
    ("temperature", f32, ()),
    ("top_k", i32, ()),
    ("top_p", f32, ()),
    ("min_p", f32, ()),
    ("seed", u32, (3,)),
)


def expect_inputs(op: str, specs: tuple[TensorSpec, ...]) -> TensorSpec:
    """Returns the logits' spec. ShapeError unless the specs are those of sample's inputs."""
    wanted = "logits [R, n], temperature [R], top_k [R], top_p [R], min_p [R] and seed [R, 3]"
    ops.expect(len(specs) == 6, op, specs, wanted)
    x = specs[0]
    fits = x.is_plain and x.dtype == f32 and len(x.shape) == 2 and isinstance(x.shape[1], int)
    fits = fits and 0 < x.bounds[1] <= MOST_TOKENS
    ops.expect(fits, op, x, f"logits of f32 [R, n], n from 1 to {MOST_TOKENS}")
    for spec, (name, dtype, shape) in zip(specs[1:], PARAMETERS_OF_ROWS, strict=True):
        right = TensorSpec((x.shape[0], *shape), dtype)
        ops.expect(spec == right, op, spec, f"{name} of {right}")
    return x


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    return (TensorSpec(expect_inputs("sample", specs).shape[:1], i32),)


def block_of(n: int) -> int:
    """Returns the columns of a block for rows of n."""
    block = BLOCK
    while -(-n // block) > MOST_BLOCKS:
        block *= 2
    return block


def launched(kernel: Any, node: ops.NodeSpec) -> ops.Build:
    """A program of the kernel for each row; it reads every input, and has scratch memory for the weights."""
    logits = node.inputs[0]
    n = logits.bounds[1]
    arrays = (*map(ops.read, range(len(node.inputs))), ops.scratch(0, "update"), ops.write(0))
    constants = {"n": n, "block": block_of(n)}
    launch = ops.Launch(kernel, arrays, (ops.Cells(logits.shape[0]),), constants)
    return ops.Build((launch,), (TensorSpec(logits.shape, u32),))


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    return launched(one_row_per_program, node)


def distribution(logits: ops.Array, temperature: float, top_k: int, top_p: float, min_p: float) -> ops.Array:
    """Returns the float64 weights of a draw from one row: 1 for the likeliest token, 0 for those that a filter removes."""
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
    return np.where(weights < min(min_p, 1.0), 0.0, weights)


def times(seed: ops.Array, n: int) -> ops.Array:
    """Returns the exponential times e_i of one row's seed (low 32 bits, high 32 bits, step), float64 [n]."""
    low, high, step = (seed[i : i + 1].astype(np.uint32) for i in range(3))
    first, second = keys(low, high, step)
    bits = noise(np.arange(n, dtype=np.uint32), first, second)
    return -np.log1p(-np.minimum((bits + 0.5) * 2.0**-32, 1 - 2.0**-24))


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    logits, temperature, top_k, top_p, min_p, seed = inputs
    tokens = np.empty(len(logits), np.int32)
    for r, x in enumerate(logits):
        if np.isnan(x).any():
            tokens[r] = NAN_TOKEN
            continue
        if not temperature[r] > 0:
            tokens[r] = np.where(x > LOWEST, x, LOWEST).argmax()
            continue
        weights = distribution(x, float(temperature[r]), int(top_k[r]), float(top_p[r]), float(min_p[r]))
        with np.errstate(divide="ignore"):
            tokens[r] = (times(seed[r], len(x)) / weights).argmin()
    return (tokens,)


def row_inputs(logits: ops.Array, settings: Sequence[tuple[float, int, float, float]]) -> tuple[ops.Array, ...]:
    """Returns inputs with the given settings (temperature, top_k, top_p, min_p), repeated over the rows of logits."""
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


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(18)
    for rows, n in ((8, 1), (16, 15), (16, 16), (16, 17), (16, 33), (16, 64), (16, 129), (8, 4099)):
        logits = (3 * rng.normal(size=(rows, n))).astype(np.float32)
        yield ops.Sample(f"{rows}x{n}", row_inputs(logits, SETTINGS))
    tied = rng.integers(0, 3, (24, 200)).astype(np.float32)
    yield ops.Sample("ties", row_inputs(tied, ((1.0, 7, 1.0, 0.0), (1.0, 150, 1.0, 0.0), (0.0, 0, 1.0, 0.0))))
    odd = rng.normal(size=(16, 70)).astype(np.float32)
    odd[:, 1::4] = -np.inf
    odd[8:, 20] = 1e30
    odd[4:8, 69], odd[12, 0], odd[13] = np.nan, np.nan, np.nan
    yield ops.Sample("NaN and infinities", row_inputs(odd, SETTINGS))
    x = rng.normal(size=(16, 33)).astype(np.float32)
    yield partly_active(ops.Sample("7 of 16", row_inputs(x, SETTINGS)), 7, extent="rows")


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, f, i = TensorSpec((2, 8), f32), TensorSpec((2,), f32), TensorSpec((2,), i32)
    seed = TensorSpec((2, 3), u32)
    yield ops.ErrorSample((x, f, i, f, f), {}, "wanted logits")
    yield ops.ErrorSample((TensorSpec((8,), f32), f, i, f, f, seed), {}, "wanted logits of f32")
    yield ops.ErrorSample((x, f, f, f, f, seed), {}, "wanted top_k of i32")
    yield ops.ErrorSample((x, f, i, f, f, TensorSpec((2,), u32)), {}, "wanted seed of u32")


OP = ops.Op(
    name="sample",
    vjp=OF_INTEGERS,
    formula="y ~ softmax(logits / temperature) over the tokens that top_k, top_p and min_p keep",
    parameters=Parameters("logits temperature top_k top_p min_p seed"),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={},
    flops=lambda node: 60.0 * np.prod(node.inputs[0].bounds),
)
