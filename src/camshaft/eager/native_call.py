"""Builtin functions compiled by LLVM, which CPython calls for an op on arrays, and the rows of their states: kernels by dtypes,
or by dtypes and shapes."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from camshaft.backends.cpu.device import CpuKernel, native_function
from camshaft.dtypes import f32, f64
from camshaft.eager.any_length import FlatKernel
from camshaft.eager.native import cpython_abi, state_layout
from camshaft.eager.shapes.launches import run_launches
from camshaft.eager.shapes.runners import HostRunner, Prepared
from camshaft.lang.kernel import files_digest
from camshaft.store.files import digest_of

_FASTCALL_KEYWORDS = 0x0080 | 0x0002
MAX_ROWS = 32
FLAT_WORDS = MAX_ROWS * state_layout.ROW_WORDS
# From this many elements on, a call releases the GIL; to release and take it back costs 60 ns.
MOST_LOCKED = 4096
SHAPED_WORDS = state_layout.SHAPED_ROW_WORDS << state_layout.SHAPED_ROW_BITS
# Work from which a call releases the GIL.
RELEASE_NS = 2000.0
Array = np.ndarray[Any, Any]
Words = np.ndarray[Any, np.dtype[np.int64]]
# What rows point to, by `id`, is never freed: another thread may be running it while its row is replaced. When this is full,
# no more rows are added.
_prepared: dict[int, tuple[Prepared, Words, int, list[object]]] = {}
# Attributes whose addresses are in rows are never freed either.
_attributes: dict[tuple[int, ...], dict[str, Any]] = {}
MOST_PREPARED = 4096
# Scratch of more bytes is taken by NumPy, which asks for huge pages: its faults took 2.5 ns an element of a sort of 4 million.
MOST_SCRATCH_NBYTES = 16 << 20
_CONSTANTS = (bool, int, float, str, type(None))


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


# CPython has pointers to these while the builtin exists.
_builtins: list[Any] = []
_OUT = sys.intern("out")


def _run_shared(tagged: int) -> None:
    """Launches at a multiple of 16, their number added to the address."""
    run_launches(tagged & -16, tagged & 15)


def new_state(slow: Callable[..., Any], n_words: int) -> Words:
    """The words that a builtin reads, without a row yet. `slow`, the op's Python function, is not referenced by them."""
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
        "new_tuple": api.PyTuple_New,
    }
    addresses |= {name: ctypes.cast(function, ctypes.c_void_p).value or 0 for name, function in functions.items()}
    state = np.zeros(state_layout.ROWS_AT + n_words, np.int64)
    for name, address in addresses.items():
        state[state_layout.WORDS.index(name)] = address
    return state


def add_dtype_row(state: Words, kernel: FlatKernel, share: int) -> None:
    """Makes the builtin call this kernel for its dtype. `share`: the elements from which the workers do it together."""
    rows = int(state[0])
    inputs, output = [d.numpy for d in kernel.inputs], kernel.output.numpy
    known = state[state_layout.ROWS_AT :].reshape(MAX_ROWS, state_layout.ROW_WORDS)
    keys = [id(d) for d in inputs] + [0] * (3 - len(inputs))
    if rows == MAX_ROWS or keys in known[:rows, :3].tolist():
        return
    kinds = {f32.numpy: state_layout.AS_F32, f64.numpy: state_layout.AS_F64} if len(set(inputs)) == 1 else {}
    values = {f"dtype{i}": key for i, key in enumerate(keys)} | {"out_dtype": id(output)}
    values |= {f"nbytes{i}": d.itemsize for i, d in enumerate(inputs)} | {"out_nbytes": output.itemsize}
    scalars = [d.type if cpython_abi.has_plain_scalars(d) else None for d in inputs]
    values |= {f"scalar{i}": id(t) for i, t in enumerate(scalars) if t is not None}
    values |= {"block": kernel.block, "release": min(MOST_LOCKED, kernel.block), "share": share}
    values["number"] = kinds.get(inputs[0], state_layout.NO_FLOAT)
    values["least"], values["most"] = _ints(inputs)
    known[rows, : len(state_layout.ROW)] = [values.get(name, 0) for name in state_layout.ROW]
    for singles, code in kernel.code.items():
        known[rows, state_layout.ENTRIES + singles] = code.address
    state[0] = rows + 1  # last: a call that runs meanwhile sees whole rows only


