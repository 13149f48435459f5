"""Command buffers and encoders of the fake Metal: they check what Metal's validation checks, and run at waitUntilCompleted.

Dispatches of one encoder run in reverse order up to the next barrier.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.support.devices.fake_metal import FakeDevice, FakePipeline


class Constants:
    """The module's constants."""

    MTLResourceStorageModeShared = 0
    MTLDispatchTypeConcurrent = 1
    MTLBarrierScopeBuffers = 1
    MTLCommandBufferStatusCompleted = 4


@dataclass(frozen=True)
class FakeError:
    text: str

    def localizedDescription(self) -> str:
        return self.text


class FakeContents:
    """objc.varlist: as_buffer gives a writable buffer over the same bytes."""

    def __init__(self, data: np.ndarray) -> None:
        self._data = data

    def as_buffer(self, count: int) -> memoryview:
        return memoryview(self._data)[:count]


class FakeBuffer:
    def __init__(self, nbytes: int) -> None:
        raw = np.full(nbytes + 256, 0xEE, np.uint8)
        start = -raw.ctypes.data % 256
        self.data = raw[start : start + nbytes]

    def length(self) -> int:
        return len(self.data)

    def contents(self) -> FakeContents:
        return FakeContents(self.data)


@dataclass
class FakeComputeEncoder:
    work: FakeCommandBuffer
    pipeline: FakePipeline | None = None
    table: dict[int, tuple[Any, int]] = field(default_factory=dict)
    batch: list[Any] = field(default_factory=list)
    open: bool = True

    def setComputePipelineState_(self, pipeline: FakePipeline) -> None:
        assert self.open
        self.pipeline = pipeline

    def setBuffer_offset_atIndex_(self, buffer: FakeBuffer, offset: int, index: int) -> None:
        assert self.open
        assert 0 <= index < 31
        assert 0 <= offset < buffer.length(), (offset, buffer.length())
        self.table[index] = (buffer.data, offset)

    def setBytes_length_atIndex_(self, data: bytes, length: int, index: int) -> None:
        assert self.open
        assert 0 < length <= 4096
        self.table[index] = (np.frombuffer(data[:length], np.uint8), 0)

    def dispatchThreadgroups_threadsPerThreadgroup_(self, groups: tuple, threads: tuple) -> None:
        assert self.open
        assert self.pipeline is not None
        assert min(groups) > 0, "Metal's validation stops at an empty dispatch"
        assert groups[1:] == threads[1:] == (1, 1)
        assert threads[0] <= self.pipeline.threads
        self.work.device.calls["dispatch"] += 1
        self.batch.append((self.pipeline, dict(self.table), groups[0], threads[0]))

    def memoryBarrierWithScope_(self, scope: int) -> None:
        assert self.open
        assert scope == Constants.MTLBarrierScopeBuffers
        self.work.device.calls["barrier"] += 1
        self._close_batch()

    def endEncoding(self) -> None:
        assert self.open
        self.open = False
        self._close_batch()
        self.work.encoding = False

    def _close_batch(self) -> None:
        self.work.steps += [lambda d=d: _dispatch(self.work.device, *d) for d in reversed(self.batch)]
        self.batch = []


def _dispatch(device: FakeDevice, pipeline: FakePipeline, table: dict, groups: int, threads: int) -> None:
    kernel = pipeline.kernel()
    assert set(range(kernel.buffers)) <= set(table), "a buffer of the kernel is not bound"
    addresses = [table[i][0].ctypes.data + table[i][1] for i in range(kernel.buffers)]
    device.seed += 1
    kernel(addresses, groups, threads, 32, device.seed)


@dataclass
class FakeBlitEncoder:
    work: FakeCommandBuffer
    open: bool = True

    def copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
        self, source: FakeBuffer, start: int, destination: FakeBuffer, to: int, size: int
    ) -> None:
        assert self.open
        assert size > 0
        assert start + size <= source.length()
        assert to + size <= destination.length()
        self.work.device.calls["copy"] += 1
        self.work.device.calls["copied_nbytes"] += size

        def copy() -> None:
            destination.data[to : to + size] = source.data[start : start + size]

        self.work.steps.append(copy)

    def endEncoding(self) -> None:
        assert self.open
        self.open = self.work.encoding = False


@dataclass
class FakeCommandBuffer:
    """Runs at waitUntilCompleted, not at commit: what is not waited for has not happened."""

    device: FakeDevice
    steps: list[Any] = field(default_factory=list)
    encoding: bool = False
    state: int = 0
    problem: FakeError | None = None

    def computeCommandEncoderWithDispatchType_(self, kind: int) -> FakeComputeEncoder:
        assert kind == Constants.MTLDispatchTypeConcurrent
        self._begin()
        return FakeComputeEncoder(self)

    def blitCommandEncoder(self) -> FakeBlitEncoder:
        self._begin()
        return FakeBlitEncoder(self)

    def _begin(self) -> None:
        assert not self.encoding, "one encoder at a time"
        assert self.state == 0
        self.encoding = True

    def commit(self) -> None:
        assert not self.encoding
        assert self.state == 0
        self.state = 3
        self.device.calls["commit"] += 1
        self.device.committed.append(self)

    def waitUntilCompleted(self) -> None:
        assert self.state >= 3, "waited for what was not committed"
        self.device.run_until(self)

    def run(self) -> None:
        if self.device.failing:
            self.state, self.problem = 5, FakeError("Caused GPU Timeout Error")
            return
        for step in self.steps:
            step()
        self.state = Constants.MTLCommandBufferStatusCompleted

    def status(self) -> int:
        return self.state

    def error(self) -> FakeError | None:
        return self.problem

    def GPUStartTime(self) -> float:
        return 1.0

    def GPUEndTime(self) -> float:
        return 1.0 + 1e-6 * len(self.steps)


@dataclass
class FakeQueue:
    device: FakeDevice

    def commandBuffer(self) -> FakeCommandBuffer:
        self.device.calls["command_buffer"] += 1
        return FakeCommandBuffer(self.device)
