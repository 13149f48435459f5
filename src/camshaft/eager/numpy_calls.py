"""Converts calls in NumPy's forms to an op's own form.

NumPy takes attributes by position, lists of arrays, `dtype`, `where`, `axis` of row-wise ops, and None for a bound. Calls on
arrays without elements are answered here, because they compute nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import NAMED, PARTS, as_dtype
from camshaft.eager import moved_calls
from camshaft.eager.call import Attrs, Call, Form, Inputs
from camshaft.eager.numpy_forms import ArrayAxisError
from camshaft.errors import ArrayTypeError, ArrayValueError, ShapeError
from camshaft.ops.arguments import ROW_OPS, Array, common_dtype, operand, plain_attribute, row_dtype
from camshaft.ops.index.complex_moves import MOVES, moves_pairs


class ArrayIndexError(ShapeError, IndexError):
    """An index out of bounds where there is nothing to read, as NumPy raises it."""


def _arrays(name: str, inputs: Inputs) -> list[Array]:
    return [np.asarray(operand(x, name)) for x in inputs]


def _normalized(axis: Any, n_axes: int) -> int:
    if not isinstance(axis, int | np.integer):
        raise ArrayTypeError(f"'{type(axis).__name__}' object cannot be interpreted as an integer")
    if not -n_axes <= axis < n_axes:
        raise ArrayAxisError(int(axis), n_axes)
    return int(axis) % n_axes


def _tuple(name: str, what: str, value: Any) -> tuple[int, ...]:
    """An integer or a sequence of them, as NumPy takes axes."""
    try:
        listed = np.atleast_1d(value).tolist()
    except ValueError:
        listed = [value]
    if any(type(x) is not int for x in listed):
        raise ArrayTypeError(f"{name}: got {what} {value!r:.40}; wanted integers")
    return tuple(listed)


# --- elements moved ------------------------------------------------------------------------------------------------------
def _concat(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """np.concatenate: a list of arrays, dtypes promoted, axis None for flat arrays."""
    listed = len(inputs) in (1, 2) and isinstance(inputs[0], list | tuple)
    axis = attrs.get("axis", 0)
    if listed and len(inputs) == 2:
        axis = inputs[1]
    parts = _arrays(name, inputs[0] if listed else inputs)
    if not parts:
        raise ArrayValueError("need at least one array to concatenate")
    plain = not listed and len(parts) > 1 and axis is not None and len({p.dtype for p in parts}) == 1
    if plain and all(p.size and p.ndim for p in parts):
        return None
    if axis is None:
        parts, axis = [p.reshape(-1) for p in parts], 0
    first = parts[0]
    if any(not p.ndim for p in parts):
        raise ArrayValueError("zero-dimensional arrays cannot be concatenated")
    axis = _normalized(axis, first.ndim)
    others = [(*p.shape[:axis], 0, *p.shape[axis + 1 :]) for p in parts]
    if len({*others}) > 1 or len({p.ndim for p in parts}) > 1:
        shapes = ", ".join(str(p.shape) for p in parts)
        raise ArrayValueError(f"concat: got the shapes {shapes}; wanted such as differ only in axis {axis}")
    dtype = common_dtype([p.dtype for p in parts])
    full = [p.astype(dtype, copy=False) for p in parts if p.size]
    if len(full) > 1:
        return Call((*full,), {"axis": axis})
    size = sum(p.shape[axis] for p in parts)
    whole = (*first.shape[:axis], size, *first.shape[axis + 1 :])
    return Call(ready=full[0].copy() if full else np.empty(whole, dtype))


def _transpose(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """np.transpose: axes by position."""
    axes = attrs.get("axes")
    if len(inputs) > 1:
        axes = inputs[1] if len(inputs) == 2 else inputs[1:]
    x = np.asarray(operand(inputs[0], name))
    if x.size and x.ndim:
        return (
            None
            if len(inputs) == 1
            else Call(inputs[:1], {"axes": None if axes is None else _tuple(name, "axes", axes)})
        )
    try:
        return Call(ready=np.array(np.transpose(x, axes)))
    except ValueError as error:
        raise ArrayValueError(str(error)) from None
    except TypeError as error:
        raise ArrayTypeError(f"{name}: {error}") from None


def _split(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """np.split: a number of equal parts, or where parts begin; by position."""
    x = np.asarray(operand(inputs[0], name))
    if len(inputs) == 1 and x.size and 0 not in tuple(attrs.get("sizes", ())):
        return None
    axis = _normalized(inputs[2] if len(inputs) > 2 else attrs.get("axis", 0), x.ndim)
    if len(inputs) == 1:
        sizes = tuple(attrs.get("sizes", ()))
        if sum(sizes) != x.shape[axis] or any(not isinstance(n, int) or n < 0 for n in sizes):
            raise ShapeError(f"split: got sizes {sizes} of {x.shape}; wanted sizes whose sum is {x.shape[axis]}")
    elif isinstance(inputs[1], int | np.integer):
        if inputs[1] < 1 or x.shape[axis] % inputs[1]:
            raise ArrayValueError("array split does not result in an equal division")
        sizes = (x.shape[axis] // int(inputs[1]),) * int(inputs[1])
    else:
        indexes = _tuple(name, "indexes", inputs[1])
        ends = [len(range(x.shape[axis])[:end]) for end in indexes]
        sizes = tuple(max(b - a, 0) for a, b in zip([0, *ends], [*ends, x.shape[axis]], strict=True))
        if sum(sizes) != x.shape[axis]:
            raise ArrayValueError(f"split: got {list(indexes)}; wanted ascending indexes")
    if x.size and 0 not in sizes:
        return Call((x,), {"axis": axis, "sizes": sizes}, lambda y: y if isinstance(y, tuple) else (y,))
    starts = np.cumsum((0, *sizes))
    return Call(ready=tuple(x.take(range(a, a + n), axis) for a, n in zip(starts, sizes, strict=False)))


def _gather(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """x[rows] for indexes of any integers; embedding has its operands the other way round."""
    if len(inputs) != 2:
        return None
    x, rows = _arrays(name, inputs if name == "gather" else inputs[::-1])
    if rows.dtype.kind not in "iu":
        if rows.size:
            raise ArrayTypeError(f"{name}: arrays used as indices must be of integer type; got {rows.dtype}")
        rows = rows.astype(np.int64)
    if not x.ndim:
        raise ShapeError(f"{name}: got an array without axes; wanted one with an axis to index")
    if not rows.size or not prod(x.shape[1:]):
        return Call(ready=np.empty((*rows.shape, *x.shape[1:]), x.dtype))
    if not len(x):
        raise ArrayIndexError(f"{name}: an index is out of bounds for axis 0 with size 0")
    if rows.dtype.itemsize >= 4 and rows.dtype.kind == "i":
        return None
    rows = np.minimum(rows, len(x)).astype(np.int64)
    return Call((x, rows) if name == "gather" else (rows, x), attrs)


def _slice(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    x, sizes = np.asarray(operand(inputs[0], name)), attrs.get("sizes") or ()
    if (x.size and 0 not in sizes) or len(sizes) != x.ndim:
        return None
    whole = tuple(n if size is None else size for n, size in zip(x.shape, sizes, strict=True))
    return Call(ready=np.empty(whole, x.dtype)) if 0 in whole else None


def _cast(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """The dtype by position or as `dtype`, in any spelling that NumPy has."""
    named = "to" in attrs or "dtype" in attrs  # then a second argument is `out`
    to = attrs.get("to", attrs.get("dtype")) if named or len(inputs) == 1 else inputs[1]
    if named and isinstance(to, str) and to in NAMED and "dtype" not in attrs:
        return None
    if to is None:
        raise ArrayTypeError("cast: got no dtype; wanted to, the name of one")
    rest = {key: value for key, value in attrs.items() if key != "dtype"}
    return Call(inputs if named else (inputs[0], *inputs[2:]), {**rest, "to": as_dtype(to).name})


def _outer(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """np.outer: operands flat, dtypes promoted."""
    if len(inputs) != 2:
        return None
    a, b = (x.reshape(-1) for x in _arrays(name, inputs))
    dtype = common_dtype([a.dtype, b.dtype])
    if not a.size or not b.size:
        return Call(ready=np.empty((a.size, b.size), dtype))
    if a.dtype == b.dtype != np.bool_ and all(isinstance(x, np.ndarray) and x.ndim == 1 for x in inputs):
        return None
    if dtype == np.bool_:
        return Call((a.view(np.uint8), b.view(np.uint8)), attrs, lambda y: y.view(np.bool_))
    return Call((a.astype(dtype), b.astype(dtype)), attrs)


# --- rows ----------------------------------------------------------------------------------------------------------------
def _rows(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """A row-wise op along any axis, of any rank; integers as f64, dtypes promoted."""
    arrays, rest = _arrays(name, inputs), {key: value for key, value in attrs.items() if key != "axis"}
    if name in ("softmax", "log_softmax") and len(arrays) == 2 and not arrays[1].ndim:
        return _rows(name, inputs[:1], {**attrs, "axis": inputs[1]})
    x, n_axes = arrays[0], max(arrays[0].ndim, 1)
    axis = _normalized(attrs.get("axis", -1), n_axes)
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


# --- folds ---------------------------------------------------------------------------------------------------------------
# What elements that a mask takes out count as; None: the caller's `initial`.
_MASKED = {"sum": 0, "prod": 1, "mean": 0, "max": None, "min": None}
_WITH_INITIAL = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
_TAKES = {
    "dtype": ("sum", "prod", "mean"),
    "where": tuple(_MASKED),
    "initial": tuple(_WITH_INITIAL),
}


def _fold(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """NumPy's reductions: the axis by position, dtype=, where=, initial=."""
    asked = {key: attrs[key] for key in _TAKES if attrs.get(key) is not None}
    if len(inputs) == 1 and not set(_TAKES) & set(attrs):
        return None
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
        x, counted = _unmasked(name, x, _mask(asked["where"]), initial, rest)
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


