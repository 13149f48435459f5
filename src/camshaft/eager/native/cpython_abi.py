"""Field offsets of CPython and NumPy objects that native calls read, found and checked at start."""

from __future__ import annotations

import ctypes
import functools
import sys
import sysconfig
from typing import Any

import numpy as np

# Byte offsets in an ndarray (PyArrayObject_fields, public since NumPy 1.7) and in CPython's objects on 64-bit machines.
TYPE, DATA, ND, DIMENSIONS, STRIDES, DESCR, FLAGS = 8, 16, 24, 32, 40, 56, 64
FLOAT_VALUE, TUPLE_SIZE, SCALAR_VALUE = 16, 16, 16

# Bits of an ndarray's flags. WARN: a write warns (what np.diagonal and np.broadcast_arrays return).
C_ORDER, F_ORDER, ALIGNED, WRITEABLE, COPY_BACK, WARN = 1, 2, 0x100, 0x400, 0x2000, 1 << 31

# NumPy's table of C functions: its own version first. A slot keeps its number for as long as the function exists.
_VERSIONS = (0x1000009, 0x2000000)
_VERSION_SLOT, _RETURN_SLOT, _NEW_COPY_SLOT, _EMPTY_SLOT, _NEW_LIKE_SLOT = 0, 76, 85, 184, 277
KEEP_ORDER = 2


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _int(address: int) -> int:
    return ctypes.c_int32.from_address(address).value


def _tuple_items() -> int:
    """Where a tuple's items begin: at 24 bytes, since CPython 3.14 behind a hash."""
    names = ("out", "axis")
    places = (24, 32) if sys.implementation.name == "cpython" else ()
    return next((at for at in places if _word(id(names) + at) == id(names[0])), 24)


TUPLE_ITEMS = _tuple_items()


def _samples() -> list[np.ndarray[Any, Any]]:
    flat = np.arange(24, dtype=np.float32)
    grid = flat.reshape(2, 3, 4)
    frozen = np.arange(6, dtype=np.int64)
    frozen.flags.writeable = False
    odd = np.zeros(9, np.uint8)[1:].view(np.float64)
    return [flat, grid, grid.transpose(), grid[:, ::2], frozen, odd, np.array(2.5), np.zeros((3, 0), np.float16)]


def _differs(array: np.ndarray[Any, Any]) -> str | None:
    """Returns which field of an ndarray is not at its expected offset, or None."""
    at, flags = id(array), _int(id(array) + FLAGS) & 0xFFFFFFFF
    known = array.flags
    bits = {C_ORDER: known.c_contiguous, F_ORDER: known.f_contiguous, ALIGNED: known.aligned}
    bits |= {WRITEABLE: known.writeable, COPY_BACK: known.writebackifcopy}
    wanted = {
        "type": _word(at + TYPE) == id(type(array)),
        "data": _word(at + DATA) == array.ctypes.data,
        "number of axes": _int(at + ND) == array.ndim,
        "dtype": _word(at + DESCR) == id(array.dtype),
        "flags": all(bool(flags & bit) == value for bit, value in bits.items()),
    }
    for name, offset, values in (("shape", DIMENSIONS, array.shape), ("strides", STRIDES, array.strides)):
        start = _word(at + offset)
        wanted[name] = all(_word(start + 8 * i) == value % 2**64 for i, value in enumerate(values))
    return next((name for name, right in wanted.items() if not right), None)


def has_plain_scalars(dtype: np.dtype[Any]) -> bool:
    """Whether a NumPy scalar of the dtype has its value where it is looked for."""
    scalar = dtype.type(1)
    held = ctypes.string_at(id(scalar) + SCALAR_VALUE, dtype.itemsize)
    return type(scalar) is dtype.type and held == np.ones((), dtype).tobytes()