def _ints(dtypes: Sequence[np.dtype[Any]]) -> tuple[int, int]:
    """The range of Python ints that a row takes for an operand: its dtype's, empty where there are several dtypes."""
    all_ints = np.iinfo(np.int64)
    if len(set(dtypes)) > 1 or (dtypes[0] not in (f32.numpy, f64.numpy) and dtypes[0].kind not in "iu"):
        return 1, 0
    own = np.iinfo(dtypes[0]) if dtypes[0].kind in "iu" else all_ints
    return max(int(own.min), all_ints.min), min(int(own.max), all_ints.max)


def add_shape_row(
    state: Words, arrays: Sequence[Array], attrs: Mapping[str, Any], prepared: Prepared, elementwise: bool
) -> None:
    """Adds a row that runs the prepared call for arrays of these dtypes and shapes and these attribute objects, if it fits a row.

    `elementwise`: an element of the output comes from those at its own place, so it may be written where it was read.
    """
    run = prepared.run
    if not isinstance(run, HostRunner) or not _fits(arrays, prepared, run):
        return
    if (id(prepared) not in _prepared and len(_prepared) >= MOST_PREPARED) or not _keep_attributes(attrs):
        return
    key, pairs = _key(arrays), _attribute_words(attrs)
    rows = [
        state[at : at + state_layout.SHAPED_ROW_WORDS] for at in map(_row_at, state_layout.row_indexes(key + pairs))
    ]
    if any(_key_of(row, len(key), len(pairs)) == key + pairs for row in rows):
        return
    row = next((row for row in rows if not row[0]), rows[0])
    _, steps, scratch_nbytes, _ = _prepared.setdefault(id(prepared), (prepared, *_step_words(run)))
    shape, dtype = prepared.shapes[0], prepared.computed[0]
    values = {f"nbytes{i}": a.nbytes for i, a in enumerate(arrays)}
    values |= {f"in_place{i}": elementwise and (a.shape, a.dtype) == (shape, dtype) for i, a in enumerate(arrays)}
    values |= {"out_dtype": id(dtype), "out_axes": len(shape), "out_nbytes": int(np.prod(shape)) * dtype.itemsize}
    values |= {f"out_size{i}": size for i, size in enumerate(shape)}
    for second, of in zip(prepared.shapes[1:], prepared.computed[1:], strict=True):
        values |= {"second_dtype": id(of), "second_axes": len(second)}
        values |= {f"second_size{i}": size for i, size in enumerate(second)}
    values |= {"release": run.elapsed_ns >= RELEASE_NS, "share": run.shared, "scratch_nbytes": scratch_nbytes}
    values |= {f"attribute{i}": address for i, address in enumerate(pairs)}
    values |= {"n_steps": len(run.steps), "steps": steps.ctypes.data}
    row[0] = 0  # no dtype: the row is not found while it is written
    row[len(key) : len(state_layout.SHAPED_ROW)] = [values.get(name, 0) for name in state_layout.SHAPED_ROW[len(key) :]]
    row[1 : len(key)] = key[1:]
    row[0] = key[0]


def _row_at(index: int) -> int:
    return state_layout.ROWS_AT + index * state_layout.SHAPED_ROW_WORDS


def _key_of(row: Words, n_key: int, n_pairs: int) -> list[int]:
    first = state_layout.SHAPED_ROW.index("attribute0")
    found: list[int] = row[:n_key].tolist() + row[first : first + n_pairs].tolist()
    return found


def _attribute_words(attrs: Mapping[str, Any]) -> list[int]:
    words = [address for item in attrs.items() for address in map(id, item)]
    return words + [0] * (state_layout.ATTRIBUTE_WORDS - len(words))


def _keep_attributes(attrs: Mapping[str, Any]) -> bool:
    """References names and values, so that their addresses stay valid. False for more or others than rows take, or too many."""
    if not attrs:
        return True
    known = all(type(v) in _CONSTANTS or (type(v) is tuple and {type(x) for x in v} <= {int}) for v in attrs.values())
    if not known or len(attrs) > state_layout.MOST_ATTRIBUTES or len(_attributes) >= MOST_PREPARED:
        return False
    _attributes.setdefault(tuple(map(id, (*attrs, *attrs.values()))), dict(attrs))
    return True