def _mask(where: Any) -> Array:
    mask = np.asarray(operand(where))
    if mask.dtype != np.bool_:
        raise ArrayTypeError(f"where: got an array of {mask.dtype}; wanted booleans")
    return mask


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


def _dot(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    if len(inputs) != 2:
        return None
    a, b = _arrays(name, inputs)
    dtype = common_dtype([a.dtype, b.dtype])
    if a.shape == b.shape and a.ndim < 2 and not a.size:
        return Call(ready=dtype.type(0))
    if a.ndim or b.ndim:
        return None if a.dtype == b.dtype else Call((a.astype(dtype), b.astype(dtype)), attrs)
    return Call((a.astype(dtype).reshape(1), b.astype(dtype).reshape(1)), attrs)


def _adam(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """Learning rate and step as numbers."""
    if len(inputs) != 6 or not any(isinstance(x, (int, float)) for x in inputs[4:]):
        return None
    dtype = np.asarray(operand(inputs[0], name)).dtype
    try:
        return Call((*inputs[:4], np.asarray(inputs[4], dtype), np.asarray(inputs[5], np.int32)), attrs)
    except (OverflowError, TypeError, ValueError) as error:
        raise ArrayValueError(f"{name}: got lr={inputs[4]!r:.40}, step={inputs[5]!r:.40}: {error}") from None


def _clip(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """np.clip: a bound that is None or left out is the dtype's own."""
    given = {key: value for key, value in attrs.items() if key in ("min", "max", "a_min", "a_max")}
    if len(inputs) in (3, 4) and inputs[1] is not None and inputs[2] is not None and not given:
        return None
    low, high = (*inputs[1:3], None, None)[:2]
    low = given.pop("min", given.pop("a_min", None)) if low is None else low
    high = given.pop("max", given.pop("a_max", None)) if high is None else high
    if given:
        raise ArrayTypeError(f"clip() got an argument twice: {', '.join(given)}")
    x = np.asarray(operand(inputs[0], name))
    least, most = _bounds(x)
    rest = {key: value for key, value in attrs.items() if key not in ("min", "max", "a_min", "a_max")}
    return Call((inputs[0], least if low is None else low, most if high is None else high, *inputs[3:]), rest)


def _bounds(x: Array) -> tuple[Any, Any]:
    if x.dtype.kind in "iu":
        return np.array(np.iinfo(x.dtype).min, x.dtype), np.array(np.iinfo(x.dtype).max, x.dtype)
    return (np.False_, np.True_) if x.dtype.kind == "b" else (np.array(-np.inf, x.dtype), np.array(np.inf, x.dtype))


# --- complex numbers -----------------------------------------------------------------------------------------------------
def _moving(form: Form) -> Form:
    """The form of an op that moves complex numbers as pairs of their parts."""

    def moving(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
        call = form(name, inputs, attrs)
        if call is not None and call.ready is not None:
            return call
        given = Call(inputs, attrs) if call is None else call
        arrays = _arrays(name, given.inputs)
        if not moves_pairs(name, [a.dtype for a in arrays], list(_PARTS)):
            return call
        count, moved = MOVES[name]
        dtype, last = arrays[0].dtype, given.finish or (lambda y: y)
        pairs = [np.ascontiguousarray(a).view(_PARTS[dtype]).reshape(*a.shape, 2) for a in arrays[:count]]
        whole = (*pairs, *(arrays[count:] if count else ()))
        rest = moved(arrays[0].ndim, {key: plain_attribute(name, key, value) for key, value in given.attrs.items()})
        return Call(whole, rest, lambda y: last(np.ascontiguousarray(y).view(dtype)[..., 0]))

    return moving


_PARTS = {whole.numpy: part.numpy for whole, part in PARTS.items()}
FORMS: dict[str, Form] = {
    "concat": _concat,
    "transpose": _transpose,
    "split": _split,
    "gather": _gather,
    "embedding": _gather,
    "slice": _slice,
    "cast": _cast,
    "copy": lambda name, inputs, attrs: None,
    "outer": _outer,
    "dot": _dot,
    "clip": _clip,
    **dict.fromkeys(moved_calls.NAMES, moved_calls.moved),
    **dict.fromkeys(("group_norm", "layer_norm_2d"), moved_calls.norm_by_channel),
    "adam_update": _adam,
    **dict.fromkeys(ROW_OPS, _rows),
    **dict.fromkeys(("sum", "prod", "mean", "max", "min", "argmax", "argmin"), _fold),
}
FORMS |= {name: _moving(FORMS[name]) for name in MOVES}


def call_of(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """How the op is called for NumPy's arguments; None where they are the op's own. ShapeError for what NumPy refuses too."""
    form = FORMS.get(name)
    return None if form is None or not inputs else form(name, inputs, attrs)


def masked(result: Any, where: Any, out: Any) -> Any:
    """What a ufunc's where= leaves: `out` where the mask is off, if there is one."""
    mask = _mask(where)
    if out is None:
        return np.array(np.broadcast_to(result, np.broadcast_shapes(np.shape(result), mask.shape)))[()]
    np.copyto(out, result, casting="same_kind", where=mask)
    return out
