"""Memory and the command queue of a Metal device: shared buffers, and waits for work that uses them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from camshaft.backends.device import Bytes, check_range
from camshaft.backends.metal.api import CommandBuffer, CommandQueue, MetalApi, MetalApiDevice, Resource, message_of
from camshaft.errors import BackendError

# Metal does not create empty buffers.
_LEAST_NBYTES = 16


@dataclass
class Queue:
    """A device's command queue. Work runs in the order of commits."""

    api: MetalApi
    native: CommandQueue
    device_name: str
    pending: list[CommandBuffer] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def command_buffer(self) -> CommandBuffer:
        """Creates a command buffer. BackendError if the device returns none."""
        made = self.native.commandBuffer()
        if made is None:
            raise BackendError(f"{self.device_name} gives no command buffer: the device may be gone")
        return made

    def commit(self, work: CommandBuffer) -> None:
        """Commits a command buffer."""
        with self.lock:
            work.commit()
            self.pending.append(work)

    def flush(self) -> None:
        """Waits for all committed work. BackendError with Metal's message if any of it failed."""
        with self.lock:
            waiting = tuple(self.pending)
        self.finish(waiting)

    def finish(self, waiting: Sequence[CommandBuffer]) -> None:
        """Waits for these command buffers. BackendError with Metal's message if any of them failed."""
        for work in waiting:
            work.waitUntilCompleted()
        with self.lock:
            self.pending = [work for work in self.pending if all(work is not done for done in waiting)]
        for work in waiting:
            if work.status() != self.api.MTLCommandBufferStatusCompleted:
                raise BackendError(f"{self.device_name} failed a run: {message_of(work.error())}")


class MetalMemory:
    """An MTLBuffer in shared storage, accessible to the CPU and the GPU."""

    def __init__(self, queue: Queue, buffer: Resource, nbytes: int) -> None:
        self.queue, self.nbytes = queue, nbytes
        self._buffer: Resource | None = buffer
        self._view: Bytes = np.frombuffer(buffer.contents().as_buffer(buffer.length()), np.uint8)[:nbytes]

    @property
    def buffer(self) -> Resource:
        """The MTLBuffer. BackendError after close."""
        if self._buffer is None:
            raise BackendError(f"memory of {self.nbytes} bytes on {self.queue.device_name} is used after close")
        return self._buffer

    def array(self) -> Bytes:
        """Returns the bytes without a copy. The GPU's writes are visible after DeviceRun.wait()."""
        self.buffer  # noqa: B018 - an error after close
        return self._view

    def write(self, data: Bytes, offset_nbytes: int = 0) -> None:
        """Copies bytes in after all earlier submits. BackendError if they pass the end."""
        raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        check_range(f"{self.queue.device_name}: a write", offset_nbytes, len(raw), self.nbytes)
        self.queue.flush()
        self.array()[offset_nbytes : offset_nbytes + len(raw)] = raw

    def read(self, offset_nbytes: int = 0, nbytes: int | None = None) -> Bytes:
        """Returns a copy of the bytes after all earlier submits. BackendError if the range passes the end."""
        count = self.nbytes - offset_nbytes if nbytes is None else nbytes
        check_range(f"{self.queue.device_name}: a read", offset_nbytes, count, self.nbytes)
        self.queue.flush()
        return self.array()[offset_nbytes : offset_nbytes + count].copy()

    def close(self) -> None:
        """Releases the buffer; Metal frees it after its last use."""
        self._buffer, self._view = None, np.zeros(0, np.uint8)


def allocate(native: MetalApiDevice, queue: Queue, nbytes: int) -> MetalMemory:
    """Allocates zeroed shared memory. BackendError with the requested size on failure."""
    most = native.maxBufferLength()
    if nbytes > most:
        raise BackendError(f"{queue.device_name}: {nbytes} bytes asked for; one buffer has at most {most}")
    buffer = native.newBufferWithLength_options_(max(nbytes, _LEAST_NBYTES), queue.api.MTLResourceStorageModeShared)
    if buffer is None:
        raise BackendError(f"{queue.device_name} is out of memory: {nbytes} bytes asked for")
    memory = MetalMemory(queue, buffer, nbytes)
    memory.array().fill(0)
    return memory
