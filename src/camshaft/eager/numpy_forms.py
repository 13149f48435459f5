"""Cases that NumPy has and ops do not, with NumPy's error messages: products of vectors and of empty matrices; reductions of
empty or boolean arrays, means of integers, several axes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from camshaft.errors import ArrayTypeError, ArrayValueError, ShapeError
from camshaft.ops.arguments import Array, Dtype, common_dtype, plain_attribute, product_dtypes

_FOLDS = ("sum", "mean", "prod", "max", "min")
_ARGUMENTS = ("argmax", "argmin")
REDUCTIONS = frozenset((*_FOLDS, *_ARGUMENTS))


class ArrayAxisError(ShapeError, np.exceptions.AxisError):
    """As NumPy's AxisError: a ValueError and an IndexError, with the same message."""


@dataclass(frozen=True)
class Form:
    """The arrays to call the op on, and the result's `shape`. `ready` is the result itself if there is nothing to compute.
    `returned` is the dtype that the result is converted to, or None."""

    arrays: tuple[Array, ...]
    shape: tuple[int, ...]
    ready: Array | None = None
    returned: Dtype | None = None


def axes_of(op: str, attrs: Mapping[str, Any], n_axes: int) -> dict[str, Any]:
    """Returns the attributes with `axis` under the op's name: reductions call it `axes`. ArrayTypeError, ArrayAxisError or
    ArrayValueError."""
    made, name = dict(attrs), "axes" if op in _FOLDS else "axis"
    if "axis" in made and "axes" in made:
        raise ArrayTypeError(f"{op}() takes axis or axes; got both")
    asked = made.pop("axis", made.pop("axes", None)) if {"axis", "axes"} & set(made) else -1
    if not {"axis", "axes"} & set(attrs):
        return made if n_axes or op in _FOLDS else {**made, name: None}
    if asked is None or (not n_axes and _is_number(asked) and asked in (0, -1)):
        return {**made, name: None}
    given = asked if isinstance(asked, tuple) and op in _FOLDS else (asked,)
    found = [axis_of(op, axis, n_axes) for axis in given]
    if len(set(found)) < len(found):
        raise ArrayValueError("duplicate value in 'axis'")
    return {**made, name: tuple(found) if given is asked else found[0]}


def _is_number(value: Any) -> bool:
    return isinstance(value, int)


def axis_of(name: str, axis: Any, n_axes: int) -> int:
    """Returns a non-negative axis. ArrayTypeError and ArrayAxisError as NumPy raises them."""
    try:
        number = operator.index(axis)
    except TypeError as error:
        raise ArrayTypeError(f"{name}: got axis={axis!r:.60}: {error}") from None
    if not -n_axes <= number < n_axes:
        raise ArrayAxisError(number, n_axes)
    return number % n_axes


def reduction(op: str, arrays: Sequence[Array], attrs: Mapping[str, Any]) -> Form | None:
    """Returns the form for an empty array or a dtype that the op does not take; None if the op takes the call as it is."""
    if len(arrays) != 1 or (arrays[0].size and arrays[0].dtype.kind not in _computed(op)):
        return None
    (x,) = arrays
    axes = attrs.get("axes") if op in _FOLDS else attrs.get("axis", -1)
    gone = range(x.ndim) if axes is None else [a % x.ndim for a in (axes if isinstance(axes, tuple) else (axes,))]
    keep = bool(attrs.get("keepdims"))
    shape = tuple(1 if i in gone else n for i, n in enumerate(x.shape) if keep or i not in gone)
    if not x.size:
        return Form((x,), shape, _of_nothing(op, x, shape, 0 in [x.shape[i] for i in gone]))
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
    """By kind of dtype: the dtype an op computes in, and the dtype of the result (None: the same)."""
    return _COMPUTED[op]


# The dtype of results where it differs from the op's. The attribute `to` overrides it.
RETURNED = dict.fromkeys(_ARGUMENTS, np.dtype(np.int64))
_IDENTITIES = {"sum": 0, "prod": 1, "mean": np.nan}


