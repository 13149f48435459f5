"""What callers hand to an op on arrays, as ndarrays, and back as their kind; NumPy's dtypes and shapes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from camshaft.dtypes import bf16, f16, f32
from camshaft.errors import ShapeError

Array = np.ndarray[Any, Any]
Dtype = np.dtype[Any]
# An ndarray, or a Python number: those take the arrays' dtype ("weak").
Operand: TypeAlias = Array | int | float
Dtypes: TypeAlias = tuple[Dtype, ...]
Kinds: TypeAlias = tuple[Any, ...]
Kind: TypeAlias = Callable[[Array], Any]
_WEAK = (int, float)
# Ops whose functions NumPy names otherwise.
_NUMPY_NAMES = {"negate": "negative", "round": "rint"}
_LOGIC = frozenset(("logical_and", "logical_or", "logical_xor", "logical_not"))
_COMPARISONS = frozenset(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"))
HALVES = (f16.numpy, bf16.numpy)
_F32 = f32.numpy


class ArrayValueError(ShapeError, ValueError):
    """NumPy raises a ValueError in these words."""


class ArrayTypeError(ShapeError, TypeError):
    """NumPy raises a TypeError in these words."""


class ArrayOverflowError(ShapeError, OverflowError):
    """NumPy raises an OverflowError in these words."""


def operand(value: Any) -> Operand:
    """An ndarray of the value's own memory where it shares it (DLPack, `__array__`, the buffer protocol), else of a copy; a
    Python int or float as it is. ArrayTypeError for what lies elsewhere or would lose something."""
    if type(value) is np.ndarray or type(value) in _WEAK:
        return value  # type: ignore[no-any-return]
    if isinstance(value, np.ma.MaskedArray):
        raise ArrayTypeError("a masked array would lose its mask; wanted an ndarray, such as its .filled(0)")
    if _speaks_dlpack(value):
        return _from_dlpack(value)
    array: Array = np.asarray(value)
    return array


def _speaks_dlpack(value: Any) -> bool:
    return hasattr(type(value), "__dlpack__") and not isinstance(value, np.ndarray | np.generic)


def _from_dlpack(value: Any) -> Array:
    try:
        array: Array = np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        kind = f"{type(value).__module__}.{type(value).__name__}"
        raise ArrayTypeError(f"a {kind} cannot be read as an array on the CPU: {error}") from error
    return array


def kind_of(values: Iterable[Any]) -> Kind | None:
    """What makes the caller's kind of array out of an ndarray: the first value's that speaks DLPack; None for ndarrays."""
    for value in values:
        if _speaks_dlpack(value):
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
    elif _speaks_dlpack(value):
        found = np.asarray(value) if hasattr(value, "__array__") else _from_dlpack(value)
        if found.ctypes.data != _from_dlpack(value).ctypes.data:
            raise ArrayTypeError(f"out: a {type(value).__name__} gives a copy of itself as an array; wanted its memory")
    else:
        raise ArrayTypeError("return arrays must be of ArrayType")
    if not found.flags.writeable:
        raise ArrayValueError("output array is read-only")
    return found


def broadcast(operands: Sequence[Operand], out: Array | None) -> tuple[int, ...]:
    """The shape of the result: the operands', or that of `out` where they stretch to it. ArrayValueError otherwise."""
    shapes = [np.shape(x) for x in operands]
    try:
        shape = np.broadcast_shapes(*shapes)
        if out is None or out.shape == shape:
            return shape
        shapes.append(out.shape)
        whole = np.broadcast_shapes(*shapes)
    except ValueError:
        text = " ".join(f"({','.join(map(str, s))}{',' if len(s) == 1 else ''})" for s in shapes)
        raise ArrayValueError(f"operands could not be broadcast together with shapes {text} ") from None
    if whole != out.shape:
        raise ArrayValueError(
            f"non-broadcastable output operand with shape {_text(out.shape)} doesn't match the broadcast shape {_text(whole)}"
        )
    return whole


