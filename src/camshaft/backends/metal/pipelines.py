"""Compute pipelines of a Metal device: each kernel's MSL compiled once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from camshaft.backends.metal.api import MetalApi, MetalApiDevice, Pipeline, message_of
from camshaft.emit.msl.context import MslModule
from camshaft.errors import BackendError


@dataclass(frozen=True)
class MetalKernel:
    """A compiled kernel: its MSL module and its pipeline."""

    name: str
    module: MslModule
    pipeline: Pipeline = field(repr=False)


@dataclass
class Pipelines:
    """The kernels compiled so far, by signature."""

    api: MetalApi
    native: MetalApiDevice
    device_name: str
    made: dict[str, MetalKernel] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def kernel(self, name: str, signature: str, source: Callable[[], MslModule]) -> MetalKernel:
        """Returns the kernel with that signature, compiled at most once. BackendError with the compiler's message."""
        with self.lock:
            if signature not in self.made:
                self.made[signature] = self._compiled(name, source())
            return self.made[signature]

    def _compiled(self, name: str, module: MslModule) -> MetalKernel:
        options = compile_options(self.api)
        library, error = self.native.newLibraryWithSource_options_error_(module.text, options, None)
        if library is None:
            raise BackendError(f"kernel {name}: {self.device_name} does not compile it: {message_of(error)}")
        function = library.newFunctionWithName_(module.entry)
        if function is None:
            raise BackendError(f"kernel {name}: its library has no function {module.entry}")
        pipeline, error = self.native.newComputePipelineStateWithFunction_error_(function, None)
        if pipeline is None:
            raise BackendError(f"kernel {name}: {self.device_name} makes no pipeline of it: {message_of(error)}")
        most = pipeline.maxTotalThreadsPerThreadgroup()
        if most < module.lanes:
            raise BackendError(
                f"kernel {name} wants {module.lanes} threads a threadgroup; its registers leave room for {most}"
            )
        return MetalKernel(name, module, pipeline)


def compile_options(api: MetalApi) -> Any:
    """Returns compile options without fast math, which assumes no NaN or infinities. macOS 15 has mathMode for it."""
    options = api.MTLCompileOptions.alloc().init()
    if hasattr(options, "setMathMode_"):
        options.setMathMode_(_MATH_MODE_SAFE)
    else:
        options.setFastMathEnabled_(False)
    return options


_MATH_MODE_SAFE = 0  # MTLMathModeSafe
