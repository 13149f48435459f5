"""Find thunks that read only constants, such as packing; they run once, when a plan is bound.

Between lower.py and memory.py. What they leave is memory of the plan's own beside the constant, so a file's weights, which are
mapped and given back, are packed by each run as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from camshaft.backends.device import HOST
from camshaft.graph.graph import ArraySource
from camshaft.plan.lowering.lower import Lowered
from camshaft.plan.memory.allocate import host_memory
from camshaft.plan.memory.arena import make_schedule
from camshaft.plan.runtime.execute import bind
from camshaft.plan.schedule import Buffer, BufferSlice, BufferUse, Lifetime, Thunk

Array = np.ndarray[Any, Any]
# Bytes that may be kept a byte of the constant: f16 widened to f32 is 2, columns up to a whole panel come on top.
MOST_GROWTH = 3.0


def take_constant_thunks(lowered: Lowered) -> list[Thunk]:
    """Takes them out of the thunks: kernels on the host that read constants at hand alone, and write scratch that nobody else
    writes. The scratch is a constant from then on; where two would leave the same bytes, one is enough."""
    taken = _found(lowered)
    if not taken:
        return []
    kept: dict[object, Thunk] = {}
    renamed: dict[Buffer, Buffer] = {}
    for thunk in (lowered.thunks[i] for i in sorted(taken)):
        own = {use.slice.buffer: replace(use.slice.buffer, lifetime=Lifetime.CONSTANT) for use in _uses(thunk, "write")}
        first = kept.setdefault(_meaning(thunk), _over(thunk, own))
        renamed |= dict(zip(own, (use.slice.buffer for use in _uses(first, "write")), strict=True))
    rest = [_over(thunk, renamed) for i, thunk in enumerate(lowered.thunks) if i not in taken]
    before = np.cumsum([0, *(i in taken for i in range(len(lowered.thunks)))])
    lowered.origins[:] = [
        replace(o, first=int(o.first - before[o.first]), last=int(o.last - before[o.last])) for o in lowered.origins
    ]
    lowered.thunks[:] = rest
    return list(kept.values())


def run_constant_thunks(thunks: Sequence[Thunk], held: Mapping[Buffer, Array], workers: int) -> dict[Buffer, Array]:
    """Runs them over the constants' memory; the memory that they filled."""
    if not thunks:
        return {}
    made = {
        u.slice.buffer: host_memory(u.slice.buffer.name, u.slice.buffer.nbytes, 64)
        for t in thunks
        for u in _uses(t, "write")
    }
    schedule, memory = make_schedule(thunks)
    given = {buffer: made[buffer] if buffer in made else held[buffer] for buffer in schedule.buffers}
    bound = bind(schedule, memory, buffers=given, threads=workers)
    try:
        bound.run()
    finally:
        bound.close()
    return made


def _found(lowered: Lowered) -> set[int]:
    """The numbers of such thunks."""
    tensors = lowered.versions.buffers
    at_hand = {b for (t, space), b in tensors.items() if space == HOST and isinstance(t.source, ArraySource)}
    named = set(tensors.values())
    writers: dict[Buffer, set[int]] = {}
    for i, thunk in enumerate(lowered.thunks):
        for use in _uses(thunk, "write"):
            writers.setdefault(use.slice.buffer, set()).add(i)
    found = set()
    for i, thunk in enumerate(lowered.thunks):
        read, written = ({use.slice.buffer for use in _uses(thunk, access)} for access in ("read", "write"))
        alone = all(b.lifetime is Lifetime.TEMP and b not in named and len(writers[b]) == 1 for b in written)
        grown = sum(b.nbytes for b in written) <= MOST_GROWTH * sum(b.nbytes for b in read)
        plain = (thunk.kind, thunk.device, thunk.extents) == ("kernel", HOST, ())
        if plain and read and read <= at_hand and written and alone and grown:
            found.add(i)
    return found


def _uses(thunk: Thunk, access: str) -> list[BufferUse]:
    return [use for use in thunk.uses if use.access == access]


def _meaning(thunk: Thunk) -> object:
    """Equal for thunks that leave the same bytes: one kernel over the same slices, into scratch of the same size."""
    read = tuple(use.slice for use in _uses(thunk, "read"))
    written = tuple((use.slice.offset, use.slice.nbytes, use.slice.buffer.nbytes) for use in _uses(thunk, "write"))
    return id(thunk.entry), read, written, thunk.programs


def _over(thunk: Thunk, renamed: Mapping[Buffer, Buffer]) -> Thunk:
    """The thunk with other buffers in the place of some."""
    if not any(use.slice.buffer in renamed for use in thunk.uses):
        return thunk

    def moved(piece: BufferSlice) -> BufferSlice:
        return replace(piece, buffer=renamed.get(piece.buffer, piece.buffer))

    args = tuple(moved(arg) if isinstance(arg, BufferSlice) else arg for arg in thunk.args)
    return replace(thunk, args=args, uses=tuple(replace(use, slice=moved(use.slice)) for use in thunk.uses))
