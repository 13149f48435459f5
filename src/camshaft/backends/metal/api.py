"""The part of Metal that camshaft uses, through PyObjC, with type annotations.

PyObjC replaces each `:` of a selector by `_`. A method with an `error:` argument takes None and returns (result, error).
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, cast

from camshaft.errors import BackendError, MissingExtraError

PACKAGE, EXTRA = "pyobjc-framework-Metal", "metal"


class Error(Protocol):
    """NSError."""

    def localizedDescription(self) -> str: ...


class Contents(Protocol):
    """objc.varlist, PyObjC's type for `void *`."""

    def as_buffer(self, count: int, /) -> Any: ...


class Resource(Protocol):
    """MTLBuffer."""

    def length(self) -> int: ...
    def contents(self) -> Contents: ...


class Function(Protocol):
    """MTLFunction."""

    def name(self) -> str: ...


class Library(Protocol):
    """MTLLibrary."""

    def newFunctionWithName_(self, name: str, /) -> Function | None: ...


class Pipeline(Protocol):
    """MTLComputePipelineState."""

    def maxTotalThreadsPerThreadgroup(self) -> int: ...
    def threadExecutionWidth(self) -> int: ...


class ComputeEncoder(Protocol):
    """MTLComputeCommandEncoder."""

    def setComputePipelineState_(self, pipeline: Pipeline, /) -> None: ...
    def setBuffer_offset_atIndex_(self, buffer: Resource, offset: int, index: int, /) -> None: ...
    def setBytes_length_atIndex_(self, data: bytes, length: int, index: int, /) -> None: ...
    def dispatchThreadgroups_threadsPerThreadgroup_(self, groups: Any, threads: Any, /) -> None: ...
    def memoryBarrierWithScope_(self, scope: int, /) -> None: ...
    def endEncoding(self) -> None: ...


class BlitEncoder(Protocol):
    """MTLBlitCommandEncoder."""

    def copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
        self, source: Resource, source_offset: int, destination: Resource, destination_offset: int, size: int, /
    ) -> None: ...
    def endEncoding(self) -> None: ...


class CommandBuffer(Protocol):
    """MTLCommandBuffer."""

    def computeCommandEncoderWithDispatchType_(self, kind: int, /) -> ComputeEncoder | None: ...
    def blitCommandEncoder(self) -> BlitEncoder | None: ...
    def commit(self) -> None: ...
    def waitUntilCompleted(self) -> None: ...
    def status(self) -> int: ...
    def error(self) -> Error | None: ...
    def GPUStartTime(self) -> float: ...
    def GPUEndTime(self) -> float: ...


class CommandQueue(Protocol):
    """MTLCommandQueue."""

    def commandBuffer(self) -> CommandBuffer | None: ...


class MetalApiDevice(Protocol):
    """MTLDevice."""

    def name(self) -> str: ...
    def hasUnifiedMemory(self) -> bool: ...
    def maxBufferLength(self) -> int: ...
    def maxThreadgroupMemoryLength(self) -> int: ...
    def recommendedMaxWorkingSetSize(self) -> int: ...
    def supportsFamily_(self, family: int, /) -> bool: ...
    def newCommandQueue(self) -> CommandQueue | None: ...
    def newBufferWithLength_options_(self, length: int, options: int, /) -> Resource | None: ...
    def newLibraryWithSource_options_error_(
        self, source: str, options: Any, error: None, /
    ) -> tuple[Library | None, Error | None]: ...
    def newComputePipelineStateWithFunction_error_(
        self, function: Function, error: None, /
    ) -> tuple[Pipeline | None, Error | None]: ...


class MetalApi(Protocol):
    """PyObjC's module `Metal`."""

    MTLResourceStorageModeShared: int
    MTLDispatchTypeConcurrent: int
    MTLBarrierScopeBuffers: int
    MTLCommandBufferStatusCompleted: int
    MTLCompileOptions: Any

    def MTLCopyAllDevices(self) -> Sequence[MetalApiDevice]: ...
    def MTLSizeMake(self, width: int, height: int, depth: int, /) -> Any: ...


def absent_api() -> str | None:
    """Returns why Metal is not available, or None."""
    if platform.system() != "Darwin":
        return "Metal is on macOS only"
    if find_spec("Metal") is None:
        return str(MissingExtraError(PACKAGE, EXTRA, "the backend 'metal'"))
    return None


@functools.cache
def metal_api() -> MetalApi:
    """Returns PyObjC's module `Metal`. BackendError with the reason if it is not available."""
    reason = absent_api()
    if reason is not None:
        raise BackendError(f"backend 'metal' is absent: {reason}")
    return cast(MetalApi, import_module("Metal"))


def autorelease_pool() -> AbstractContextManager[Any]:
    """Returns a context that releases command buffers and encoders at its end, as there is no event loop to do it."""
    pool: AbstractContextManager[Any] = import_module("objc").autorelease_pool()
    return pool


def message_of(error: Error | None) -> str:
    """Returns an error's message on one line."""
    return "no reason given" if error is None else " ".join(str(error.localizedDescription()).split())
