"""softmax_sample: several draws from each row of logits without replacement, and the log-probabilities of the drawn tokens.

As sample, whose token is the first one drawn. A row gives -1 and NaN after its last kept token, and everywhere if it has a NaN.
The log-probability is ln(w_y / sum of w) over the kept tokens, of a single draw; with temperature 0, which orders tokens by their
logits, that of softmax(logits).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from camshaft.dtypes import f32, i32, u32
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.sample.kept import LOWEST
from camshaft.ops.sample.kernel import NAN_TOKEN
from camshaft.ops.sample.sample import SETTINGS, block_of, distribution, expect_inputs, row_inputs, times
from camshaft.ops.sample.several import several_per_row
from camshaft.ops.scan.definition import expect_attributes
from camshaft.ops.spec import TensorSpec

PARAMETERS = Parameters("logits temperature top_k top_p min_p seed", (Attribute("draws", "int", 1),), results=2)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    x = expect_inputs("softmax_sample", specs)
    expect_attributes("softmax_sample", attrs, PARAMETERS)
    draws = attrs.get("draws", 1)
    fits = isinstance(draws, int) and not isinstance(draws, bool) and 1 <= draws <= x.bounds[1]
    ops.expect(fits, "softmax_sample", f"draws {draws!r} of {x}", f"draws from 1 to {x.bounds[1]}")
    return TensorSpec((x.shape[0], draws), i32), TensorSpec((x.shape[0], draws), f32)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    logits = node.inputs[0]
    n = logits.bounds[1]
    arrays = (*(ops.read(i) for i in range(6)), ops.scratch(0, "update"), ops.write(0), ops.write(1))
    constants = {"n": n, "block": block_of(n), "draws": node.attrs.get("draws", 1)}
    launch = ops.Launch(several_per_row, arrays, (ops.Cells(logits.shape[0]),), constants)
    return ops.Build((launch,), (TensorSpec(logits.shape, u32),))


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    draws = attrs.get("draws", 1)
    drawn = [drawn_from(x, settings, seed, draws) for x, *settings, seed in zip(*inputs, strict=True)]
    tokens, logprobs = (np.array(found) for found in zip(*drawn, strict=True))
    return tokens.astype(np.int32), logprobs


def drawn_from(x: ops.Array, given: Sequence[float], seed: ops.Array, draws: int) -> tuple[ops.Array, ops.Array]:
    """Returns the tokens that are drawn from one row, and their log-probabilities. `given`: temperature, top_k, top_p, min_p."""
    tokens, logprobs = np.full(draws, NAN_TOKEN), np.full(draws, np.nan)
    if np.isnan(x).any():
        return tokens, logprobs
    temperature, top_k, top_p, min_p = given
    greedy = not temperature > 0
    settings = (1.0, 0, 1.0, 0.0) if greedy else (float(temperature), int(top_k), float(top_p), float(min_p))
    weights = distribution(x, *settings)
    with np.errstate(divide="ignore", invalid="ignore"):
        race = -np.where(x == x.max(), np.inf, x.astype(np.float64)) if greedy else times(seed, len(x)) / weights
        order = np.argsort(np.where(x > LOWEST, race, np.inf) if (x > LOWEST).any() else race, kind="stable")[:draws]
        kept = race[order] < np.inf if (x > LOWEST).any() else np.ones(len(order), bool)
        x = np.maximum(x.astype(np.float64), LOWEST)
        below = np.where(x == x.max(), 0.0, x - x.max())  # of equal infinities too
        found = below[order] / settings[0] - np.log(weights.sum())
    tokens[: len(order)], logprobs[: len(order)] = np.where(kept, order, NAN_TOKEN), np.where(kept, found, np.nan)
    return tokens, logprobs


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(26)
    for n, draws in ((1, 1), (33, 1), (40, 3)):
        logits = (3 * rng.normal(size=(8, n))).astype(np.float32)
        yield ops.Sample(f"{draws} of {n}", row_inputs(logits, SETTINGS), {"draws": draws})
    yield ops.Sample("ties", row_inputs(rng.integers(0, 3, (8, 129)).astype(np.float32), SETTINGS), {"draws": 5})
    odd = rng.normal(size=(16, 33)).astype(np.float32)
    odd[:, 1::4], odd[8:, 20] = -np.inf, 1e30
    odd[4:8, 32], odd[12, 0], odd[13], odd[14] = np.nan, np.nan, np.nan, -np.inf
    yield ops.Sample("NaN and infinities", row_inputs(odd, SETTINGS), {"draws": 3})
    x = rng.normal(size=(16, 33)).astype(np.float32)
    yield partly_active(ops.Sample("7 of 16", row_inputs(x, SETTINGS), {"draws": 3}), 7, extent="rows")


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, f, i = TensorSpec((2, 8), f32), TensorSpec((2,), f32), TensorSpec((2,), i32)
    inputs = (x, f, i, f, f, TensorSpec((2, 3), u32))
    yield ops.ErrorSample(inputs[:5], {}, "wanted logits")
    yield ops.ErrorSample(inputs, {"draws": 9}, "wanted draws from 1 to 8")
    yield ops.ErrorSample(inputs, {"draws": 0}, "wanted draws from 1 to 8")
    yield ops.ErrorSample(inputs, {"n": 2}, "wanted draws")


OP = ops.Op(
    name="softmax_sample",
    vjp=ops.NoGradient("it draws tokens"),
    formula="y, ln p = distinct tokens ~ softmax(logits / temperature) over the kept, and their log-probabilities",
    parameters=PARAMETERS,
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-11},
    flops=lambda node: 60.0 * np.prod(node.inputs[0].bounds) * node.outputs[0].bounds[1],
)
