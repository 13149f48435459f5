"""Losses of two tensors of one shape, with torch's reductions: composite ops, a row for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, f16, f32, f64, i32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.checks import FLOATS, in_f32, same_dtype
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec
from camshaft.ops.train.cross_entropy import REDUCTION, TOLERANCE, check_reduction


def _infer(name: str, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, name, specs, "two tensors of one shape")
    dtype = same_dtype(name, specs, FLOATS)
    x, target = specs
    ops.expect(
        target.shape == x.shape and 0 not in x.bounds, name, specs, "two tensors of one shape with no empty axis"
    )
    reduction = check_reduction(name, attrs)
    ops.expect(not any(isinstance(d, Extent) for d in x.shape[1:]), name, x, "an Extent only as the first axis")
    fixed = reduction == "none" or not any(isinstance(d, Extent) for d in x.shape)
    ops.expect(fixed, name, x, "no Extent with a mean or sum; take the losses with reduction 'none'")
    return (TensorSpec(x.shape if reduction == "none" else (), dtype),)


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(3)
    cases: tuple[tuple[tuple[int, ...], DType, dict[str, str]], ...] = (
        ((3, 35), f32, {}),
        ((2, 3, 17), f32, {"reduction": "none"}),
        ((33,), f64, {"reduction": "sum"}),
        ((3, 35), f16, {}),
    )
    for shape, dtype, attrs in cases:
        x, target = 3 * rng.normal(size=shape), rng.random(shape)
        yield ops.Sample(f"{shape} of {dtype.name}", (x.astype(dtype.numpy), target.astype(dtype.numpy)), attrs)


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, n = TensorSpec((3, 8), f32), Extent("n", 3)
    yield ops.ErrorSample((x,), {}, "wanted two tensors")
    yield ops.ErrorSample((x, TensorSpec((8,), f32)), {}, "wanted two tensors of one shape")
    yield ops.ErrorSample((x, TensorSpec((3, 8), i32)), {}, "wanted tensors of")
    yield ops.ErrorSample((x, x), {"reduction": "max"}, "wanted a reduction of mean, sum, none")
    rows = TensorSpec((n, 8), f32)
    yield ops.ErrorSample((rows, rows), {}, "wanted no Extent with a mean")


def _op(name: str, text: str, numpy: Callable[[Any, Any], Any], decompose: Callable[[Any, Any, Any], Any]) -> ops.Op:
    """The op of a loss per element."""

    def reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
        wide = np.longdouble if inputs[0].dtype == np.float64 else np.float64
        losses = numpy(*(a.astype(wide) for a in inputs))
        reduction = attrs.get("reduction", "mean")
        return (np.asarray(losses if reduction == "none" else getattr(losses, reduction)(), np.float64),)

    def decomposed(f: Any, x: Any, target: Any, reduction: str = "mean") -> Any:
        losses = decompose(f, x, target)
        return losses if reduction == "none" else getattr(f, reduction)(losses)

    return ops.Op(
        name=name,
        formula=f"{text}; their mean, or sum",
        parameters=Parameters("x target", (REDUCTION,)),
        infer=lambda specs, attrs: _infer(name, specs, attrs),
        reference=reference,
        samples=_samples,
        error_samples=_error_samples,
        tolerance=TOLERANCE,
        flops=lambda node: 3.0 * prod(node.inputs[0].bounds),
        decompose=in_f32(decomposed),
    )


OPS = {
    op.name: op
    for op in (
        _op("mse_loss", "(x - target)^2", lambda x, t: (x - t) ** 2, lambda f, x, t: f.square(x - t)),
        _op("l1_loss", "|x - target|", lambda x, t: np.abs(x - t), lambda f, x, t: f.abs(x - t)),
        _op(
            "binary_cross_entropy_with_logits",
            "ln(1 + e^x) - x target",
            lambda x, t: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))) - x * t,
            lambda f, x, t: f.softplus(x) - x * t,
        ),
    )
}
