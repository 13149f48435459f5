"""Lists the WebGPU adapters of this machine, best first, with limits and features."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from camshaft.backends.webgpu.native import Native, native

# Features that a device requests if the adapter has them: camshaft's name -> C constant.
FEATURES = {
    "shader-f16": "WGPUFeatureName_ShaderF16",
    "subgroups": "WGPUNativeFeature_Subgroup",
    "timestamp-query": "WGPUFeatureName_TimestampQuery",
}
_KINDS = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "cpu"}
_APIS = {"D3D12": "D3D12", "Metal": "Metal", "Vulkan": "Vulkan", "OpenGL": "OpenGL", "OpenGLES": "OpenGL ES"}
_BEST_FIRST = ("discrete", "integrated", "other", "cpu")
# WGPUInstanceBackend: Vulkan, Metal and D3D12; OpenGL.
_NOT_GL, _GL = 0b1101, 0b0010
# Mesa's device-select layer queries the display, which prints to stderr if there is none.
_NO_DISPLAY_QUESTIONS = "NODEVICE_SELECT"


@dataclass(frozen=True)
class Adapter:
    """An adapter. `kind`: discrete, integrated, cpu or other. `limits` have webgpu.h's names. `handle`: the WGPUAdapter."""

    name: str
    kind: str
    api: str
    driver: str
    features: frozenset[str]
    limits: Mapping[str, int]
    subgroup_size: int
    handle: Any = field(repr=False, compare=False)

    @property
    def description(self) -> str:
        """A text for users: device, kind, API, driver."""
        driver = f", {self.driver}" if self.driver else ""
        return f"{self.name} ({self.kind}, {self.api}{driver})"


@functools.cache
def adapters() -> tuple[Adapter, ...]:
    """Returns the adapters: discrete, integrated, other, then software ones. Errors as `native`.

    OpenGL adapters are listed only if no other API has any: they are the same hardware with lower limits.
    """
    n = native()
    with _without_display_query():
        found = list(_enumerate(n, _NOT_GL)) or list(_enumerate(n, _GL))
    return tuple(sorted(found, key=lambda adapter: _BEST_FIRST.index(adapter.kind)))


@contextlib.contextmanager
def _without_display_query() -> Iterator[None]:
    if "XDG_RUNTIME_DIR" in os.environ or _NO_DISPLAY_QUESTIONS in os.environ:
        yield
        return
    os.environ[_NO_DISPLAY_QUESTIONS] = "1"
    try:
        yield
    finally:
        del os.environ[_NO_DISPLAY_QUESTIONS]


def _word(n: Native, enum: str, words: Mapping[str, str], value: int, otherwise: str) -> str:
    """Returns the name of a C enum value."""
    return next((word for name, word in words.items() if getattr(n.lib, f"{enum}_{name}") == value), otherwise)


def _enumerate(n: Native, backends: int) -> Iterator[Adapter]:
    # A separate instance: wgpu's default includes OpenGL, which prints to stderr if there is no display.
    extras = n.struct("WGPUInstanceExtras", backends=backends, chain={"sType": n.lib.WGPUSType_InstanceExtras})
    chained = n.ffi.cast("WGPUChainedStruct *", extras.pointer)
    instance = n.lib.wgpuCreateInstance(n.struct("WGPUInstanceDescriptor", nextInChain=chained).pointer)
    options = n.struct("WGPUInstanceEnumerateAdapterOptions", backends=backends).pointer
    count = n.lib.wgpuInstanceEnumerateAdapters(instance, options, n.ffi.NULL)
    handles = n.ffi.new("WGPUAdapter[]", max(count, 1))
    count = n.lib.wgpuInstanceEnumerateAdapters(instance, options, handles)
    for handle in list(handles)[:count]:
        yield _adapter(n, handle)


def _adapter(n: Native, handle: Any) -> Adapter:
    info = n.ffi.new("WGPUAdapterInfo *")
    n.lib.wgpuAdapterGetInfo(handle, info)
    limits = n.ffi.new("WGPULimits *")
    n.lib.wgpuAdapterGetLimits(handle, limits)
    features = {word for word, c in FEATURES.items() if n.lib.wgpuAdapterHasFeature(handle, getattr(n.lib, c))}
    kind = _word(n, "WGPUAdapterType", _KINDS, info.adapterType, "other")
    api = _word(n, "WGPUBackendType", _APIS, info.backendType, "another interface")
    adapter = Adapter(
        n.string(info.device) or n.string(info.vendor) or "an adapter without a name",
        kind,
        api,
        n.string(info.description),
        frozenset(features),
        {name: int(getattr(limits, name)) for name in dir(limits) if name != "nextInChain"},
        int(info.subgroupMinSize),
        handle,
    )
    n.lib.wgpuAdapterInfoFreeMembers(info[0])
    return adapter
