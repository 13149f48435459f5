"""Pipelines and bind groups for the launches and copies of a run, created once when it is bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from camshaft.backends.device import LaunchCommand, Place, check_place
from camshaft.backends.webgpu.kernel import Pipeline, WebGpuKernel, make_group
from camshaft.backends.webgpu.memory import COPY_DST, UNIFORM, WebGpuMemory, words_nbytes
from camshaft.emit.wgsl.layout import FIXED_BINDING, RUN_BINDING, WgslModule
from camshaft.errors import BackendError

if TYPE_CHECKING:
    from camshaft.backends.webgpu.device import WebGpuDevice

Formula: TypeAlias = tuple[int, tuple[tuple[int, int], ...]]
Row: TypeAlias = tuple[int, Any, int, int]
# The smallest size in bytes of a binding that a kernel reads.
_LEAST_BINDING_NBYTES = 4


@dataclass(frozen=True)
class BoundDispatch:
    """A dispatch: its pipeline, its bind group, and the number of the formula for its number of programs."""

    pipeline: Any
    group: Any
    formula: int


@dataclass(frozen=True)
class _Pending:
    """A dispatch before its bind group exists. `fixed` is (binding, offset, bytes) of its fixed words."""

    pipeline: Pipeline
    rows: tuple[Row, ...]
    fixed: tuple[int, int, int]
    formula: int


class Binder:
    """Collects dispatches, then creates their bind groups without duplicates. Their fixed words share a uniform buffer."""

    def __init__(self, device: WebGpuDevice, run_block: WebGpuMemory) -> None:
        self.device, self.run_block = device, run_block
        self.formulas: dict[Formula, int] = {}
        self.groups: list[Any] = []
        self.fixed: WebGpuMemory | None = None
        self._words: dict[bytes, int] = {}
        self._end = 0
        self._pending: list[_Pending] = []

    def launch(self, command: LaunchCommand) -> int:
        """Adds a launch and returns its dispatch number. BackendError for a kernel or memory of another device."""
        kernel = command.kernel
        if not isinstance(kernel, WebGpuKernel) or kernel.device is not self.device:
            raise BackendError(f"{self.device.name}: launch {command.name!r} of a kernel that is not this device's")
        if len(command.arrays) != len(kernel.writable):
            raise BackendError(
                f"{command.name}: {len(command.arrays)} arrays; {kernel.name} takes {len(kernel.writable)}"
            )
        places = [checked(place, self.device, command.name) for place in command.arrays]
        written = {id(p.memory) for p, writes in zip(places, kernel.writable, strict=True) if writes}
        read_only = frozenset(i for i, p in enumerate(places) if id(p.memory) not in written)
        module, pipeline = kernel.module(read_only), kernel.pipeline(read_only)
        alignment = self.device.limits["alignment"]
        words = module.fixed_words(command.scalars, [p.offset_nbytes % alignment for p in places])
        rows = [(RUN_BINDING, self.run_block.handle, 0, self.run_block.size), *_rows(module, places, alignment)]
        return self.add(pipeline, rows, FIXED_BINDING, words, (command.constant, command.factors))

    def add(self, pipeline: Pipeline, rows: Sequence[Row], fixed: int, words: np.ndarray[Any, Any], of: Formula) -> int:
        """Adds a dispatch of `pipeline` with `rows` and fixed words at binding `fixed`. Returns its number."""
        raw = words.tobytes()
        if raw not in self._words:
            step = self.device.uniform_alignment
            self._words[raw] = self._end
            self._end = -(-(self._end + len(raw)) // step) * step
        formula = self.formulas.setdefault(of, len(self.formulas))
        self._pending.append(_Pending(pipeline, tuple(rows), (fixed, self._words[raw], len(raw)), formula))
        return len(self._pending) - 1

    def finish(self) -> list[BoundDispatch]:
        """Writes the fixed words to their buffer and returns the dispatches by number."""
        if not self._pending:
            return []
        self.fixed = WebGpuMemory(self.device, self._end, UNIFORM | COPY_DST)
        block = np.zeros(self.fixed.size, np.uint8)
        for raw, offset in self._words.items():
            block[offset : offset + len(raw)] = np.frombuffer(raw, np.uint8)
        self.device.write_buffer(self.fixed.handle, 0, block)
        made: dict[Any, Any] = {}
        return [self._bound(pending, self.fixed.handle, made) for pending in self._pending]

    def _bound(self, pending: _Pending, fixed: Any, made: dict[Any, Any]) -> BoundDispatch:
        binding, offset, nbytes = pending.fixed
        layout, rows = pending.pipeline.group_layout, (*pending.rows, (binding, fixed, offset, nbytes))
        if (layout, rows) not in made:
            made[layout, rows] = make_group(self.device, layout, rows)
            self.groups.append(made[layout, rows])
        return BoundDispatch(pending.pipeline.handle, made[layout, rows], pending.formula)

    def close(self) -> None:
        """Releases the bind groups and the buffer of fixed words."""
        for group in self.groups:
            self.device.native.lib.wgpuBindGroupRelease(group)
        self.groups.clear()
        if self.fixed is not None:
            self.fixed.close()


def _rows(module: WgslModule, places: Sequence[Place], alignment: int) -> list[Row]:
    """Returns each storage binding's range: from the array's aligned offset to at most the array's end."""
    rows = []
    for b in module.bindings:
        place = places[b.array]
        memory = place.memory
        assert isinstance(memory, WebGpuMemory)
        start = place.offset_nbytes // alignment * alignment + b.offset_nbytes
        end = min(start + b.nbytes, words_nbytes(place.offset_nbytes + place.nbytes))
        if end - start < _LEAST_BINDING_NBYTES:  # never read
            start, end = 0, min(memory.size, b.nbytes)
        rows.append((b.binding, memory.handle, start, end - start))
    return rows


def checked(place: Place, device: WebGpuDevice, what: str) -> Place:
    """Returns the place. BackendError unless it is a valid range of this device's open memory."""
    memory = place.memory
    is_own = isinstance(memory, WebGpuMemory) and memory.device is device and memory.handle is not None
    check_place(device.name, what, place, is_own)
    return place
