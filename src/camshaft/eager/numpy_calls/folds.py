"""NumPy's calls of row-wise ops, reductions and dot: any axis, dtype=, where= and initial=."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype
from camshaft.eager.numpy_calls.call import Attrs, Call, Inputs, arrays_of, mask_of
from camshaft.eager.numpy_forms import attributes_of, axis_of
from camshaft.errors import ArrayTypeError, ArrayValueError
from camshaft.ops.arguments import Array, common_dtype, operand, row_dtype


def row_wise(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """A row-wise op along any axis, of any rank; integers as f64, dtypes promoted."""
    arrays, rest = arrays_of(name, inputs), {key: value for key, value in attrs.items() if key != "axis"}
    if name in ("softmax", "log_softmax") and len(arrays) == 2 and not arrays[1].ndim:
        return row_wise(name, inputs[:1], {**attrs, "axis": inputs[1]})
    x, n_axes = arrays[0], max(arrays[0].ndim, 1)
    axis = axis_of(name, attrs.get("axis", -1), n_axes)
    dtype = row_dtype([a.dtype for a in arrays])
    same = all(a.dtype == dtype for a in arrays)
    if same and x.size and x.ndim and axis == n_axes - 1 and "axis" not in attrs:
        return None
    if not x.size:
        return Call(ready=np.empty(x.shape, dtype))
    moved = np.moveaxis(np.atleast_1d(x), axis, -1)
    given = (moved, *(np.atleast_1d(a) for a in arrays[1:]))
    shape = x.shape

    def finish(y: Any) -> Any:
        return np.ascontiguousarray(np.moveaxis(y, -1, axis)).reshape(shape)

    return Call(tuple(a.astype(dtype, copy=False) for a in given), rest, finish)


# What elements that a mask takes out count as; None: the caller's `initial`.
_MASKED = {"sum": 0, "prod": 1, "mean": 0, "max": None, "min": None}
_WITH_INITIAL = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
_TAKES = {
    "dtype": ("sum", "prod", "mean"),
    "where": tuple(_MASKED),
    "initial": tuple(_WITH_INITIAL),
}


def fold(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """NumPy's reductions: the axis by position, dtype=, where=, initial=."""
    asked = {key: attrs[key] for key in _TAKES if attrs.get(key) is not None}
    if len(inputs) == 1 and not set(_TAKES) & set(attrs):
        return _in_memory_order(name, inputs[0], attrs)
    rest = {key: value for key, value in attrs.items() if key not in _TAKES}
    if len(inputs) > 1:
        if {"axis", "axes"} & set(rest) or len(inputs) > 2:
            raise ArrayTypeError(f"{name}() takes one array and its axis; got {len(inputs)} arguments by position")
        rest["axis"] = inputs[1]
    unknown = [key for key in asked if name not in _TAKES[key]]
    if unknown:
        raise ArrayTypeError(f"{name}() got an unexpected keyword argument '{unknown[0]}'")
    x, initial, steps = np.asarray(operand(inputs[0], name)), asked.get("initial"), []
    if "where" in asked and asked["where"] is not True:
        x, counted = _unmasked(name, x, mask_of(asked["where"]), initial, rest)
        steps += counted
    if "dtype" in asked:
        returned = as_dtype(asked["dtype"]).numpy
        x = x.astype(returned)
        steps.append(lambda y: np.asarray(y).astype(returned)[()])
    if initial is not None:
        steps.append(lambda y: _WITH_INITIAL[name](y, np.asarray(initial).astype(np.asarray(y).dtype)))

    def finish(y: Any) -> Any:
        for step in steps:
            y = step(y)
        return y

    return Call((x,), rest, finish)


def _in_memory_order(name: str, x: Any, attrs: Attrs) -> Call | None:
    """The reduction of an array that is not contiguous, with its axes in the order in which they lie in memory: a transposed one
    is not copied, others row by row. None for other arrays, and where the result depends on the order of axes."""
    if type(x) is not np.ndarray or x.ndim < 2 or x.flags.c_contiguous or not x.size:
        return None
    given = attributes_of(name, attrs, x.ndim)
    asked = given.pop("axes", None) if name in _MASKED else given.pop("axis", -1)
    if asked is None and name not in _MASKED:
        return None
    order = sorted(range(x.ndim), key=lambda i: -abs(x.strides[i]))
    axes = range(x.ndim) if asked is None else [a % x.ndim for a in np.atleast_1d(asked).tolist()]
    moved = tuple(order.index(a) for a in axes)
    left = order if given.get("keepdims") else [i for i in order if i not in axes]
    back = np.argsort(left)

    def finish(y: Any) -> Any:
        return np.array(np.transpose(y, back), order="C") if len(back) > 1 else y

    axis = None if asked is None else moved[0] if len(moved) == 1 else moved  # as builtins have rows for
    return Call((np.ascontiguousarray(x.transpose(order)),), {**given, "axis": axis}, finish)


def _unmasked(name: str, x: Array, mask: Array, initial: Any, rest: Attrs) -> tuple[Array, list[Callable[[Any], Any]]]:
    """x with what changes nothing where the mask is off, and the correction of a mean's number of elements."""
    other = initial if _MASKED[name] is None else _MASKED[name]
    if other is None:
        what = f"reduction operation '{name}imum' does not have an identity"
        raise ArrayValueError(f"{what}, so to use a where mask one has to specify 'initial'")
    whole = np.broadcast_to(mask, x.shape)
    left = np.where(whole, x, x.dtype.type(other))
    if name != "mean":
        return left, []
    axis, keepdims = rest.get("axis", rest.get("axes")), bool(rest.get("keepdims"))
    with np.errstate(divide="ignore"):
        share = 1 / np.mean(whole, axis=axis, keepdims=keepdims)
    return left, [lambda y: np.asarray(y * share).astype(np.asarray(y).dtype)[()]]


def dot(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    if len(inputs) != 2:
        return None
    a, b = arrays_of(name, inputs)
    dtype = common_dtype([a.dtype, b.dtype])
    if a.shape == b.shape and a.ndim < 2 and not a.size:
        return Call(ready=dtype.type(0))
    if a.ndim or b.ndim:
        return None if a.dtype == b.dtype else Call((a.astype(dtype), b.astype(dtype)), attrs)
    return Call((a.astype(dtype).reshape(1), b.astype(dtype).reshape(1)), attrs)
