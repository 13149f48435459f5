"""Submit a run: its steps are encoded once and submitted with one call; everything they use was created when it was bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.backends.device import Command, check_active
from camshaft.backends.webgpu.binding import Binder
from camshaft.backends.webgpu.memory import WebGpuMemory
from camshaft.backends.webgpu.stamps import Stamps
from camshaft.backends.webgpu.steps import BufferCopy, Pass, make_steps
from camshaft.errors import BackendError

if TYPE_CHECKING:
    from camshaft.backends.webgpu.device import WebGpuDevice

# Extents are i32 in the run block.
_MOST_ACTIVE = 2**31 - 1


class WebGpuRun:
    """A DeviceRun (backends/device.py). `submit` may be called from any thread; calls are serialized."""

    def __init__(self, device: WebGpuDevice, commands: Sequence[Command], n_extents: int, timed: bool) -> None:
        self.device, self._n_extents, self._commands = device, n_extents, tuple(commands)
        self._closed = self._submitted = False
        self._active: tuple[int, ...] = ()
        self._block = np.zeros(max(n_extents, 1), np.int32)
        with device.lock:
            self._block_memory = WebGpuMemory(device, self._block.nbytes)
            self._binder = Binder(device, self._block_memory)
            self._made = make_steps(self._binder, commands, Stamps(device, len(commands)) if timed else None)
        self._formulas = list(self._binder.formulas)

    def submit(self, active: Sequence[int]) -> None:
        """Writes the run block and the uploads, encodes all steps and submits them once.

        BackendError if the device was lost or reports an error, if an extent is out of range, or if the run is closed.
        """
        device = self.device
        with device.lock:
            if self._closed:
                raise BackendError(f"{device.name}: a closed run was submitted")
            device.faults.check("since the last run")
            across, down = self._workgroups(active)
            self._write(active)
            self._active = tuple(active)
            encoder = device.begin_commands()
            for step in self._made.steps:
                if isinstance(step, Pass):
                    self._encode_pass(encoder, step, across, down)
                else:
                    self._encode_copy(encoder, step, active)
            if self._made.stamps is not None:
                self._made.stamps.resolve(encoder)
            device.submit_commands(encoder)
            device.faults.check("submitting a run")
            self._submitted = True

    def _workgroups(self, active: Sequence[int]) -> tuple[list[int], list[int]]:
        """Returns the workgroups along x and along y for each formula."""
        check_active(self.device.name, active, self._n_extents)
        if any(not 0 <= value <= _MOST_ACTIVE for value in active):
            raise BackendError(
                f"{self.device.name}: active extents {list(active)}; wanted each from 0 to {_MOST_ACTIVE}"
            )
        most = self.device.limits["workgroups"]
        across, down = [], []
        for programs, factors in self._formulas:
            for extent, divisor in factors:
                programs *= -(-active[extent] // divisor)
            if programs > most * most:
                raise BackendError(f"{self.device.name}: a launch of {programs} programs; the most is {most * most}")
            across.append(min(programs, most))
            down.append(-(-programs // most))
        return across, down

    def _write(self, active: Sequence[int]) -> None:
        device = self.device
        if self._n_extents:
            self._block[:] = active
            device.write_buffer(self._block_memory.handle, 0, self._block.view(np.uint8))
        for fill in self._made.fills:
            nbytes = fill.command.nbytes(active)
            fill.target[:nbytes] = fill.array[:nbytes]
        for write in self._made.writes:
            nbytes = write.size.words_nbytes(active)
            if nbytes:
                device.write_address(write.buffer, write.offset_nbytes, write.address, nbytes)

    def _encode_copy(self, encoder: Any, copy: BufferCopy, active: Sequence[int]) -> None:
        ends = copy.source, copy.source_nbytes, copy.destination, copy.destination_nbytes
        nbytes = copy.size.words_nbytes(active)
        if nbytes:
            self.device.native.lib.wgpuCommandEncoderCopyBufferToBuffer(encoder, *ends, nbytes)

    def _encode_pass(self, encoder: Any, step: Pass, across: list[int], down: list[int]) -> None:
        lib, null = self.device.native.lib, self.device.native.ffi.NULL
        set_pipeline, set_group = lib.wgpuComputePassEncoderSetPipeline, lib.wgpuComputePassEncoderSetBindGroup
        dispatch, pipeline_now, group_now = lib.wgpuComputePassEncoderDispatchWorkgroups, None, None
        begun = lib.wgpuCommandEncoderBeginComputePass(encoder, step.descriptor)
        for pipeline, group, formula in step.dispatches:
            x = across[formula]
            if not x:
                continue
            if pipeline is not pipeline_now:
                set_pipeline(begun, pipeline)
                pipeline_now = pipeline
            if group is not group_now:
                set_group(begun, 0, group, 0, null)
                group_now = group
            dispatch(begun, x, down[formula], 1)
        lib.wgpuComputePassEncoderEnd(begun)
        lib.wgpuComputePassEncoderRelease(begun)

    def wait(self) -> None:
        """Waits until the last submit and its downloads are complete. BackendError if it failed or nothing was submitted."""
        if not self._submitted or self._closed:
            raise BackendError(f"{self.device.name}: waited for a run that was not submitted, or is closed")
        if self._made.outbox is None:
            self.device.finish_work()
            self.device.faults.check("running")
            return
        with self._made.outbox.mapped() as block:
            for download in self._made.downloads:
                nbytes = download.command.nbytes(self._active)
                download.array[:nbytes] = block[download.first : download.first + nbytes]

    def elapsed_ns(self) -> tuple[int, ...] | None:
        """Returns the nanoseconds of each command of the last run by the device's clock; None if it was not timed."""
        return None if self._made.stamps is None or not self._submitted else self._made.stamps.elapsed_ns()

    def close(self) -> None:
        """Releases buffers and bind groups. Further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        self._binder.close()
        for owned in (self._block_memory, self._made.inbox, self._made.outbox, self._made.stamps):
            if owned is not None:
                owned.close()
