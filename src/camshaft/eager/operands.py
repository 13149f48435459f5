"""Converts arguments (arrays, scalars, DLPack arrays) to ndarrays, and results back to the caller's kind of array.

Positions, slots and block tables are checked here, as plans check theirs: kernels of a paged cache cannot raise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np

from camshaft import ops
from camshaft.dtypes import as_dtype, i32
from camshaft.eager.numpy_forms import attributes_of
from camshaft.errors import ArrayMemoryError, ArrayOverflowError, ArrayTypeError, ArrayValueError, ShapeError
from camshaft.extent import Extent
from camshaft.ops.arguments import Array, Dtype, Operand, attribute_key, from_dlpack, operand, supports_dlpack
from camshaft.ops.op import NodeSpec, Op
from camshaft.ops.parameters import PLACES
from camshaft.ops.spec import TensorSpec, bound

Kind: TypeAlias = Callable[[Array], Any]


def kind_of(values: Iterable[Any]) -> Kind | None:
    """Returns what converts an ndarray to the caller's kind: from_dlpack of the first value's library; None for ndarrays."""
    for value in values:
        if supports_dlpack(value):
            return _maker(value)
    return None


def _maker(value: Any) -> Kind:
    space = value.__array_namespace__() if hasattr(value, "__array_namespace__") else None
    module = type(value).__module__
    for owner in (space, sys.modules.get(module.split(".")[0]), sys.modules.get(module)):
        if hasattr(owner, "from_dlpack"):
            return owner.from_dlpack  # type: ignore[union-attr,no-any-return]
    raise ArrayTypeError(
        f"{module} has no from_dlpack to give back a {type(value).__name__} with; wanted one beside it"
    )


def as_kind(kind: Kind, result: Any) -> Any:
    """Converts a result, or each of several, to the caller's kind."""
    if isinstance(result, tuple):
        return tuple(as_kind(kind, r) for r in result)
    return None if result is None else kind(np.asarray(result))


def output(value: Any) -> Array | None:
    """Returns an ndarray on the memory of the caller's `out`, an array or a tuple of one.

    ArrayTypeError if it is not an array, ArrayValueError if it is read-only.
    """
    if isinstance(value, tuple):
        if len(value) != 1:
            raise ArrayValueError("The 'out' tuple must have exactly one entry per ufunc output")
        (value,) = value
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        found: Array = value
    elif supports_dlpack(value):
        found = np.asarray(value) if hasattr(value, "__array__") else from_dlpack(value)
        if found.ctypes.data != from_dlpack(value).ctypes.data:
            raise ArrayTypeError(f"out: a {type(value).__name__} gives a copy of itself as an array; wanted its memory")
    else:
        raise ArrayTypeError("return arrays must be of ArrayType")
    if not found.flags.writeable:
        raise ArrayValueError("output array is read-only")
    return found


def empty(op: str, shape: Sequence[int], dtype: Dtype, order: Any = "C") -> Array:
    """Returns a new array. ArrayMemoryError, with its size, if it cannot be allocated."""
    try:
        return np.empty(shape, dtype, order)
    except (MemoryError, ValueError):  # a ValueError from 2^63 bytes on
        sizes, nbytes = ", ".join(map(str, shape)), prod(shape) * dtype.itemsize
        raise ArrayMemoryError(
            f"{op}: the result {as_dtype(dtype).name}[{sizes}] needs {nbytes} bytes, for which there is no memory"
        ) from None


def broadcast(operands: Sequence[Operand], out: Array | None) -> tuple[int, ...]:
    """Returns the result's shape: the operands' broadcast shape, or `out`'s if they broadcast to it; else ArrayValueError."""
    shapes = [np.shape(x) for x in operands]
    try:
        shape = broadcast_shapes(shapes)
        if out is None or out.shape == shape:
            return shape
        shapes.append(out.shape)
        whole = broadcast_shapes(shapes)
    except ValueError:
        text = " ".join(f"({','.join(map(str, s))}{',' if len(s) == 1 else ''})" for s in shapes)
        raise ArrayValueError(f"operands could not be broadcast together with shapes {text} ") from None
    if whole != out.shape:
        raise ArrayValueError(
            f"non-broadcastable output operand with shape {_text(out.shape)} doesn't match the broadcast shape {_text(whole)}"
        )
    return whole


