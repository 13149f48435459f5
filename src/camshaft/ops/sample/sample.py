"""sample: draws a token per row of logits: temperature, then top_k, top_p, min_p, then a categorical draw, in one kernel.

temperature 0 (or NaN) takes the greatest logit, the first of equal ones. top_k 0 and top_p 1 are off. At the limit of top_k and
top_p, of equal tokens those with smaller indexes are kept. -inf counts as the lowest finite number: never drawn unless all are.
A row with a NaN gives -1. top_p ignores weights below 2^-28 of the likeliest token's. seed is the low 32 bits, the high 32 bits
and the step.

Attributes: `draws` tokens per row without replacement, [R, draws] (None, the default: one, [R]), in the order in which they were
drawn; -1 where a row has fewer that are kept. `logprobs` adds their log-probabilities as a second result: ln(w_y / sum of w) over
the kept tokens, of a single draw; with temperature 0 those of softmax(logits). NaN beside -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from camshaft.dtypes import DType, f32, i32, u32
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.sample.kernel import LOWEST, MOST_TOKENS, NAN_TOKEN, keys, noise, one_row_per_program
from camshaft.ops.sample.several import several_per_row
from camshaft.ops.scan.scan import expect_attributes
from camshaft.ops.spec import TensorSpec

# Columns of a block; scratch limits their number. With top_k, 32 is the fastest of 32 to 256 (n = 49152, AVX-512, top_k 40,
# top_p 0.95, min_p 0.05: 19 microseconds, 24 with 64, 75 with 256); without it, they are equal.
BLOCK, MOST_BLOCKS = 32, 4096
_PARAMETERS: tuple[tuple[str, DType, tuple[int, ...]], ...] = (
    ("temperature", f32, ()),
    ("top_k", i32, ()),
    ("top_p", f32, ()),
    ("min_p", f32, ()),
    ("seed", u32, (3,)),
)
PARAMETERS = Parameters(
    "logits temperature top_k top_p min_p seed",
    (Attribute("draws", "int | None", None), Attribute("logprobs", "bool", False)),
    results=None,
)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    wanted = "logits [R, n], temperature [R], top_k [R], top_p [R], min_p [R] and seed [R, 3]"
    ops.expect(len(specs) == 6, "sample", specs, wanted)
    x = specs[0]
    fits = x.is_plain and x.dtype == f32 and len(x.shape) == 2 and isinstance(x.shape[1], int)
    fits = fits and 0 < x.bounds[1] <= MOST_TOKENS
    ops.expect(fits, "sample", x, f"logits of f32 [R, n], n from 1 to {MOST_TOKENS}")
    for spec, (name, dtype, shape) in zip(specs[1:], _PARAMETERS, strict=True):
        right = TensorSpec((x.shape[0], *shape), dtype)
        ops.expect(spec == right, "sample", spec, f"{name} of {right}")
    expect_attributes("sample", attrs, PARAMETERS)
    draws = attrs.get("draws")
    fits = draws is None or (isinstance(draws, int) and not isinstance(draws, bool) and 1 <= draws <= x.bounds[1])
    ops.expect(fits, "sample", f"draws {draws!r} of {x}", f"draws from 1 to {x.bounds[1]}, or None")
    shape = x.shape[:1] if draws is None else (x.shape[0], draws)
    return (TensorSpec(shape, i32), *((TensorSpec(shape, f32),) if attrs.get("logprobs") else ()))


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    logits = node.inputs[0]
    n, block = logits.bounds[1], BLOCK
    while -(-n // block) > MOST_BLOCKS:
        block *= 2
    arrays = (*(ops.read(i) for i in range(6)), ops.scratch(0, "update"))
    grid, constants, scratch = (ops.Cells(logits.shape[0]),), {"n": n, "block": block}, (TensorSpec(logits.shape, u32),)
    draws, outputs = node.attrs.get("draws"), len(node.outputs)
    if draws is None and outputs == 1:
        return ops.Build((ops.Launch(one_row_per_program, (*arrays, ops.write(0)), grid, constants),), scratch)
    writes = (ops.write(i, shape=(logits.bounds[0], draws or 1)) for i in range(outputs))
    constants |= {"draws": draws or 1, "outputs": outputs}
    return ops.Build((ops.Launch(several_per_row, (*arrays, *writes), grid, constants),), scratch)


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
    return np.where(weights >= min(min_p, 1.0), weights, 0.0)


def times(seed: ops.Array, n: int) -> ops.Array:
    """Returns the exponential times e_i of one row's seed (low 32 bits, high 32 bits, step), float64 [n]."""
    low, high, step = (seed[i : i + 1].astype(np.uint32) for i in range(3))
    first, second = keys(low, high, step)
    bits = noise(np.arange(n, dtype=np.uint32), first, second)
    return -np.log1p(-np.minimum((bits + 0.5) * 2.0**-32, 1 - 2.0**-24))


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    rows, draws = zip(*inputs, strict=True), attrs.get("draws")
    drawn = [drawn_from(*row, draws or 1) for row in rows]
    tokens, logprobs = (np.array(found) if draws else np.array(found)[:, 0] for found in zip(*drawn, strict=True))
    return (tokens.astype(np.int32), *((logprobs,) if attrs.get("logprobs") else ()))


