"""Arrays in the interpreter: bounds checks, undefined scratch, and races between programs and lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from camshaft.errors import VerifyError
from camshaft.lang import ir, traversal
from camshaft.lang.interpreter.checks import ALL_LANES, MANY, Race, Tracker, Undefined


@dataclass
class Counts:
    """Counters of a run: elements loaded from and stored to arrays (scratch excluded), and programs."""

    loads: int = 0
    stores: int = 0
    programs: int = 0


class Memory:
    """The data and the access checks of one array of a running kernel."""

    def __init__(self, kernel: ir.KernelIR, array: ir.Array, data: Any, counts: Counts, stored: bool) -> None:
        self.kernel, self.array, self.data, self.counts = kernel, array, data, counts
        self.name = f"{array.name} (made at line {array.line})" if array.scratch else array.name
        self.shape, self.strides = array.shape, array.strides
        self.written = np.zeros(data.size, np.bool_) if array.scratch else None
        self.by_lane = Tracker(data.size, "lanes") if stored else None
        self.by_program = Tracker(data.size, "programs") if stored and not array.scratch else None
        self.program: tuple[int, ...] = ()
        self.linear = 0
        self.known: dict[int, tuple[int, ...]] = {}

    # --- lifetime ------------------------------------------------------------------------------------------------
    def start_program(self, program: tuple[int, ...]) -> None:
        """Reset scratch. Accesses to arrays stay recorded across programs, by program number."""
        self.program, self.linear = program, self.linear + 1
        self.known[self.linear] = program
        if self.written is not None:
            self.written[:] = False
        self.barrier()

    def barrier(self) -> None:
        """Forget the accesses by lane: a barrier orders them."""
        if self.by_lane is not None:
            self.by_lane.clear()

    def fail(self, line: int, message: str) -> VerifyError:
        return VerifyError(f"kernel {self.kernel.name}, line {line}: {message}")

    # --- indexing ------------------------------------------------------------------------------------------------
    def place(self, line: int, indices: Sequence[Any], active: Any) -> Any:
        """Return the flat element of each active lane (an int if all indices are uniform) after a bounds check per dimension."""
        flat: Any = 0
        for axis, (index, size, stride) in enumerate(zip(indices, self.shape, self.strides, strict=True)):
            if index.ndim == 0:
                at = int(index)
                if not 0 <= at < size:
                    raise self.outside(line, axis, at, "all lanes")
                flat = flat + at * stride
                continue
            chosen = index if active is None else index[active]
            # one comparison checks both bounds: as unsigned, a negative index is large
            if chosen.size and np.maximum.reduce(chosen.view(np.uint64)) >= size:
                first = int(np.argmax((chosen < 0) | (chosen >= size)))
                lane = first if active is None else int(active[first])
                raise self.outside(line, axis, int(chosen[first]), f"lane {lane}")
            flat = flat + chosen * stride
        return flat

    def outside(self, line: int, axis: int, index: int, lane: str) -> VerifyError:
        place = f"index {index} of {self.name} along axis {axis} is outside its {self.shape[axis]}"
        return self.fail(line, f"{place} (shape {self.shape}, program {self.program}, {lane})")

    def vector_place(self, line: int, indices: Sequence[Any], count: int) -> Any:
        """Return the flat elements of an explicit vector, which must be in one row."""
        if count <= 0:
            return np.empty(0, np.int64)
        first = self.place(line, indices, None)
        if int(indices[-1]) + count > self.shape[-1]:
            raise self.outside(line, len(self.shape) - 1, int(indices[-1]) + count - 1, f"element {count - 1}")
        return np.arange(first, first + count)

    # --- accesses ------------------------------------------------------------------------------------------------
    def load(self, line: int, indices: Sequence[Any], mask: Any, lanes: int) -> tuple[Any, Undefined | None]:
        """Return array[indices], 0 in inactive lanes, and which elements were never written."""
        active = None if mask is None else np.flatnonzero(mask)
        flat = self.place(line, indices, active)
        if np.ndim(flat) == 0:
            return self.data[flat], self.note_read(line, flat, ALL_LANES)
        who = np.arange(lanes) if active is None else active
        undefined = self.note_read(line, flat, who)
        if active is None:
            return self.data[flat], undefined
        result = np.zeros(lanes, self.data.dtype)
        result[active] = self.data[flat]
        return result, undefined and undefined.spread(lanes, active)

    def load_vector(self, line: int, indices: Sequence[Any], width: int, count: int) -> tuple[Any, Undefined | None]:
        """Return `width` elements: `count` consecutive ones of the array, then zeros; and which were never written."""
        flat = self.vector_place(line, indices, count)
        undefined = self.note_read(line, flat, ALL_LANES)
        result = np.zeros(width, self.data.dtype)
        result[: flat.size] = self.data[flat]
        return result, undefined and undefined.spread(width, np.arange(flat.size))

    def store(
        self, line: int, indices: Sequence[Any], value: Any, mask: Any, lanes: int, undefined: Undefined | None = None
    ) -> None:
        """Store `value` in the active lanes. Storing undefined elements is allowed in scratch and an error elsewhere."""
        active = None if mask is None else np.flatnonzero(mask)
        flat = self.place(line, indices, active)
        if np.ndim(flat) == 0:
            if np.ndim(value):
                raise self.fail(line, f"lanes store different values to one element of {self.name}")
            self.note_write(line, flat, ALL_LANES, undefined)
            self.data[flat] = self.narrow(value)
            return
        who = np.arange(lanes) if active is None else active
        self.one_lane_each(line, flat, who)
        self.note_write(line, flat, who, undefined and undefined.only(lanes, active))
        self.data[flat] = self.narrow(value if np.ndim(value) == 0 or active is None else value[active])

    def store_vector(
        self, line: int, indices: Sequence[Any], value: Any, count: int, undefined: Undefined | None = None
    ) -> None:
        """Store the first `count` elements of a vector."""
        flat = self.vector_place(line, indices, count)
        self.note_write(line, flat, ALL_LANES, undefined and undefined.only(len(value), np.arange(flat.size)))
        self.data[flat] = self.narrow(value[: flat.size])

    def narrow(self, value: Any) -> Any:
        return value if value.dtype == self.data.dtype else value.astype(self.data.dtype)

    def one_lane_each(self, line: int, flat: Any, who: Any) -> None:
        """Raise VerifyError if two lanes of one store write the same element."""
        if (flat[1:] > flat[:-1]).all():
            return
        order = np.argsort(flat, kind="stable")
        same = np.flatnonzero(np.diff(flat[order]) == 0)
        if same.size:
            first, second = order[same[0]], order[same[0] + 1]
            place = f"element {self.spell(int(flat[first]))} of {self.name}"
            raise self.fail(line, f"lanes {who[first]} and {who[second]} both store {place} (program {self.program})")

    def spell(self, flat: int) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(flat, self.shape))

    # --- races and undefined values ------------------------------------------------------------------------------
    def note_read(self, line: int, flat: Any, who: Any) -> Undefined | None:
        if self.by_lane is not None:
            self.race(line, self.by_lane, self.by_lane.read(flat, who, line))
        if self.by_program is not None:
            self.race(line, self.by_program, self.by_program.read(flat, self.linear, line))
        if self.written is None:
            self.counts.loads += np.size(flat)
            return None
        if self.written[flat].all():
            return None
        missing = ~self.written[flat]
        at = flat if np.ndim(flat) == 0 else flat[int(np.argmax(missing))]
        place = f"element {self.spell(int(at))} of {self.name}, read at line {line},"
        return Undefined(missing, f"{place} was never written (program {self.program})")

    def note_write(self, line: int, flat: Any, who: Any, undefined: Undefined | None) -> None:
        if self.written is None:
            self.counts.stores += np.size(flat)
            if undefined is not None:
                raise self.fail(line, f"the value stored to {self.name} depends on scratch: {undefined.origin}")
        else:
            self.written[flat] = True if undefined is None else ~undefined.where
        if self.by_lane is not None:
            self.race(line, self.by_lane, self.by_lane.write(flat, who, line))
        if self.by_program is not None:
            self.race(line, self.by_program, self.by_program.write(flat, self.linear, line))

    def atomic(self, line: int, indices: Sequence[Any], lane: int) -> int:
        """Check an atomic of one lane (ALL_LANES: of the program) and return its flat element."""
        flat = int(self.place(line, indices, None))
        if self.written is not None and not self.written[flat]:
            place = f"element {self.spell(flat)} of {self.name}"
            raise self.fail(line, f"an atomic on {place}, which was never written (program {self.program})")
        if self.by_lane is not None:
            self.race(line, self.by_lane, self.by_lane.atomic(flat, lane, line))
        if self.by_program is not None:
            self.race(line, self.by_program, self.by_program.atomic(flat, self.linear, line))
        return flat

    def race(self, line: int, tracker: Tracker, found: Race | None) -> None:
        if found is None:
            return
        place = f"element {self.spell(found.element)} of {self.name}"
        between = " without a barrier between" if tracker.of == "lanes" else ""
        now = f"{self.who(tracker, found.me)} {found.now} {place}"
        before = f"{self.who(tracker, found.other)} {found.before} at line {found.other_line}"
        raise self.fail(line, f"a race{between}: {now}, which {before}")

    def who(self, tracker: Tracker, number: int) -> str:
        if number == MANY:
            return f"several {tracker.of}"
        if tracker.of == "programs":
            return f"program {self.known[number]}"
        return "every lane" if number == ALL_LANES else f"lane {number}"


def bind(kernel: ir.KernelIR, arrays: Sequence[Any], counts: Counts) -> dict[ir.Array, Memory]:
    """Return a Memory per array and scratch. VerifyError if an array does not fit, or is written and overlaps another."""
    if len(arrays) != len(kernel.arrays):
        raise VerifyError(f"kernel {kernel.name}: {len(arrays)} arrays; wanted {len(kernel.arrays)}")
    stored = traversal.changed_arrays(kernel.body)
    for array, data in zip(kernel.arrays, arrays, strict=True):
        fits = data.dtype == array.dtype.numpy and data.size == prod(array.shape) and data.flags.c_contiguous
        if not fits:
            came = f"{data.dtype} {data.shape}"
            raise VerifyError(f"kernel {kernel.name}: {array.name} is {came}; wanted {array.dtype} {array.shape}")
        for other, others in zip(kernel.arrays, arrays, strict=True):
            if array in stored and other is not array and np.may_share_memory(data, others):
                raise VerifyError(f"kernel {kernel.name}: {array.name} is stored to and overlaps {other.name}")
    memories = {
        array: Memory(kernel, array, data.reshape(-1), counts, array in stored)
        for array, data in zip(kernel.arrays, arrays, strict=True)
    }
    for array in kernel.scratch:
        memories[array] = Memory(kernel, array, np.zeros(prod(array.shape), array.dtype.numpy), counts, True)
    return memories