# np.broadcast_shapes takes arrays of 32 axes; arrays may have 64.
_MOST_AXES = 32


def broadcast_shapes(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the broadcast shape. ValueError if there is none."""
    last = np.broadcast_shapes(*(shape[-_MOST_AXES:] for shape in shapes))
    left = [shape[:-_MOST_AXES] for shape in shapes]
    return broadcast_shapes(left) + last if any(left) else last


def _text(shape: tuple[int, ...]) -> str:
    return f"({','.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def cast(value: Operand, dtype: Dtype) -> Array:
    """Converts an operand to a dtype. ArrayOverflowError for a Python number out of its range."""
    if type(value) is np.ndarray and value.dtype == dtype:
        return value  # asarray makes a view if the dtypes are equal but different objects
    try:
        return np.asarray(value, dtype)
    except OverflowError as error:
        raise ArrayOverflowError(str(error)) from error
    except TypeError as error:  # bf16 of an integer past 64 bits
        raise ArrayOverflowError(f"{value!r:.40} is out of bounds for {dtype}") from error


def check_cast(name: str, computed: Dtype, out: Dtype) -> None:
    """Raises ArrayTypeError unless NumPy casts a result of dtype `computed` to `out`."""
    if (
        not np.can_cast(computed, out, "same_kind") or out.kind in "US"
    ):  # a string would keep only a number's first digits
        raise ArrayTypeError(
            f"Cannot cast ufunc '{name}' output from {computed!r} to {out!r} with casting rule 'same_kind'"
        )


def give(result: Array, out: Array | None, returned: Dtype) -> Any:
    """The result as NumPy returns it: `out`, or an array or scalar of the dtype."""
    if out is None:
        made = result if result.dtype == returned else result.astype(returned)
        return made if made.ndim else made[()]
    if result is not out:
        np.copyto(out, result, casting="same_kind")
    return out


def has_places(op: Op) -> bool:
    """Whether the op reads or writes a paged cache."""
    return PLACES in op.parameters.tensors


def check_places(op: Op, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    """Raises ShapeError for an index out of bounds. What the op's shape rule refuses is left to it."""
    names = op.parameters.tensors.split()
    first = names.index("positions")
    arrays = [np.asarray(operand(x, op.name)) for x in inputs]
    if len(arrays) < first + 3 or not all(a.ndim for a in arrays[: first + 2]) or arrays[first + 2].ndim != 2:
        return
    shapes = tuple(a.shape for a in arrays[: first + 3])
    for index, limit in _limits(op.name, shapes, attribute_key(attributes_of(op.name, attrs, 0))):
        value = arrays[index]
        if value.dtype == i32.numpy and value.size and limit > 0 and not 0 <= value.min() <= value.max() < limit:
            came = f"{names[index]} from {value.min()} to {value.max()}"
            raise ShapeError(f"{op.name}: got {came}; wanted 0 to {limit - 1}")


@lru_cache(256)
def _limits(name: str, shapes: tuple[tuple[int, ...], ...], attrs: Any) -> tuple[tuple[int, int], ...]:
    """Returns (index of an input, its limit); 0 or less where the op refuses the attributes."""
    op = ops.get(name)
    node = NodeSpec(tuple(TensorSpec(s, i32) for s in shapes), (), {key: value for key, _, value in attrs})
    found = [(index, limit(node)) for index, limit in op.indexes.items()]
    return tuple((index, bound(n) if isinstance(n, int | Extent) else 0) for index, n in found)