def _key(arrays: Sequence[Array]) -> list[int]:
    words = []
    for a in arrays:
        words += [id(a.dtype), a.ndim, *a.shape, *(0,) * (state_layout.MOST_AXES - a.ndim)]
    return words


def _fits(arrays: Sequence[Array], prepared: Prepared, run: HostRunner) -> bool:
    same = tuple(a.dtype for a in arrays) == prepared.inputs and prepared.computed == prepared.returned
    small = len(run.steps) <= state_layout.MOST_STEPS and len(arrays) <= state_layout.MOST_INPUTS
    small = small and sum(run.scratch_nbytes) <= MOST_SCRATCH_NBYTES
    few = all(len(s.places) + len(s.words) + len(s.sizes) <= state_layout.MOST_ARGUMENTS for s in run.steps)
    count = len(prepared.shapes)
    # one scalar is made of its array; of two arrays none is
    axes = [a.ndim for a in arrays] + [max(len(shape), 1) if count == 1 else len(shape) for shape in prepared.shapes]
    return (
        same
        and small
        and few
        and 0 < count <= state_layout.MOST_OUTPUTS
        and 0 < min(axes) <= max(axes) <= state_layout.MOST_AXES
    )


def _step_words(run: HostRunner) -> tuple[Words, int, list[object]]:
    """The steps' words, the bytes of all scratch with what its alignment takes, and what has the memory that words point to."""
    offsets, scratch_nbytes = [], 0
    for nbytes in run.scratch_nbytes:
        offsets.append(scratch_nbytes)
        scratch_nbytes += -(-nbytes // 64) * 64
    words, owners = np.zeros((len(run.steps), state_layout.STEP_WORDS), np.int64), []
    for row, step in zip(words, run.steps, strict=True):
        pairs = []
        for kind, index, offset in step.places:
            base = {"input": index, "output": state_layout.OUT_BASE + index, "scratch": state_layout.SCRATCH_BASE}[kind]
            pairs += [base, offset + (offsets[index] if kind == "scratch" else 0)]
        rest, owner = step.arguments_after()
        owners.append(owner)
        for value in rest:
            pairs += [state_layout.NO_BASE, value]
        row[: 3 + len(pairs)] = [step.code.address, step.programs, len(pairs) // 2, *pairs]
    return words, scratch_nbytes + 64 if scratch_nbytes else 0, owners


def _flat_ir(symbol: str, n: int, slot: int) -> str:
    from camshaft.eager.native.call import flat_ir  # not needed if the store has its code

    return flat_ir(symbol, n, slot)


def _shaped_ir(symbol: str, n: int, slot: int) -> str:
    from camshaft.eager.native.shaped_call import shaped_ir

    return shaped_ir(symbol, n, slot)


# The IR of builtins for n inputs, whose `self` has the ndarray of its state at a slot, in bytes: rows by dtypes, or by shapes.
_TEXTS = {"flat": _flat_ir, "shaped": _shaped_ir}


@functools.cache
def _code(kind: str, n: int, slot: int) -> CpuKernel:
    # All that the text depends on; emit/llvm/ is part of every key.
    signature = digest_of("builtin", kind, n, slot, cpython_abi.TUPLE_ITEMS, files_digest("eager/native/*.py"))
    return native_function("call", signature, lambda symbol: _TEXTS[kind](symbol, n, slot))


def builtin(name: str, described: str, kind: str, n: int, holder: object, state: Words) -> Callable[..., Any]:
    """A builtin function with `holder` as its __self__, an instance with __slots__ of which one is `state`.

    `kind` is one of _TEXTS, for n inputs; `described` its signature, a line of two dashes and its help, as CPython wants them.
    """
    code = _code(kind, n, cpython_abi.slot_offset(holder, state))
    method = _MethodDef(name.encode(), code.address, _FASTCALL_KEYWORDS, described.encode())
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    _builtins.append((method, code))
    made: Callable[..., Any] = make(ctypes.addressof(method), holder, None)
    return made
