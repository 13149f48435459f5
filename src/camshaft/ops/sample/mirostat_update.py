"""mirostat_update: the state of mirostat after a draw: y = mu - eta (s - tau), s = -logprob / ln 2 (Basu et al., 2021).

The log-probability is that of the draw: sample's second result, with mirostat before it. tau is the average surprise, in bits, to
aim at, eta how fast mu follows; mu starts as 2 tau.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log
from typing import Any

import numpy as np

from camshaft.dtypes import f32
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    wanted = "mu, logprob, tau and eta of f32 [R]"
    ops.expect(len(specs) == 4 and not attrs, "mirostat_update", (*specs, *attrs), wanted)
    first = specs[0]
    fits = all(s == first for s in specs) and first == TensorSpec(first.shape, f32)
    ops.expect(fits and len(first.shape) == 1 and 0 not in first.bounds, "mirostat_update", specs, wanted)
    return (first,)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    mu, logprob, tau, eta = (x.astype(np.float64) for x in inputs)
    return (mu - eta * (-logprob / log(2) - tau),)


def _decompose(f: Any, mu: Any, logprob: Any, tau: Any, eta: Any) -> Any:
    return mu + eta * (logprob * np.float32(1 / log(2)) + tau)


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(23)

    def drawn(n: int) -> tuple[ops.Array, ...]:
        mu, logprob, tau, eta = (rng.uniform(low, low + 5, n).astype(np.float32) for low in (5, -6, 3, 0))
        return mu, logprob, tau, eta

    yield ops.Sample("17", drawn(17))
    yield partly_active(ops.Sample("7 of 16", drawn(16)), 7, extent="rows")


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2,), f32)
    yield ops.ErrorSample((x, x, x), {}, "wanted mu")
    yield ops.ErrorSample((x, x, x, TensorSpec((3,), f32)), {}, "wanted mu")


OP = ops.Op(
    name="mirostat_update",
    formula="y = mu - eta (-logprob / ln 2 - tau)",
    parameters=Parameters("mu logprob tau eta"),
    infer=_infer,
    reference=_reference,
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-12},
    decompose=_decompose,
)
