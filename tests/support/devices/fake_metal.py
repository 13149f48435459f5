"""PyObjC's module `Metal` for tests: records what is asked of it, and runs kernels for real on the stand-in headers.

It is strict where Metal's validation layer is (no empty dispatch, no use after endEncoding, buffers bound before a dispatch), and
unkind where Metal may be (fake_metal_commands.py). Libraries are compiled when the first dispatch needs them, many at once.
`install` puts it in PyObjC's place.
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

from camshaft.backends import registry
from camshaft.backends.metal import api, device
from tests.support.devices.fake_metal_commands import Constants, FakeBuffer, FakeCommandBuffer, FakeError, FakeQueue
from tests.support.devices.metal_harness import StandInKernel, compile_msl


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


class FakeMetal(Constants):
    """The module."""

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
