"""PyObjC's module `Metal` for tests: records what is asked of it, and runs kernels for real on the stand-in headers.

It is strict where Metal's validation layer is (no empty dispatch, no use after endEncoding, buffers bound before a dispatch), and
unkind where Metal may be: dispatches of one encoder run in reverse order up to the next barrier. Libraries are compiled
when the first dispatch needs them, many at once. `install` puts it in PyObjC's place.
"""

from __future__ import annotations

import platform
import re
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from camshaft.backends import registry
from camshaft.backends.metal import api, device
from tests.support.devices.metal_harness import StandInKernel, compile_msl


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


class FakeLibrary:
    def __init__(self, device: FakeDevice, source: str) -> None:
        self.device, self.source = device, source
        self.kernels: dict[str, StandInKernel] = {}

    def newFunctionWithName_(self, name: str) -> FakeFunction | None:
        return FakeFunction(self, name) if re.search(rf"^kernel void {name}\(", self.source, re.MULTILINE) else None


@dataclass(frozen=True)
class FakeFunction:
    library: FakeLibrary
    text: str

    def name(self) -> str:
        return self.text


@dataclass(frozen=True)
class FakePipeline:
    function: FakeFunction
    threads: int

    def maxTotalThreadsPerThreadgroup(self) -> int:
        return self.threads

    def threadExecutionWidth(self) -> int:
        return 32

    def kernel(self) -> StandInKernel:
        library = self.function.library
        if not library.kernels:
            library.device.compile_pending()
        return library.kernels[self.function.text]


class FakeOptions:
    def __init__(self, said: dict[str, Any]) -> None:
        self.said = said

    @classmethod
    def alloc(cls) -> FakeOptions:
        return cls({})

    def init(self) -> FakeOptions:
        return self

    def setMathMode_(self, mode: int) -> None:
        self.said["math_mode"] = mode


class FakeOldOptions(FakeOptions):
    """Those of macOS before 15: no mathMode."""

    setMathMode_ = property()  # type: ignore[assignment]  # so that hasattr finds none

    def setFastMathEnabled_(self, enabled: bool) -> None:
        self.said["fast_math"] = enabled


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
        assert scope == FakeMetal.MTLBarrierScopeBuffers
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
        assert kind == FakeMetal.MTLDispatchTypeConcurrent
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
        self.state = FakeMetal.MTLCommandBufferStatusCompleted

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


@dataclass
class FakeDevice:
    """`pipeline_threads` and `memory` can be made small, and `failing` set, to see errors. `calls` counts."""

    text: str = "Fake GPU"
    memory: int = 1 << 30
    family: int = 1007
    pipeline_threads: int = 1024
    failing: bool = False
    calls: Counter[str] = field(default_factory=Counter)
    libraries: list[FakeLibrary] = field(default_factory=list)
    options: list[dict[str, Any]] = field(default_factory=list)
    committed: list[FakeCommandBuffer] = field(default_factory=list)
    seed: int = 0

    def name(self) -> str:
        return self.text

    def hasUnifiedMemory(self) -> bool:
        return True

    def maxBufferLength(self) -> int:
        return 1 << 30

    def maxThreadgroupMemoryLength(self) -> int:
        return 32_768

    def recommendedMaxWorkingSetSize(self) -> int:
        return self.memory

    def supportsFamily_(self, family: int) -> bool:
        return family <= self.family

    def newCommandQueue(self) -> FakeQueue:
        return FakeQueue(self)

    def newBufferWithLength_options_(self, length: int, options: int) -> FakeBuffer | None:
        assert options == FakeMetal.MTLResourceStorageModeShared
        assert length > 0
        self.calls["buffer"] += 1
        return FakeBuffer(length) if length <= self.memory else None

    def newLibraryWithSource_options_error_(
        self, source: str, options: FakeOptions, error: None
    ) -> tuple[FakeLibrary | None, FakeError | None]:
        self.calls["library"] += 1
        self.options.append(options.said)
        if "#error" in source:
            return None, FakeError("program_source:1:2: error: as asked\n")
        library = FakeLibrary(self, source)
        self.libraries.append(library)
        return library, None

    def newComputePipelineStateWithFunction_error_(
        self, function: FakeFunction, error: None
    ) -> tuple[FakePipeline | None, FakeError | None]:
        self.calls["pipeline"] += 1
        return FakePipeline(function, self.pipeline_threads), None

    def compile_pending(self) -> None:
        """g++ over every library that has not been compiled yet."""
        waiting = [library for library in self.libraries if not library.kernels]
        for library, kernels in zip(waiting, compile_msl([w.source for w in waiting]), strict=True):
            library.kernels = kernels

    def run_until(self, last: FakeCommandBuffer) -> None:
        """Runs what was committed, in that order."""
        while last in self.committed:
            self.committed.pop(0).run()


class FakeMetal:
    """The module."""

    MTLResourceStorageModeShared = 0
    MTLDispatchTypeConcurrent = 1
    MTLBarrierScopeBuffers = 1
    MTLCommandBufferStatusCompleted = 4
    MTLCompileOptions = FakeOptions
    __spec__ = None

    def __init__(self, *found: FakeDevice) -> None:
        self.found = found or (FakeDevice(),)

    def MTLCopyAllDevices(self) -> tuple[FakeDevice, ...]:
        return self.found

    def MTLSizeMake(self, width: int, height: int, depth: int) -> tuple[int, int, int]:
        return width, height, depth


def install(patch: Any, fake: FakeMetal, system: str = "Darwin") -> None:
    """Puts `fake` where `import Metal` finds it, and forgets what was known of Metal here. `patch`: pytest's monkeypatch."""
    patch.setitem(sys.modules, "Metal", fake)
    patch.setitem(sys.modules, "objc", SimpleNamespace(autorelease_pool=nullcontext))
    patch.setattr(registry, "_devices", {})
    patch.setattr(platform, "system", lambda: system)
    patch.setattr(api, "find_spec", lambda name: fake)
    forget()


def forget() -> None:
    """Metal is looked for anew: after `install`, and once more when its patches are undone."""
    for cached in (api.metal_api, device._native_devices, device.absent):
        cached.cache_clear()