def _of_nothing(op: str, x: Array, shape: tuple[int, ...], folds_nothing: bool) -> Array:
    """Returns the reduction of an empty array, in NumPy's dtype. ArrayValueError if a reduced axis is empty and the op has no
    identity."""
    kind = x.dtype.kind
    if op in _ARGUMENTS or op not in _IDENTITIES:
        if folds_nothing:
            words = {"max": "maximum", "min": "minimum"}.get(op, op)
            what = f"zero-size array to reduction operation {words} which has no identity"
            raise ArrayValueError(f"attempt to get {op} of an empty sequence" if op in _ARGUMENTS else what)
        return np.empty(shape, RETURNED.get(op, x.dtype))
    wide: Any = {"b": np.int64, "i": np.int64, "u": np.uint64}.get(kind, x.dtype)
    return np.full(shape, _IDENTITIES[op], np.float64 if op == "mean" and kind in "biu" else wide)


_SIGNATURE = "(n?,k),(k,m?)->(n?,m?)"


def _matmul(arrays: Sequence[Array], attrs: Mapping[str, Any]) -> Form | None:
    """out[.., i, j] = sum_k a[.., i, k] b[.., k, j]; a vector is a matrix of one row or column, an axis the result lacks."""
    if len(arrays) != 2 or attrs.get("transpose_b", False):
        return None
    for i, x in enumerate(arrays):
        if not x.ndim:
            has = f"(has 0, gufunc core with signature {_SIGNATURE} requires 1)"
            raise ArrayValueError(f"matmul: Input operand {i} does not have enough dimensions {has}")
    a, b = arrays
    rows, columns = (() if a.ndim == 1 else a.shape[-2:-1]), (() if b.ndim == 1 else b.shape[-1:])
    left, right = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    if left.shape[-1] != right.shape[-2]:
        sizes = f"(size {right.shape[-2]} is different from {left.shape[-1]})"
        where = f"Input operand 1 has a mismatch in its core dimension 0, with gufunc signature {_SIGNATURE} {sizes}"
        raise ArrayValueError(f"matmul: {where}")
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        text = " ".join(f"{_text(x.shape)}->{_text((*x.shape[:-2], None, None))}" for x in (left, right))
        what = "operands could not be broadcast together with remapped shapes [original->remapped]"
        raise ArrayValueError(f"{what}: {text}  and requested shape {_text((*rows, *columns))}") from None
    shape = (*batch, *rows, *columns)
    computed, returned = product_dtypes(left.dtype, right.dtype)
    ready = np.zeros(shape, common_dtype([a.dtype, b.dtype])) if 0 in left.shape or 0 in right.shape else None
    return Form(tuple(x.astype(computed or x.dtype, copy=False) for x in (left, right)), shape, ready, returned)


def _text(shape: Sequence[int | None]) -> str:
    inner = ",".join("newaxis" if n is None else str(n) for n in shape)
    return f"({inner}{',' if len(shape) == 1 else ''})"


_FORMS: dict[str, Callable[[Sequence[Array], Mapping[str, Any]], Form | None]] = {
    "matmul": _matmul,
    **{name: partial(reduction, name) for name in REDUCTIONS},
}


def form_of(op: str, arrays: Sequence[Array], attrs: Mapping[str, Any]) -> Form | None:
    """Returns how a call with NumPy's arguments maps to the op; None if the op takes them as is. ArrayValueError as NumPy."""
    return _FORMS[op](arrays, attrs) if op in _FORMS else None


def check_core(op: str, out: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raises ArrayValueError unless an output has the shape of the result."""
    if out == wanted:
        return
    core = [i for i in (0, 1) if len(out) == len(wanted) > i and out[i - 2] != wanted[i - 2]] if op == "matmul" else []
    if core and len(wanted) >= 2:
        sizes = f"(size {out[core[0] - 2]} is different from {wanted[core[0] - 2]})"
        where = f"Output operand 0 has a mismatch in its core dimension {core[0]}, with gufunc signature {_SIGNATURE} {sizes}"
        raise ArrayValueError(f"{op}: {where}")
    raise ArrayValueError(f"{op}: out has the shape {out}; wanted {wanted}")


def attributes_of(op: str, attrs: Mapping[str, Any], n_axes: int) -> dict[str, Any]:
    """Returns NumPy's keyword arguments as the op's attributes: `axis` under the op's name, NumPy scalars as Python's, lists as
    tuples. ArrayTypeError for another type, ArrayAxisError for an axis out of range."""
    plain = {name: plain_attribute(op, name, value) for name, value in attrs.items()}
    return axes_of(op, plain, n_axes) if op in REDUCTIONS else plain


def count_of(op: str, given: int) -> int:
    """Returns how many operands NumPy's function takes before `out`; for other functions, `given`."""
    return 2 if op == "matmul" else given
