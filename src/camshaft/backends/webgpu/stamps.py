"""Time stamps of a run: a timestamp query at the start and end of each command, read back after the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.backends.webgpu.memory import COPY_SRC, QUERY_RESOLVE, Staging, WebGpuMemory

if TYPE_CHECKING:
    from camshaft.backends.webgpu.device import WebGpuDevice

# WebGPU's limit of a query set. Full sets also keep resolve offsets at multiples of 256 bytes, as WebGPU requires.
_PER_SET = 4096


class Stamps:
    """Timestamp queries of a run: 2i and 2i + 1 are the begin and the end of command i."""

    def __init__(self, device: WebGpuDevice, n_commands: int) -> None:
        self.device, self.n_queries = device, 2 * max(n_commands, 1)
        n = device.native
        kind = n.lib.WGPUQueryType_Timestamp
        counts = [min(_PER_SET, self.n_queries - start) for start in range(0, self.n_queries, _PER_SET)]
        rows = [n.struct("WGPUQuerySetDescriptor", type=kind, count=count) for count in counts]
        with device.lock:
            self._sets = [n.lib.wgpuDeviceCreateQuerySet(device.handle, row.pointer) for row in rows]
            device.faults.check("making time stamps")
        self._resolved = WebGpuMemory(device, 8 * self.n_queries, QUERY_RESOLVE | COPY_SRC)
        self._staging = Staging(device, 8 * self.n_queries)
        self._references: list[Any] = []

    def descriptor(self, command: int, *, begin: bool = True, end: bool = True) -> Any:
        """Returns the WGPUComputePassDescriptor of a pass that writes the command's begin timestamp, its end, or both."""
        n, (number, at) = self.device.native, divmod(2 * command, _PER_SET)
        none = n.lib.WGPU_QUERY_SET_INDEX_UNDEFINED
        writes = n.struct(
            "WGPUPassTimestampWrites",
            querySet=self._sets[number],
            beginningOfPassWriteIndex=at if begin else none,
            endOfPassWriteIndex=at + 1 if end else none,
        )
        self._references.append(n.struct("WGPUComputePassDescriptor", timestampWrites=writes))
        return self._references[-1].pointer

    def resolve(self, encoder: Any) -> None:
        """Encodes the resolution of the queries and the copy to the staging buffer."""
        lib = self.device.native.lib
        for number, queries in enumerate(self._sets):
            first = number * _PER_SET
            count = min(_PER_SET, self.n_queries - first)
            lib.wgpuCommandEncoderResolveQuerySet(encoder, queries, 0, count, self._resolved.handle, 8 * first)
        size = 8 * self.n_queries
        lib.wgpuCommandEncoderCopyBufferToBuffer(encoder, self._resolved.handle, 0, self._staging.handle, 0, size)

    def elapsed_ns(self) -> tuple[int, ...]:
        """Returns the nanoseconds from begin to end of each command of the last run."""
        with self._staging.mapped(8 * self.n_queries) as block:
            ticks = block.view(np.uint64).reshape(-1, 2).astype(np.int64)
        return tuple(int(t) for t in np.rint((ticks[:, 1] - ticks[:, 0]) * self.device.period_ns))

    def close(self) -> None:
        """Releases queries and buffers."""
        for queries in self._sets:
            self.device.native.lib.wgpuQuerySetRelease(queries)
        self._sets = []
        self._resolved.close()
        self._staging.close()
