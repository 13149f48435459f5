"""Converts arguments that are not tensors: any library's arrays to ndarrays, Python scalars, and NumPy's promotion of both."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from camshaft.dtypes import bf16, f16, f32
from camshaft.errors import ArrayTypeError, ArrayValueError

Array = np.ndarray[Any, Any]
Dtype = np.dtype[Any]
# An ndarray or a Python number. A Python number takes the arrays' dtype ("weak").
Operand: TypeAlias = Array | int | float | complex
Dtypes: TypeAlias = tuple[Dtype, ...]
Kinds: TypeAlias = tuple[Any, ...]
WEAK = (int, float, complex)
# Ops that normalize rows; functions of arrays and tensors take an `axis` for them.
ROW_OPS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "l2_norm")
# Ops with another name in NumPy.
_NUMPY_NAMES = {"negate": "negative", "round": "rint"}
_LOGIC = frozenset(("logical_and", "logical_or", "logical_xor", "logical_not"))
_COMPARISONS = frozenset(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"))
HALVES = (f16.numpy, bf16.numpy)
_F32 = f32.numpy


def operand(value: Any, op: str = "") -> Operand:
    """Converts a value to an ndarray, without a copy if it shares its memory (DLPack, `__array__`, the buffer protocol).
    Returns a Python number unchanged. `op` is for messages. ArrayTypeError for memory that is not on the CPU, masked
    arrays and Python objects, ArrayValueError for ragged lists."""
    if type(value) is np.ndarray or type(value) in WEAK:
        return value  # type: ignore[no-any-return]
    if isinstance(value, np.ma.MaskedArray):
        raise ArrayTypeError(f"{_of(op)}a masked array would lose its mask; wanted an ndarray, such as its .filled(0)")
    if supports_dlpack(value):
        return from_dlpack(value)
    try:
        array: Array = np.asarray(value)
    except ValueError as error:  # lists of different lengths
        raise ArrayValueError(f"{_of(op)}{value!r:.80} is not an array: {error}") from error
    if array.dtype.hasobject:
        kind = "" if value is None else f"a {type(value).__name__}, "
        raise ArrayTypeError(f"{_of(op)}got {kind}{value!r:.80}; wanted tensors, arrays and numbers")
    return array


def _of(op: str) -> str:
    return f"{op}: " if op else ""


def plain_attribute(op: str, name: str, value: Any) -> Any:
    """Converts NumPy's numbers to Python's and lists to tuples. ArrayTypeError for other values that cannot be hashed."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return tuple(plain_attribute(op, name, x) for x in value)
    try:
        hash(value)
    except TypeError:
        raise ArrayTypeError(f"{op}: {name} is a {type(value).__name__}; wanted numbers, text or a tuple") from None
    return value


def supports_dlpack(value: Any) -> bool:
    return hasattr(type(value), "__dlpack__") and not isinstance(value, np.ndarray | np.generic)


def from_dlpack(value: Any) -> Array:
    try:
        array: Array = np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        kind = f"{type(value).__module__}.{type(value).__name__}"
        raise ArrayTypeError(f"a {kind} cannot be read as an array on the CPU: {error}") from error
    return array


def kinds_of(operands: Sequence[Operand]) -> Kinds:
    """Returns the input of `resolve`: the dtypes of arrays and the types of Python numbers."""
    return tuple(type(x) if isinstance(x, WEAK) else x.dtype for x in operands)


def resolve(name: str, kinds: Kinds, accepts: Callable[[Dtypes], bool]) -> tuple[Dtypes, Dtype | None]:
    """Returns the dtypes that an elementwise op computes in, and the dtype to cast the result to (None: no cast).

    These are NumPy's if it has a ufunc with that name. Otherwise the first that the op accepts of the promoted dtype and the
    floats that it casts to safely; a boolean first operand may stay boolean, as in `where`. 16-bit floats are computed in
    f32 if the op does not accept them. ArrayTypeError with NumPy's message.
    """
    if all(isinstance(k, type) for k in kinds):
        kinds = tuple(np.asarray(k()).dtype for k in kinds)
    dtypes, returned = _numpys(name, kinds) or (_promoted(kinds, accepts), None)
    if not accepts(dtypes) and set(dtypes) <= set(HALVES) and accepts(wide := (_F32,) * len(dtypes)):
        return wide, returned or dtypes[0]
    if name in _LOGIC and not accepts(dtypes) and all(d.kind in "iufcb" or d == bf16.numpy for d in dtypes):
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
    # NumPy uses the kind of a Python number; the arrays determine the size.
    numbers = [k for k in kinds if isinstance(k, type)]
    if len(numbers) == len(kinds):
        return np.result_type(*(np.asarray(k()).dtype for k in numbers))
    found = common_dtype([k for k in kinds if not isinstance(k, type)])
    return np.result_type(*(k() for k in numbers), found) if numbers else found


def common_dtype(dtypes: Sequence[Dtype]) -> Dtype:
    """NumPy's common dtype; beside f16 and integers of more than 8 bits a bf16 counts as f32, as in NumPy's ufuncs."""
    wide = bf16.numpy in dtypes and any(d == f16.numpy or (d.kind in "iu" and d.itemsize > 1) for d in dtypes)
    try:
        return np.result_type(*(_F32 if wide and d == bf16.numpy else d for d in dtypes))
    except TypeError:
        raise ArrayTypeError(f"got {', '.join(map(str, dtypes))}; wanted dtypes of numbers") from None


def row_dtype(dtypes: Sequence[Dtype]) -> Dtype:
    """The dtype that a row-wise op computes operands of these dtypes in: their common one, f64 for integers."""
    found = common_dtype(dtypes)
    return np.dtype(np.float64) if found.kind in "biu" else found


def _safe_casts(dtype: Dtype) -> Iterable[Dtype]:
    yield dtype.newbyteorder("=")
    for wider in (np.float16, np.float32, np.float64):
        if np.can_cast(dtype, wider, "safe"):
            yield np.dtype(wider)


def product_dtypes(a: Dtype, b: Dtype) -> tuple[Dtype | None, Dtype | None]:
    """Returns the dtypes that matmul computes in and returns; None means the operands' own.

    Integers of up to 32 bits are computed in i32, which wraps like narrower types. For booleans the integer sum is nonzero
    exactly if the logical result is true, unless it reaches 2^32."""
    if a.kind not in "iufb" or b.kind not in "iufb":
        integer = a.kind in "iub" or b.kind in "iub"
        return (common_dtype([a, b]),) * 2 if integer and bf16.numpy in (a, b) else (None, None)
    common = np.result_type(a, b)
    if common.kind in "iub" and common.itemsize <= 4:
        return np.dtype(np.int32), common
    return (None, None) if a == b else (common, common)


def attribute_key(attrs: Mapping[str, Any]) -> tuple[Hashable, ...]:
    """Returns a cache key for attributes. Equal values of different types, such as 1 and 1.0, have different keys: an op may
    refuse one of them."""
    types = {name: tuple(map(type, v)) if type(v) is tuple else type(v) for name, v in attrs.items()}
    return tuple((name, types[name], attrs[name]) for name in sorted(attrs))
