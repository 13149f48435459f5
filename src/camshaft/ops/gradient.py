"""Helpers of the ops' gradients: reasons for having none, 16-bit floats in f32, broadcasts over reduced axes, zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import PARTS, bf16, f16
from camshaft.errors import ShapeError
from camshaft.extent import Extent
from camshaft.ops.op import NoGradient

# Of ops whose results are not floats: their derivative is zero wherever there is one.
OF_INTEGERS = NoGradient("its result is of integers or booleans")
FROM_INTEGERS = NoGradient("its inputs are integers")
IN_PLACE = NoGradient("it writes a state in place")


def stopped(f: Any, dy: Any, y: Any, x: Any) -> None:
    """The rule of stop_gradient: what depends on its result alone is a constant."""


def rule_in_f32(vjp: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a rule that computes 16-bit floats in f32, and rounds each gradient once, to the dtype of its input."""

    def widened(f: Any, dy: Any, y: Any, *tensors: Any, **attrs: Any) -> Any:
        def wide(x: Any) -> Any:
            if x is None or isinstance(x, tuple):  # results that have no gradient, and of several results all
                return None if x is None else tuple(map(wide, x))
            return f.cast(x, to="f32") if x.dtype in (f16, bf16) else x

        def rounded(made: Any, x: Any) -> Any:
            if made is None or made is NotImplemented or (not callable(made) and made.dtype == x.dtype):
                return made
            return (lambda: rounded(made(), x)) if callable(made) else f.cast(made, to=x.dtype.name)

        found = vjp(f, wide(dy), wide(y), *map(wide, tensors), **attrs)
        if found is NotImplemented:
            return found
        return tuple(map(rounded, found if isinstance(found, tuple) else (found,), tensors))

    return widened


def expect_fixed(sizes: Iterable[Any]) -> None:
    """Raises ShapeError for an Extent among the sizes over which a gradient is a sum."""
    for size in sizes:
        if isinstance(size, Extent):
            raise ShapeError(f"got the Extent {size.name} to sum over; wanted a fixed size")


def with_axes(y: Any, x: Any, axes: Sequence[int]) -> Any:
    """The result of a reduction of x as if it had `keepdims`."""
    shape = tuple(1 if i in axes else d for i, d in enumerate(x.shape))
    return y if y.shape == shape else y.reshape(shape)


def spread(f: Any, dy: Any, x: Any, axes: Sequence[int]) -> Any:
    """A number for each reduced part of x, repeated along the reduced axes to x's shape."""
    kept = with_axes(dy, x, axes)
    if kept.shape == x.shape:
        return kept
    return f.broadcast_to(kept, shape=tuple(None if isinstance(d, Extent) else d for d in x.shape))


def zeros(f: Any, x: Any, shape: Sequence[Any] | None = None) -> Any:
    """Zeros of x's dtype and of `shape`, by default x's."""
    if x.dtype in PARTS:
        return zeros(f, x.pairs(), None if shape is None else (*shape, 2)).as_complex()
    sizes = tuple(x.shape if shape is None else shape)
    if shape is None and any(isinstance(d, Extent) for d in sizes):
        return f.where(np.zeros((), np.bool_), x, 0)
    zero = x.graph.constant("zero", np.zeros((1,) * len(sizes), x.dtype.numpy))
    return zero if prod(sizes) == 1 else f.broadcast_to(zero, shape=sizes)
