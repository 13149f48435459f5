"""Convert what callers pass (arrays, scalars, foreign arrays) to ndarrays, and results back to their kind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from camshaft.dtypes import as_dtype
from camshaft.errors import ArrayMemoryError, ArrayOverflowError, ArrayTypeError, ArrayValueError
from camshaft.ops.arguments import Array, Dtype, Operand, from_dlpack, supports_dlpack

Kind: TypeAlias = Callable[[Array], Any]


def kind_of(values: Iterable[Any]) -> Kind | None:
    """What makes the caller's kind of array out of an ndarray: the first value's that speaks DLPack; None for ndarrays."""
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
    """A result, or each of several, as the caller's kind."""
    if isinstance(result, tuple):
        return tuple(as_kind(kind, r) for r in result)
    return None if result is None else kind(np.asarray(result))


def output(value: Any) -> Array | None:
    """The ndarray of the caller's `out` (also in a tuple of one), on the same memory.

    ArrayTypeError where it is no array, ArrayValueError where it cannot be written.
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
    """A new array. ArrayMemoryError, which names its size, where there is no memory for it or no address."""
    try:
        return np.empty(shape, dtype, order)
    except (MemoryError, ValueError):  # a ValueError from 2^63 bytes on
        sizes, nbytes = ", ".join(map(str, shape)), prod(shape) * dtype.itemsize
        raise ArrayMemoryError(
            f"{op}: the result {as_dtype(dtype).name}[{sizes}] needs {nbytes} bytes, for which there is no memory"
        ) from None


def broadcast(operands: Sequence[Operand], out: Array | None) -> tuple[int, ...]:
    """The shape of the result: the operands', or that of `out` where they stretch to it. ArrayValueError otherwise."""
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


# Axes that NumPy's function takes; arrays may have 64.
_MOST_AXES = 32


def broadcast_shapes(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape to which all of these stretch. ValueError where there is none."""
    last = np.broadcast_shapes(*(shape[-_MOST_AXES:] for shape in shapes))
    left = [shape[:-_MOST_AXES] for shape in shapes]
    return broadcast_shapes(left) + last if any(left) else last


def _text(shape: tuple[int, ...]) -> str:
    return f"({','.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def cast(value: Operand, dtype: Dtype) -> Array:
    """The operand in this dtype; a Python number that it cannot hold is an ArrayOverflowError."""
    if type(value) is np.ndarray and value.dtype == dtype:
        return value  # asarray gives a view where the dtype is equal and another object
    try:
        return np.asarray(value, dtype)
    except OverflowError as error:
        raise ArrayOverflowError(str(error)) from error
    except TypeError as error:  # bf16 of an integer past 64 bits
        raise ArrayOverflowError(f"{value!r:.40} is out of bounds for {dtype}") from error


def check_cast(name: str, computed: Dtype, out: Dtype) -> None:
    """ArrayTypeError unless NumPy would write such a result into such an `out`."""
    if not np.can_cast(computed, out, "same_kind") or out.kind in "US":  # a text would keep a number's first digits
        raise ArrayTypeError(
            f"Cannot cast ufunc '{name}' output from {computed!r} to {out!r} with casting rule 'same_kind'"
        )
