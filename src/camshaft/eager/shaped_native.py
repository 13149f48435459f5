"""Fill the native shape table of an op with compiled kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from camshaft.eager.native import shape_table as layout
from camshaft.eager.native.call_state import ROWS_AT
from camshaft.eager.native_call import State
from camshaft.eager.runners import HostRunner
from camshaft.eager.shaped_call import Prepared

Array = np.ndarray[Any, Any]
Words = np.ndarray[Any, np.dtype[np.int64]]
SHAPED_WORDS = layout.ROW_WORDS << layout.ROW_BITS
# Work from which other Python threads go on meanwhile.
RELEASE_NS = 2000.0
# What rows point to, by what was prepared. Calls may be under way when another shape takes a row, so it stays; a program of ever
# new shapes fills this, and then no more.
_prepared: dict[int, tuple[Prepared, Words, int]] = {}
# Attributes whose addresses are in rows; likewise.
_attrs: dict[tuple[int, ...], dict[str, Any]] = {}
MOST_ENTRIES = 4096
_CONSTANTS = (bool, int, float, str, type(None))
_BASES = {"output": layout.OUT_BASE, "scratch": layout.SCRATCH_BASE}


def add_row(
    state: State, arrays: Sequence[Array], attrs: Mapping[str, Any], prepared: Prepared, elementwise: bool
) -> None:
    """Makes the builtin call what was prepared for arrays of these dtypes and shapes and these very attributes, if it is of the
    kind that a row holds.

    `elementwise`: an element of the output comes from those at its own place, so it may be written where it was read.
    """
    run = prepared.run
    if not isinstance(run, HostRunner) or not _fits(arrays, prepared, run):
        return
    if (id(prepared) not in _prepared and len(_prepared) >= MOST_ENTRIES) or not _hold(attrs):
        return
    key, pairs = _key(arrays), _pairs(attrs)
    rows = [state[at : at + layout.ROW_WORDS] for at in map(_place, layout.row_indexes(key + pairs))]
    if any(_key_of(row, len(key), len(pairs)) == key + pairs for row in rows):
        return
    row = next((row for row in rows if not row[0]), rows[0])
    _, steps, scratch_nbytes = _prepared.setdefault(id(prepared), (prepared, *_steps(run)))
    (shape,), (dtype,) = prepared.shapes, prepared.computed
    values = {f"nbytes{i}": a.nbytes for i, a in enumerate(arrays)}
    values |= {f"in_place{i}": elementwise and (a.shape, a.dtype) == (shape, dtype) for i, a in enumerate(arrays)}
    values |= {"out_dtype": id(dtype), "out_axes": len(shape), "out_nbytes": int(np.prod(shape)) * dtype.itemsize}
    values |= {f"out_size{i}": size for i, size in enumerate(shape)}
    values |= {"release": run.elapsed_ns >= RELEASE_NS, "share": run.shared, "scratch_nbytes": scratch_nbytes}
    values |= {f"attribute{i}": address for i, address in enumerate(pairs)}
    values |= {"n_steps": len(run.steps), "steps": steps.ctypes.data}
    row[0] = 0  # no dtype: nobody finds the row while it is written
    row[len(key) : len(layout.ROW)] = [values.get(name, 0) for name in layout.ROW[len(key) :]]
    row[1 : len(key)] = key[1:]
    row[0] = key[0]


def _place(index: int) -> int:
    return ROWS_AT + index * layout.ROW_WORDS


def _key_of(row: Words, n_key: int, n_pairs: int) -> list[int]:
    first = layout.ROW.index("attribute0")
    found: list[int] = row[:n_key].tolist() + row[first : first + n_pairs].tolist()
    return found


def _pairs(attrs: Mapping[str, Any]) -> list[int]:
    words = [address for item in attrs.items() for address in map(id, item)]
    return words + [0] * (layout.ATTRIBUTE_WORDS - len(words))


def _hold(attrs: Mapping[str, Any]) -> bool:
    """Keeps names and values, so that their addresses stay theirs. False for more or others than rows take, or too many."""
    if not attrs:
        return True
    known = all(type(v) in _CONSTANTS or (type(v) is tuple and {type(x) for x in v} <= {int}) for v in attrs.values())
    if not known or len(attrs) > layout.MOST_ATTRIBUTES or len(_attrs) >= MOST_ENTRIES:
        return False
    _attrs.setdefault(tuple(map(id, (*attrs, *attrs.values()))), dict(attrs))
    return True


def _key(arrays: Sequence[Array]) -> list[int]:
    words = []
    for a in arrays:
        words += [id(a.dtype), a.ndim, *a.shape, *(0,) * (layout.MOST_AXES - a.ndim)]
    return words


def _fits(arrays: Sequence[Array], prepared: Prepared, run: HostRunner) -> bool:
    same = tuple(a.dtype for a in arrays) == prepared.inputs and prepared.computed == prepared.returned
    small = len(run.steps) <= layout.MOST_STEPS and len(arrays) <= layout.MOST_INPUTS
    few = all(len(s.places) + len(s.words) <= layout.MOST_ARGUMENTS for s in run.steps)
    axes = [a.ndim for a in arrays] + [max(len(shape), 1) for shape in prepared.shapes]
    return same and small and few and len(prepared.shapes) == 1 and min(axes) > 0 and max(axes) <= layout.MOST_AXES


def _steps(run: HostRunner) -> tuple[Words, int]:
    """The steps' words, and the bytes of all scratch with what its alignment takes."""
    offsets, scratch_nbytes = [], 0
    for spec in run.build.scratch:
        offsets.append(scratch_nbytes)
        scratch_nbytes += -(-spec.nbytes // 64) * 64
    words = np.zeros((len(run.steps), layout.STEP_WORDS), np.int64)
    for row, step in zip(words, run.steps, strict=True):
        pairs = []
        for kind, index, offset in step.places:
            pairs += [_BASES.get(kind, index), offset + (offsets[index] if kind == "scratch" else 0)]
        for value in step.words:
            pairs += [layout.NO_BASE, value]
        row[: 3 + len(pairs)] = [step.code.address, step.programs, len(pairs) // 2, *pairs]
    return words, scratch_nbytes + 64 if scratch_nbytes else 0
