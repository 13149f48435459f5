"""NumPy's calls of ops that move elements: concatenate, transpose, split, take, slices, outer products; and complex numbers."""

from __future__ import annotations

from math import prod

import numpy as np

from camshaft.dtypes import PARTS
from camshaft.eager.numpy_calls.call import Attrs, Call, Form, Inputs, arrays_of, integers_of
from camshaft.eager.numpy_forms import axis_of
from camshaft.errors import ArrayTypeError, ArrayValueError, ShapeError
from camshaft.ops.arguments import common_dtype, operand, plain_attribute
from camshaft.ops.movement.complex_moves import MOVES, moves_pairs


class ArrayIndexError(ShapeError, IndexError):
    """An index out of bounds where there is nothing to read, as NumPy raises it."""


def concat(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """np.concatenate: a list of arrays, dtypes promoted, axis None for flat arrays."""
    listed = len(inputs) in (1, 2) and isinstance(inputs[0], list | tuple)
    axis = attrs.get("axis", 0)
    if listed and len(inputs) == 2:
        axis = inputs[1]
    parts = arrays_of(name, inputs[0] if listed else inputs)
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
    axis = axis_of(name, axis, first.ndim)
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


def transpose(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """np.transpose: axes by position."""
    axes = attrs.get("axes")
    if len(inputs) > 1:
        axes = inputs[1] if len(inputs) == 2 else inputs[1:]
    x = np.asarray(operand(inputs[0], name))
    if x.size and x.ndim:
        return (
            None
            if len(inputs) == 1
            else Call(inputs[:1], {"axes": None if axes is None else integers_of(name, "axes", axes)})
        )
    try:
        return Call(ready=np.array(np.transpose(x, axes)))
    except ValueError as error:
        raise ArrayValueError(str(error)) from None
    except TypeError as error:
        raise ArrayTypeError(f"{name}: {error}") from None


def split(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """np.split: a number of equal parts, or where parts begin; by position."""
    x = np.asarray(operand(inputs[0], name))
    if len(inputs) == 1 and x.size and 0 not in tuple(attrs.get("sizes", ())):
        return None
    axis = axis_of(name, inputs[2] if len(inputs) > 2 else attrs.get("axis", 0), x.ndim)
    if len(inputs) == 1:
        sizes = tuple(attrs.get("sizes", ()))
        if sum(sizes) != x.shape[axis] or any(not isinstance(n, int) or n < 0 for n in sizes):
            raise ShapeError(f"split: got sizes {sizes} of {x.shape}; wanted sizes whose sum is {x.shape[axis]}")
    elif isinstance(inputs[1], int | np.integer):
        if inputs[1] < 1 or x.shape[axis] % inputs[1]:
            raise ArrayValueError("array split does not result in an equal division")
        sizes = (x.shape[axis] // int(inputs[1]),) * int(inputs[1])
    else:
        indexes = integers_of(name, "indexes", inputs[1])
        ends = [len(range(x.shape[axis])[:end]) for end in indexes]
        sizes = tuple(max(b - a, 0) for a, b in zip([0, *ends], [*ends, x.shape[axis]], strict=True))
        if sum(sizes) != x.shape[axis]:
            raise ArrayValueError(f"split: got {list(indexes)}; wanted ascending indexes")
    if x.size and 0 not in sizes:
        return Call((x,), {"axis": axis, "sizes": sizes}, lambda y: y if isinstance(y, tuple) else (y,))
    starts = np.cumsum((0, *sizes))
    return Call(ready=tuple(x.take(range(a, a + n), axis) for a, n in zip(starts, sizes, strict=False)))


def gather(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """x[rows] for indexes of any integers; embedding has its operands the other way round."""
    if len(inputs) != 2:
        return None
    x, rows = arrays_of(name, inputs if name == "gather" else inputs[::-1])
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


def sliced(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    x, sizes = np.asarray(operand(inputs[0], name)), attrs.get("sizes") or ()
    if (x.size and 0 not in sizes) or len(sizes) != x.ndim:
        return None
    whole = tuple(n if size is None else size for n, size in zip(x.shape, sizes, strict=True))
    return Call(ready=np.empty(whole, x.dtype)) if 0 in whole else None


def outer(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """np.outer: operands flat, dtypes promoted."""
    if len(inputs) != 2:
        return None
    a, b = (x.reshape(-1) for x in arrays_of(name, inputs))
    dtype = common_dtype([a.dtype, b.dtype])
    if not a.size or not b.size:
        return Call(ready=np.empty((a.size, b.size), dtype))
    if a.dtype == b.dtype != np.bool_ and all(isinstance(x, np.ndarray) and x.ndim == 1 for x in inputs):
        return None
    if dtype == np.bool_:
        return Call((a.view(np.uint8), b.view(np.uint8)), attrs, lambda y: y.view(np.bool_))
    return Call((a.astype(dtype), b.astype(dtype)), attrs)


def moving(form: Form) -> Form:
    """The form of an op that moves complex numbers as pairs of their parts."""

    def moving(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
        call = form(name, inputs, attrs)
        if call is not None and call.ready is not None:
            return call
        given = Call(inputs, attrs) if call is None else call
        arrays = arrays_of(name, given.inputs)
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
