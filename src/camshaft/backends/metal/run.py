"""Encode a list of commands into one command buffer per run: compute encoders with barriers, and blits.

Dispatches of one encoder may run concurrently, except for a barrier before each command with `wait`. Metal orders the encoders
of a queue by tracking their buffers. Copies from and to the host go through staging buffers that the run owns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from camshaft.backends.device import (
    Bytes,
    Command,
    CopyCommand,
    LaunchCommand,
    Place,
    check_active,
    check_copy,
    check_place,
)
from camshaft.backends.metal.api import BlitEncoder, CommandBuffer, ComputeEncoder, autorelease_pool
from camshaft.backends.metal.memory import MetalMemory, Queue
from camshaft.backends.metal.pipelines import MetalKernel
from camshaft.errors import BackendError


@dataclass(frozen=True)
class Dispatch:
    """A prepared launch. `threads` is the MTLSize of its threadgroup."""

    command: LaunchCommand
    kernel: MetalKernel
    threads: object

    @property
    def wait(self) -> bool:
        return self.command.wait


@dataclass(frozen=True)
class Blit:
    """A copy on the device. `submit` copies `upload` to the staging source; `wait` copies the staging destination to
    `download`."""

    command: CopyCommand
    source: Place
    destination: Place
    upload: Bytes | None = None
    download: Bytes | None = None


class MetalRun:
    """A DeviceRun. Not thread-safe."""

    def __init__(
        self,
        queue: Queue,
        commands: Sequence[Command],
        n_extents: int,
        stage: Callable[[int], MetalMemory],
        timed: bool,
    ) -> None:
        self._queue, self._n_extents, self._timed = queue, n_extents, timed
        self._staged: list[MetalMemory] = []
        self._steps = [self._step(command, stage) for command in commands]
        self._uploads = [s for s in self._steps if isinstance(s, Blit) and s.upload is not None]
        self._downloads = [s for s in self._steps if isinstance(s, Blit) and s.download is not None]
        self._running: list[CommandBuffer] = []
        self._last: list[CommandBuffer] = []
        self._active: tuple[int, ...] = ()
        self._closed = False

    # --- preparation -----------------------------------------------------------------------------------------------
    def _step(self, command: Command, stage: Callable[[int], MetalMemory]) -> Dispatch | Blit:
        if isinstance(command, LaunchCommand):
            return self._dispatch(command)
        return self._blit(command, stage)

    def _dispatch(self, command: LaunchCommand) -> Dispatch:
        kernel = command.kernel
        if not isinstance(kernel, MetalKernel):
            raise BackendError(
                f"{command.name}: a {type(kernel).__name__} is not a kernel of {self._queue.device_name}"
            )
        module = kernel.module
        if len(command.arrays) != module.n_arrays or len(command.scalars) != module.n_scalars:
            raise BackendError(
                f"{command.name} got {len(command.arrays)} arrays and {len(command.scalars)} scalars; "
                f"kernel {kernel.name} takes {module.n_arrays} and {module.n_scalars}"
            )
        for place in command.arrays:
            self._check(command.name, place)
        return Dispatch(command, kernel, self._queue.api.MTLSizeMake(module.lanes, 1, 1))

    def _blit(self, command: CopyCommand, stage: Callable[[int], MetalMemory]) -> Blit:
        check_copy(self._queue.device_name, command)
        source, destination = command.source, command.destination
        for end in (source, destination):
            if isinstance(end, Place):
                self._check(command.name, end)
        if isinstance(source, Place) and isinstance(destination, Place):
            return Blit(command, source, destination)
        memory = stage(source.nbytes)
        self._staged.append(memory)
        staging = Place(memory, 0, source.nbytes)
        if isinstance(source, Place):
            assert isinstance(destination, np.ndarray)
            return Blit(command, source, staging, download=destination.reshape(-1))
        assert isinstance(destination, Place)
        return Blit(command, staging, destination, upload=source.reshape(-1))

    def _check(self, name: str, place: Place) -> None:
        memory = place.memory
        is_own = isinstance(memory, MetalMemory) and memory.queue is self._queue
        check_place(self._queue.device_name, name, place, is_own)

    # --- every run -------------------------------------------------------------------------------------------------
    def submit(self, active: Sequence[int]) -> None:
        """Encodes and commits all commands, and reads the uploads. Waits for a previous submit first if there are host
        copies."""
        if self._closed:
            raise BackendError("a run was submitted after close")
        check_active(self._queue.device_name, active, self._n_extents)
        if self._running and self._staged:
            self.wait()
        for blit in self._uploads:
            assert blit.upload is not None
            nbytes = blit.command.nbytes(active)
            _memory(blit.source).array()[:nbytes] = blit.upload[:nbytes]
        self._active = tuple(active)
        groups = [[step] for step in self._steps] if self._timed else [self._steps]
        with autorelease_pool():
            self._last = [self._commit(steps, active) for steps in groups]
        self._running += self._last

    def _commit(self, steps: Sequence[Dispatch | Blit], active: Sequence[int]) -> CommandBuffer:
        work = self._queue.command_buffer()
        encoder = _Encoder(self._queue, work)
        for step in steps:
            if isinstance(step, Dispatch):
                encoder.dispatch(step, active)
            else:
                encoder.blit(step, active)
        encoder.end()
        self._queue.commit(work)
        return work

    def wait(self) -> None:
        """Waits until all submits and their downloads are complete. BackendError with Metal's message if one failed."""
        if not self._running:
            return
        running, self._running = self._running, []
        self._queue.finish(running)
        for blit in self._downloads:
            assert blit.download is not None
            nbytes = blit.command.nbytes(self._active)
            blit.download[:nbytes] = _memory(blit.destination).array()[:nbytes]

    def elapsed_ns(self) -> tuple[int, ...] | None:
        """Returns the nanoseconds of each command of the last run by the GPU's clock; None if not timed or not submitted."""
        if not self._timed or not self._last:
            return None
        return tuple(round((work.GPUEndTime() - work.GPUStartTime()) * 1e9) for work in self._last)

    def close(self) -> None:
        """Waits for running submits and frees the staging memory."""
        if not self._closed:
            self._closed = True
            for work in self._running:
                work.waitUntilCompleted()
            for memory in self._staged:
                memory.close()


