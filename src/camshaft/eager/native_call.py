"""Builtin functions compiled by LLVM: an elementwise op as CPython calls it, and its state."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from camshaft.backends.cpu.device import CpuKernel, native_function
from camshaft.dtypes import f32, f64
from camshaft.eager.any_length import FlatKernel
from camshaft.eager.launches import run_launches
from camshaft.eager.native import call_state, cpython_abi

_FASTCALL_KEYWORDS = 0x0080 | 0x0002
MAX_ROWS = 32
FLAT_WORDS = MAX_ROWS * call_state.ROW_WORDS
# From this many elements on other Python threads go on meanwhile; letting go of the lock and taking it back takes 60 ns.
MOST_LOCKED = 4096
State = np.ndarray[Any, np.dtype[np.int64]]


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


# CPython keeps pointers to these for as long as the builtin lives.
_references: list[Any] = []
_OUT = sys.intern("out")


def _run_shared(tagged: int) -> None:
    """Launches at a multiple of 16, their number added to the address."""
    run_launches(tagged & -16, tagged & 15)


def new_state(slow: Callable[..., Any], n_words: int) -> State:
    """The words that a builtin reads, without a row yet. They do not hold on to `slow`, the op's Python function."""
    api = ctypes.pythonapi
    addresses = {
        "array_type": id(np.ndarray),
        "float_type": id(float),
        "int_type": id(int),
        "slow": id(slow),
        "out_name": id(_OUT),
        "pool": id(_run_shared),
        "new_like": cpython_abi.new_like() or 0,
        "empty": cpython_abi.empty() or 0,
        "scalar_of": cpython_abi.scalar_of() or 0,
        "new_copy": cpython_abi.new_copy() or 0,
    }
    functions = {
        "vectorcall": api.PyObject_Vectorcall,
        "incref": api.Py_IncRef,
        "decref": api.Py_DecRef,
        "save_thread": api.PyEval_SaveThread,
        "restore_thread": api.PyEval_RestoreThread,
        "long_from_address": api.PyLong_FromVoidPtr,
        "int_value": api.PyLong_AsLongLongAndOverflow,
        "take_memory": api.PyMem_RawMalloc,
        "free_memory": api.PyMem_RawFree,
    }
    addresses |= {name: ctypes.cast(function, ctypes.c_void_p).value or 0 for name, function in functions.items()}
    state = np.zeros(call_state.ROWS_AT + n_words, np.int64)
    for name, address in addresses.items():
        state[call_state.WORDS.index(name)] = address
    return state


def add_row(state: State, kernel: FlatKernel, share: int) -> None:
    """Makes the builtin call this kernel for its dtype. `share`: the elements from which the workers do it together."""
    rows = int(state[0])
    inputs, output = [d.numpy for d in kernel.inputs], kernel.output.numpy
    known = state[call_state.ROWS_AT :].reshape(MAX_ROWS, call_state.ROW_WORDS)
    keys = [id(d) for d in inputs] + [0] * (3 - len(inputs))
    if rows == MAX_ROWS or keys in known[:rows, :3].tolist():
        return
    kinds = {f32.numpy: call_state.AS_F32, f64.numpy: call_state.AS_F64} if len(set(inputs)) == 1 else {}
    values = {f"dtype{i}": key for i, key in enumerate(keys)} | {"out_dtype": id(output)}
    values |= {f"nbytes{i}": d.itemsize for i, d in enumerate(inputs)} | {"out_nbytes": output.itemsize}
    scalars = [d.type if cpython_abi.has_plain_scalars(d) else None for d in inputs]
    values |= {f"scalar{i}": id(t) for i, t in enumerate(scalars) if t is not None}
    values |= {"block": kernel.block, "release": min(MOST_LOCKED, kernel.block), "share": share}
    values["number"] = kinds.get(inputs[0], call_state.NO_FLOAT)
    values["least"], values["most"] = _ints(inputs)
    known[rows, : len(call_state.ROW)] = [values.get(name, 0) for name in call_state.ROW]
    for singles, code in kernel.code.items():
        known[rows, call_state.ENTRIES + singles] = code.address
    state[0] = rows + 1  # last: a call that runs meanwhile sees whole rows only


def _ints(dtypes: Sequence[np.dtype[Any]]) -> tuple[int, int]:
    """The Python ints that a row takes for an operand: those that its dtype holds, none where there are several."""
    all_ints = np.iinfo(np.int64)
    if len(set(dtypes)) > 1 or (dtypes[0] not in (f32.numpy, f64.numpy) and dtypes[0].kind not in "iu"):
        return 1, 0
    own = np.iinfo(dtypes[0]) if dtypes[0].kind in "iu" else all_ints
    return max(int(own.min), all_ints.min), min(int(own.max), all_ints.max)


@functools.cache
def _code(text_of: Callable[[str, int, int], str], n: int, slot: int) -> CpuKernel:
    return native_function("call", f"builtin|{text_of('SYMBOL', n, slot)}", lambda symbol: text_of(symbol, n, slot))


def builtin(
    name: str, described: str, text_of: Callable[[str, int, int], str], n: int, holder: object, state: State
) -> Callable[..., Any]:
    """A builtin function with `holder` as its __self__, an instance with __slots__ of which one is `state`.

    `text_of(symbol, n, slot)` is its IR for n inputs; `described` its signature, a line of two dashes and its help, as CPython
    wants them.
    """
    code = _code(text_of, n, cpython_abi.slot_offset(holder, state))
    method = _MethodDef(name.encode(), code.address, _FASTCALL_KEYWORDS, described.encode())
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    _references.append((method, code))
    made: Callable[..., Any] = make(ctypes.addressof(method), holder, None)
    return made
