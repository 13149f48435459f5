"""The reference of a chain of elementwise ops, and its tolerance, both from its parts.

A chain may amplify what its parts round: exp of exp, a difference of near equals. So its tolerance comes from computing the
reference again with every inexact step off by some ulps: that is how far apart two correct kernels may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from camshaft.dtypes import DType, as_dtype
from camshaft.ops import op as ops
from camshaft.ops.elementwise.chains.samples import chain_samples
from camshaft.ops.elementwise.chains.text import Chain, evaluated
from camshaft.ops.elementwise.frame import Formula
from camshaft.ops.spec import TensorSpec

# Changes an inexact step's result of that dtype.
Perturbation = Callable[[ops.Array, DType], ops.Array]
# Relative error of a part's result, and the share of results that have it: 16-bit ones are rounded from f32.
_OFF = {"f32": 2.0**-22, "f64": 2.0**-51, "f16": 2.0**-11, "bf16": 2.0**-8}
_SHARE = {"f16": 1 / 32, "bf16": 1 / 32}
# A kernel may be off by more than one random perturbation shows.
_MARGIN = 16.0


class Part(NamedTuple):
    """An op that chains may contain: its row and its Op."""

    row: Formula
    op: ops.Op


Parts = Mapping[str, Part]


def computed(
    chain: Chain, inputs: Sequence[ops.Array], parts: Parts, perturb: Perturbation | None = None
) -> list[ops.Array]:
    """Every step's reference, from earlier ones rounded to their dtypes; `perturb` changes the results of inexact parts."""
    values, found = [np.asarray(x) for x in inputs], []
    for step in chain.steps:
        part, given = parts[step.op].op, [values[i] for i in step.operands]
        (result,) = part.reference(given, step.attrs)
        specs = tuple(TensorSpec(x.shape, as_dtype(x.dtype)) for x in given)
        dtype = as_dtype(part.infer(specs, step.attrs)[0].dtype)
        with np.errstate(all="ignore"):
            if perturb is not None and part.tolerance and dtype.is_float:
                result = perturb(result, dtype)
            values.append(result.astype(dtype.numpy))
        found.append(result)
    return found


def perturbed(chain: Chain, inputs: Sequence[ops.Array], parts: Parts) -> list[ops.Array]:
    """`computed`, with every inexact part's results off by as much as a correct kernel's may be."""
    rng = np.random.default_rng(23)

    def perturb(x: ops.Array, dtype: DType) -> ops.Array:
        off = _OFF[dtype.name] * rng.uniform(-1, 1, x.shape) * (rng.random(x.shape) < _SHARE.get(dtype.name, 1.0))
        return np.asarray(x.astype(np.promote_types(x.dtype, np.float32)) * (1 + off)).astype(x.dtype)

    return computed(chain, inputs, parts, perturb)


class Tolerance(Mapping[str, float]):
    """The tolerance by dtype of the results, found from the samples when it is first asked for. Results whose parts are all
    exact have none."""

    def __init__(self, chain: Chain, parts: Parts) -> None:
        self._chain, self._parts = chain, parts

    @cached_property
    def _errors(self) -> dict[str, float]:
        found: dict[str, float] = {}
        if not any(self._parts[step.op].op.tolerance for step in self._chain.steps):
            return found
        ones = [TensorSpec((1,), dtype) for dtype in self._chain.dtypes]
        infer = lambda op, given, attrs: self._parts[op].op.infer(tuple(given), attrs)[0]  # noqa: E731
        dtypes = [as_dtype(spec.dtype) for spec in evaluated(self._chain, ones, infer)]
        for sample in chain_samples(self._chain, self._parts):
            plain, off = (how(self._chain, sample.inputs, self._parts) for how in (computed, perturbed))
            for i in self._chain.results:
                name = dtypes[i].name
                found[name] = max(found.get(name, 0.0), _MARGIN * _distance(off[i], plain[i]))
        bases = [self._parts[step.op].op.tolerance for step in self._chain.steps]
        return {name: error + max(b.get(name, 0.0) for b in bases) for name, error in found.items()}

    def __getitem__(self, name: str) -> float:
        return self._errors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._errors)

    def __len__(self) -> int:
        return len(self._errors)


def _distance(got: ops.Array, want: ops.Array) -> float:
    """The normalized mean squared error over what is finite, or that of the worst element where it is out of proportion."""
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if (got.dtype.kind != "f" and got.dtype != as_dtype("bf16").numpy) or not finite.any():
        return 0.0
    with np.errstate(over="ignore"):
        squares, scale = (a[finite] - b[finite]) ** 2, float((b[finite] ** 2).mean()) or 1e-30
    return max(float(squares.mean()), float(squares.max()) / 4096) / scale
