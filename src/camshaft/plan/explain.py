"""A schedule in words: thunks, where they run and why, waits, arenas. For plans and execution graphs."""

from __future__ import annotations

from collections.abc import Iterable

from camshaft.backends.device import HOST
from camshaft.plan.memory.arena import MemoryPlan
from camshaft.plan.schedule import Schedule, Thunk
from camshaft.selection.select import Choice


def explain(schedule: Schedule, memory: MemoryPlan, threads: int, choices: Iterable[Choice]) -> str:
    """A line per thunk ('|' marks a wait before it), what the variants not chosen lost by, and the arena of each space."""
    lines = [
        f"{len(schedule.thunks)} thunks, {sum(schedule.waits)} waits, {threads} threads; arena "
        f"{memory.arena_nbytes} bytes for {memory.temp_nbytes_sum} bytes of temporaries"
    ]
    for index, (thunk, wait) in enumerate(zip(schedule.thunks, schedule.waits, strict=True)):
        order = ", ".join(schedule.thunks[i].name for i in schedule.after[index]) if schedule.after else ""
        lines.append(f"{'|' if wait else ' '}{index:4d} {_line(thunk)}{f'; after {order}' if order else ''}")
    lost = {f"{c.op.name}/{x.variant} ({x.backend}): {x.reason}" for c in choices for x in c.losers}
    lines += ["not chosen:", *(f"  {text}" for text in sorted(lost))] if lost else []
    return "\n".join(lines + _arenas(memory))


def _line(thunk: Thunk) -> str:
    kind = "" if thunk.kind == "kernel" else f" ({thunk.kind})"
    where = "" if thunk.device == HOST else f" on {thunk.device}"
    return f"{thunk.name}: {thunk.op}/{thunk.variant}{kind}{where}, {thunk.programs.bound} programs; {thunk.reason}"


def _arenas(memory: MemoryPlan) -> list[str]:
    places = [(b.space, f"  {offset:9d} +{b.nbytes:9d} {b.name}") for b, offset in memory.offsets.items()]
    lines = ["arena:", *(text for space, text in places if space == HOST)]
    for device, nbytes in memory.device_nbytes.items():
        lines += [f"arena on {device}, {nbytes} bytes:", *(text for space, text in places if space == device)]
    return lines
