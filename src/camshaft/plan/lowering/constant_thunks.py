"""Run thunks that read only constants, such as packing, once when a plan is bound.

Their results take memory besides the constant's. So thunks that read weights of a mapped file stay part of each
run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from camshaft.backends.device import HOST
from camshaft.graph.graph import ArraySource, Tensor
from camshaft.plan.buffers import Buffer, BufferSlice, BufferUse, Lifetime
from camshaft.plan.lowering.lower import Lowered
from camshaft.plan.memory.allocate import host_memory
from camshaft.plan.memory.arena import make_schedule
from camshaft.plan.runtime.execute import bind
from camshaft.plan.schedule import Thunk

Array = np.ndarray[Any, Any]
# Result bytes per byte of the constant: f16 widened to f32 has 2, and columns are padded to a whole panel.
MOST_GROWTH = 3.0


def take_constant_thunks(lowered: Lowered, constants: Collection[Tensor] = ()) -> list[Thunk]:
    """Removes and returns the constant thunks: host kernels that read only constants in arrays, or tensors that stand for such,
    and are the only writers of their scratch buffers. Those buffers become constants. Of thunks with the same result only the
    first is returned."""
    taken = _constant_thunks(lowered, constants)
    if not taken:
        return []
    once: dict[object, Thunk] = {}
    renamed: dict[Buffer, Buffer] = {}
    for thunk in (lowered.thunks[i] for i in sorted(taken)):
        own = {buffer: replace(buffer, lifetime=Lifetime.CONSTANT) for buffer in thunk.written}
        first = once.setdefault(_result_key(thunk), _with_buffers(thunk, own))
        renamed |= dict(zip(own, dict.fromkeys(first.written), strict=True))
    rest = [_with_buffers(thunk, renamed) for i, thunk in enumerate(lowered.thunks) if i not in taken]
    before = np.cumsum([0, *(i in taken for i in range(len(lowered.thunks)))])
    lowered.origins[:] = [
        replace(o, first=int(o.first - before[o.first]), last=int(o.last - before[o.last])) for o in lowered.origins
    ]
    lowered.thunks[:] = rest
    return list(once.values())


def run_constant_thunks(
    thunks: Sequence[Thunk], constants: Mapping[Buffer, Array], workers: int
) -> dict[Buffer, Array]:
    """Runs the thunks over the constants' memory and returns the memory that they wrote."""
    if not thunks:
        return {}
    made = {buffer: host_memory(buffer.name, buffer.nbytes, 64) for thunk in thunks for buffer in thunk.written}
    schedule, memory = make_schedule(thunks)
    given = {buffer: made[buffer] if buffer in made else constants[buffer] for buffer in schedule.buffers}
    with bind(schedule, memory, buffers=given, threads=workers) as bound:
        bound.run()
    return made


def _constant_thunks(lowered: Lowered, constants: Collection[Tensor]) -> set[int]:
    """Returns the indices of the constant thunks."""
    tensors = lowered.residency.buffers
    in_arrays = {
        b
        for (t, space), b in tensors.items()
        if space == HOST and (isinstance(t.source, ArraySource) or t in constants)
    }
    named = set(tensors.values())
    writers: dict[Buffer, set[int]] = {}
    for i, thunk in enumerate(lowered.thunks):
        for buffer in thunk.written:
            writers.setdefault(buffer, set()).add(i)
    found = set()
    for i, thunk in enumerate(lowered.thunks):
        read, written = {use.slice.buffer for use in _uses(thunk, "read")}, set(thunk.written)
        alone = all(b.lifetime is Lifetime.TEMP and b not in named and len(writers[b]) == 1 for b in written)
        grown = sum(b.nbytes for b in written) <= MOST_GROWTH * sum(b.nbytes for b in read)
        plain = (thunk.kind, thunk.device, thunk.extents) == ("kernel", HOST, ())
        if plain and read and read <= in_arrays and written and alone and grown:
            found.add(i)
    return found


def _uses(thunk: Thunk, access: str) -> list[BufferUse]:
    return [use for use in thunk.uses if use.access == access]


def _result_key(thunk: Thunk) -> object:
    """Returns a key that is equal for thunks with the same result: same kernel, same slices, same scratch sizes."""
    read = tuple(use.slice for use in _uses(thunk, "read"))
    written = tuple((use.slice.offset, use.slice.nbytes, use.slice.buffer.nbytes) for use in _uses(thunk, "write"))
    return id(thunk.entry), read, written, thunk.programs


def _with_buffers(thunk: Thunk, renamed: Mapping[Buffer, Buffer]) -> Thunk:
    """Returns the thunk with buffers replaced."""
    if not any(use.slice.buffer in renamed for use in thunk.uses):
        return thunk

    def moved(piece: BufferSlice) -> BufferSlice:
        return replace(piece, buffer=renamed.get(piece.buffer, piece.buffer))

    args = tuple(moved(arg) if isinstance(arg, BufferSlice) else arg for arg in thunk.args)
    return replace(thunk, args=args, uses=tuple(replace(use, slice=moved(use.slice)) for use in thunk.uses))