def _text(shape: tuple[int, ...]) -> str:
    return f"({','.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def kinds_of(operands: Sequence[Operand]) -> Kinds:
    """What `resolve` goes by: the dtypes, and the types of Python numbers."""
    return tuple(type(x) if isinstance(x, _WEAK) else x.dtype for x in operands)


def resolve(name: str, kinds: Kinds, accepts: Callable[[Dtypes], bool]) -> tuple[Dtypes, Dtype | None]:
    """The dtypes that an elementwise op computes in, and the one it returns, where that is not what it computes.

    NumPy's, where it has a function of that name; else the first that the op accepts among the promoted one and floats that
    hold it (a first operand that chooses, a boolean, keeps its dtype). 16-bit floats are computed in f32 where the op takes
    no others. ArrayTypeError in NumPy's words.
    """
    if all(isinstance(k, type) for k in kinds):
        kinds = tuple(np.asarray(k()).dtype for k in kinds)
    dtypes, returned = _numpys(name, kinds) or (_promoted(kinds, accepts), None)
    if not accepts(dtypes) and set(dtypes) <= set(HALVES) and accepts(wide := (_F32,) * len(dtypes)):
        return wide, returned or dtypes[0]
    if name in _LOGIC and not accepts(dtypes):
        return (np.dtype(np.bool_),) * len(dtypes), returned  # a number counts as whether it is not 0
    if name in _COMPARISONS and not accepts(dtypes):
        raise ArrayTypeError(f"{name}: no kernel compares {' with '.join(map(str, dtypes))} exactly; wanted one dtype")
    return dtypes, returned


def _numpys(name: str, kinds: Kinds) -> tuple[Dtypes, Dtype] | None:
    ufunc = getattr(np, _NUMPY_NAMES.get(name, name), None)
    if not isinstance(ufunc, np.ufunc) or ufunc.nin != len(kinds) or ufunc.nout != 1:
        return None
    try:
        *given, returned = ufunc.resolve_dtypes((*kinds, None))
    except TypeError as error:
        raise ArrayTypeError(str(error)) from error
    return tuple(d.newbyteorder("=") for d in given), returned.newbyteorder("=")


def _promoted(kinds: Kinds, accepts: Callable[[Dtypes], bool]) -> Dtypes:
    first = kinds[0]
    everything = [(d,) * len(kinds) for d in _safe_casts(_common(kinds))]
    if len(kinds) > 1 and isinstance(first, np.dtype) and first.kind == "b":
        everything += [(first,) + (d,) * (len(kinds) - 1) for d in _safe_casts(_common(kinds[1:]))]
    return next((d for d in everything if accepts(d)), everything[0])


def _common(kinds: Kinds) -> Dtype:
    # A Python number stands for itself: NumPy takes its kind and leaves its size to the arrays.
    return np.result_type(*(k() if isinstance(k, type) else k for k in kinds))


def _safe_casts(dtype: Dtype) -> Iterable[Dtype]:
    yield dtype.newbyteorder("=")
    for wider in (np.float16, np.float32, np.float64):
        if np.can_cast(dtype, wider, "safe"):
            yield np.dtype(wider)


def cast(value: Operand, dtype: Dtype) -> Array:
    """The operand in this dtype; a Python number that it cannot hold is an ArrayOverflowError."""
    try:
        return np.asarray(value, dtype)
    except OverflowError as error:
        raise ArrayOverflowError(str(error)) from error


def check_cast(name: str, computed: Dtype, out: Dtype) -> None:
    """ArrayTypeError unless NumPy would write such a result into such an `out`."""
    if not np.can_cast(computed, out, "same_kind"):
        raise ArrayTypeError(
            f"Cannot cast ufunc '{name}' output from {computed!r} to {out!r} with casting rule 'same_kind'"
        )