class _Encoder:
    """Encodes steps in order, switching between a compute and a blit encoder."""

    def __init__(self, queue: Queue, work: CommandBuffer) -> None:
        self._queue, self._work = queue, work
        self._compute: ComputeEncoder | None = None
        self._copies: BlitEncoder | None = None

    def dispatch(self, step: Dispatch, active: Sequence[int]) -> None:
        programs = step.command.programs(active)
        if self._compute is not None and step.wait:
            self._compute.memoryBarrierWithScope_(self._queue.api.MTLBarrierScopeBuffers)
        if programs == 0:
            return
        encoder = self._computing()
        module = step.kernel.module
        encoder.setComputePipelineState_(step.kernel.pipeline)
        for index, place in enumerate(step.command.arrays):
            encoder.setBuffer_offset_atIndex_(_memory(place).buffer, place.offset_nbytes, index)
        words = np.array([active[i] for i in step.command.scalars] or [0], np.int32).tobytes()
        encoder.setBytes_length_atIndex_(words, len(words), module.run_index)
        groups = self._queue.api.MTLSizeMake(programs, 1, 1)
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(groups, step.threads)

    def blit(self, step: Blit, active: Sequence[int]) -> None:
        # macOS requires whole words for blits between buffers
        nbytes = min(-(-step.command.nbytes(active) // 4) * 4, step.source.nbytes)
        if nbytes == 0:
            return
        source, destination = step.source, step.destination
        self._copying().copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
            _memory(source).buffer,
            source.offset_nbytes,
            _memory(destination).buffer,
            destination.offset_nbytes,
            nbytes,
        )

    def end(self) -> None:
        """Ends the open encoder."""
        for encoder in (self._compute, self._copies):
            if encoder is not None:
                encoder.endEncoding()
        self._compute = self._copies = None

    def _computing(self) -> ComputeEncoder:
        if self._compute is None:
            self.end()
            self._compute = self._work.computeCommandEncoderWithDispatchType_(self._queue.api.MTLDispatchTypeConcurrent)
        return _required(self._compute, self._queue)

    def _copying(self) -> BlitEncoder:
        if self._copies is None:
            self.end()
            self._copies = self._work.blitCommandEncoder()
        return _required(self._copies, self._queue)


_T = TypeVar("_T")


def _required(encoder: _T | None, queue: Queue) -> _T:
    if encoder is None:
        raise BackendError(f"{queue.device_name} gives no encoder: the device may be gone")
    return encoder


def _memory(place: Place) -> MetalMemory:
    assert isinstance(place.memory, MetalMemory)
    return place.memory