def drawn_from(
    x: ops.Array, temperature: float, top_k: int, top_p: float, min_p: float, seed: ops.Array, draws: int
) -> tuple[ops.Array, ops.Array]:
    """Returns the tokens that are drawn from one row, and their log-probabilities."""
    tokens, logprobs = np.full(draws, NAN_TOKEN), np.full(draws, np.nan)
    if np.isnan(x).any():
        return tokens, logprobs
    greedy = not temperature > 0
    settings = (1.0, 0, 1.0, 0.0) if greedy else (float(temperature), int(top_k), float(top_p), float(min_p))
    weights = distribution(x, *settings)
    with np.errstate(divide="ignore"):
        race = -np.where(x == x.max(), np.inf, x.astype(np.float64)) if greedy else times(seed, len(x)) / weights
        order = np.argsort(np.where(x > LOWEST, race, np.inf) if (x > LOWEST).any() else race, kind="stable")[:draws]
        kept = race[order] < np.inf if (x > LOWEST).any() else np.ones(len(order), bool)
        x = np.maximum(x.astype(np.float64), LOWEST)
        found = (x[order] - x.max()) / settings[0] - np.log(weights.sum())
    tokens[: len(order)], logprobs[: len(order)] = np.where(kept, order, NAN_TOKEN), np.where(kept, found, np.nan)
    return tokens, logprobs


def _row_inputs(logits: ops.Array, settings: Sequence[tuple[float, int, float, float]]) -> tuple[ops.Array, ...]:
    """Returns inputs with the given settings (temperature, top_k, top_p, min_p), repeated over the rows of logits."""
    rows = [settings[r % len(settings)] for r in range(len(logits))]
    temperature, top_k, top_p, min_p = (np.array(column) for column in zip(*rows, strict=True))
    seed = np.array([(r, 7 * r, r // 3) for r in range(len(logits))], np.uint32)
    limits = (column.astype(np.float32) for column in (top_p, min_p))
    return (logits, temperature.astype(np.float32), top_k.astype(np.int32), *limits, seed)


_SETTINGS = (
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
        yield ops.Sample(f"{rows}x{n}", _row_inputs(logits, _SETTINGS))
    tied = rng.integers(0, 3, (24, 200)).astype(np.float32)
    yield ops.Sample("ties", _row_inputs(tied, ((1.0, 7, 1.0, 0.0), (1.0, 150, 1.0, 0.0), (0.0, 0, 1.0, 0.0))))
    odd = rng.normal(size=(16, 70)).astype(np.float32)
    odd[:, 1::4] = -np.inf
    odd[8:, 20] = 1e30
    odd[4:8, 69], odd[12, 0], odd[13] = np.nan, np.nan, np.nan
    yield ops.Sample("NaN and infinities", _row_inputs(odd, _SETTINGS))
    x = rng.normal(size=(16, 33)).astype(np.float32)
    yield partly_active(ops.Sample("7 of 16", _row_inputs(x, _SETTINGS)), 7, extent="rows")
    yield ops.Sample("log-probability", _row_inputs(x, _SETTINGS), {"logprobs": True})
    several = {"logprobs": True, "draws": 5}
    yield ops.Sample("5 draws, NaN and infinities", _row_inputs(odd, _SETTINGS), several)
    yield partly_active(ops.Sample("5 draws, 7 of 16", _row_inputs(x, _SETTINGS), several), 7, extent="rows")
    yield ops.Sample("5 draws, ties", _row_inputs(tied, _SETTINGS), {"draws": 5})


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, f, i = TensorSpec((2, 8), f32), TensorSpec((2,), f32), TensorSpec((2,), i32)
    seed = TensorSpec((2, 3), u32)
    yield ops.ErrorSample((x, f, i, f, f), {}, "wanted logits")
    yield ops.ErrorSample((TensorSpec((8,), f32), f, i, f, f, seed), {}, "wanted logits of f32")
    yield ops.ErrorSample((x, f, f, f, f, seed), {}, "wanted top_k of i32")
    yield ops.ErrorSample((x, f, i, f, f, TensorSpec((2,), u32)), {}, "wanted seed of u32")
    yield ops.ErrorSample((x, f, i, f, f, seed), {"draws": 9}, "wanted draws from 1 to 8, or None")
    yield ops.ErrorSample((x, f, i, f, f, seed), {"draws": 0}, "wanted draws from 1 to 8, or None")
    yield ops.ErrorSample((x, f, i, f, f, seed), {"n": 2}, "wanted draws, logprobs")


OP = ops.Op(
    name="sample",
    formula="y ~ softmax(logits / temperature) over the tokens that top_k, top_p and min_p keep",
    parameters=PARAMETERS,
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-11},
    flops=lambda node: 60.0 * np.prod(node.inputs[0].bounds),
)