@functools.cache
def refusal() -> str | None:
    """None where native calls may read objects of this interpreter, else why not."""
    if sys.implementation.name != "cpython":
        return f"{sys.implementation.name} is not CPython"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this CPython has no global lock, which the calls rely on"
    if ctypes.sizeof(ctypes.c_void_p) != 8 or sys.byteorder != "little":
        return "the pointers are not 64-bit, or the bytes not little-endian"
    wrong = next((found for array in _samples() if (found := _differs(array))), None)
    if wrong is not None:
        return f"NumPy {np.__version__} keeps an ndarray's {wrong} elsewhere"
    value, names = 1.25, ("out", "axis")
    if ctypes.c_double.from_address(id(value) + FLOAT_VALUE).value != value:
        return "a float's value lies elsewhere"
    items = [_word(id(names) + TUPLE_SIZE), *(_word(id(names) + TUPLE_ITEMS + 8 * i) for i in range(2))]
    return None if items == [2, id(names[0]), id(names[1])] else "a tuple's items lie elsewhere"


def data_address(array: np.ndarray[Any, Any]) -> int:
    """array.ctypes.data, which takes NumPy three times as long."""
    return _word(id(array) + DATA) if refusal() is None else int(array.ctypes.data)


def slot_offset(holder: object, held: object) -> int:
    """How many bytes into `holder`, an instance with __slots__, the reference to `held` is."""
    return next(at for at in range(16, sys.getsizeof(holder), 8) if _word(id(holder) + at) == id(held))


@functools.cache
def _functions() -> int | None:
    """The address of NumPy's table of C functions, or None where it is not found or of an unknown version."""
    try:
        module: Any = np._core._multiarray_umath if hasattr(np, "_core") else np.core._multiarray_umath  # type: ignore[attr-defined]
        capsule = module._ARRAY_API
    except AttributeError:
        return None
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    functions = int(get(capsule, None))
    version = ctypes.PYFUNCTYPE(ctypes.c_uint)(_word(functions + 8 * _VERSION_SLOT))()
    return functions if version in _VERSIONS else None


@functools.cache
def new_like() -> int | None:
    """The address of PyArray_NewLikeArray(prototype, order, descr, subok), or None where it is not found and tried."""
    functions = _functions()
    if functions is None:
        return None
    address = _word(functions + 8 * _NEW_LIKE_SLOT)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_int, ctypes.c_void_p, ctypes.c_int)(address)
    prototype = np.zeros((2, 3), np.float32, order="F")
    made = make(prototype, KEEP_ORDER, None, 0)
    same = type(made) is np.ndarray and (made.shape, made.dtype, made.strides) == ((2, 3), np.float32, (4, 8))
    return address if same and made is not prototype else None


@functools.cache
def empty() -> int | None:
    """The address of PyArray_Empty(nd, dims, descr, fortran), which takes a reference to the dtype, or None as above."""
    functions = _functions()
    if functions is None:
        return None
    address = _word(functions + 8 * _EMPTY_SLOT)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(address)
    dtype, sizes = np.dtype(np.float32), (ctypes.c_int64 * 2)(2, 3)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dtype))
    made = make(2, ctypes.addressof(sizes), id(dtype), 0)
    same = type(made) is np.ndarray and (made.shape, made.dtype, made.strides) == ((2, 3), dtype, (12, 4))
    return address if same else None


@functools.cache
def new_copy() -> int | None:
    """The address of PyArray_NewCopy(array, order), or None as above."""
    functions = _functions()
    if functions is None:
        return None
    address = _word(functions + 8 * _NEW_COPY_SLOT)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_int)(address)
    source = np.arange(12, dtype=np.float32)[::2].reshape(3, 2).T
    made = make(source, 0)
    same = type(made) is np.ndarray and (made.dtype, made.strides) == (np.float32, (12, 4))
    return address if same and np.array_equal(made, source) else None


@functools.cache
def scalar_of() -> int | None:
    """The address of PyArray_Return(array), which takes over its argument and gives a scalar for one without axes, or None."""
    functions = _functions()
    if functions is None:
        return None
    address = _word(functions + 8 * _RETURN_SLOT)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(address)
    array = np.array(2.5, np.float32)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(array))
    made = make(id(array))
    return address if type(made) is np.float32 and made == 2.5 else None
