"""NumPy's cases of reductions that the ops do not have: empty inputs, booleans, means of integers, several axes."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.errors import ArrayTypeError, ArrayValueError, ShapeError
from camshaft.ops.arguments import Array, Dtype

_FOLDS = ("sum", "mean", "prod", "max", "min")
_ARGUMENTS = ("argmax", "argmin")
REDUCTIONS = frozenset((*_FOLDS, *_ARGUMENTS))


class ArrayAxisError(ShapeError, np.exceptions.AxisError):
    """NumPy raises an AxisError, which is a ValueError and an IndexError, in these words."""


@dataclass(frozen=True)
class Form:
    """The arrays to call the op on; `shape` is the result's. `ready` is the result itself where there is nothing to compute, and
    `returned` what its dtype becomes (None: it stays)."""

    arrays: tuple[Array, ...]
    shape: tuple[int, ...]
    ready: Array | None = None
    returned: Dtype | None = None


def axes_of(op: str, attrs: Mapping[str, Any], n_axes: int) -> dict[str, Any]:
    """The attributes with `axis` as the op has it: folds call it `axes`. ArrayTypeError, ArrayAxisError or ArrayValueError."""
    made, name = dict(attrs), "axes" if op in _FOLDS else "axis"
    if "axis" in made and "axes" in made:
        raise ArrayTypeError(f"{op}() takes axis or axes; got both")
    asked = made.pop("axis", made.pop("axes", None)) if {"axis", "axes"} & set(made) else -1
    if not {"axis", "axes"} & set(attrs):
        return made if n_axes or op in _FOLDS else {**made, name: None}
    if asked is None or (not n_axes and _is_number(asked) and asked in (0, -1)):
        return {**made, name: None}
    given = asked if isinstance(asked, tuple) and op in _FOLDS else (asked,)
    found = [_axis(axis, n_axes) for axis in given]
    if len(set(found)) < len(found):
        raise ArrayValueError("duplicate value in 'axis'")
    return {**made, name: tuple(found) if given is asked else found[0]}


def _is_number(value: Any) -> bool:
    return isinstance(value, int)


def _axis(axis: Any, n_axes: int) -> int:
    try:
        number = operator.index(axis)
    except TypeError as error:
        raise ArrayTypeError(str(error)) from None
    if not -n_axes <= number < n_axes:
        raise ArrayAxisError(number, n_axes)
    return number % n_axes


def reduction(op: str, arrays: Sequence[Array], attrs: Mapping[str, Any]) -> Form | None:
    """The form where an array has no elements or no dtype that the op takes; None where it is the op's own."""
    if len(arrays) != 1 or (arrays[0].size and arrays[0].dtype.kind not in _computed(op)):
        return None
    (x,) = arrays
    axes = attrs.get("axes") if op in _FOLDS else attrs.get("axis", -1)
    gone = range(x.ndim) if axes is None else [a % x.ndim for a in (axes if isinstance(axes, tuple) else (axes,))]
    keep = bool(attrs.get("keepdims"))
    shape = tuple(1 if i in gone else n for i, n in enumerate(x.shape) if keep or i not in gone)
    if not x.size:
        return Form((x,), shape, _of_nothing(op, x, shape))
    computed, returned = _computed(op)[x.dtype.kind]
    return Form((x.astype(computed),), shape, None, None if returned is None else np.dtype(returned))


_WHOLE = {"b": (np.uint8, np.bool_)}
_COUNTED = {"b": (np.int64, None)}
_COMPUTED: dict[str, dict[str, tuple[Any, Any]]] = {
    "sum": _COUNTED,
    "prod": _COUNTED,
    "mean": dict.fromkeys("biu", (np.float64, None)),
    "max": _WHOLE,
    "min": _WHOLE,
    "argmax": {"b": (np.uint8, None)},
    "argmin": {"b": (np.uint8, None)},
}


def _computed(op: str) -> dict[str, tuple[Any, Any]]:
    """By kind of dtype: what an op computes in and what its result becomes (None: it stays)."""
    return _COMPUTED[op]


_IDENTITIES = {"sum": 0, "prod": 1, "mean": np.nan}


def _of_nothing(op: str, x: Array, shape: tuple[int, ...]) -> Array:
    """What a reduction of an array without elements is, in NumPy's dtypes. ArrayValueError where there is no such value."""
    kind = x.dtype.kind
    if op in _ARGUMENTS or op not in _IDENTITIES:
        if np.prod(shape):
            words = {"max": "maximum", "min": "minimum"}.get(op, op)
            what = f"zero-size array to reduction operation {words} which has no identity"
            raise ArrayValueError(f"attempt to get {op} of an empty sequence" if op in _ARGUMENTS else what)
        return np.empty(shape, np.int32 if op in _ARGUMENTS else x.dtype)
    wide: Any = {"b": np.int64, "i": np.int64, "u": np.uint64}.get(kind, x.dtype)
    return np.full(shape, _IDENTITIES[op], np.float64 if op == "mean" and kind in "biu" else wide)
