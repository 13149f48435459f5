"""The WebGPU device: an adapter opened with all its limits, its memory, kernels and runs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from camshaft.backends.device import Bytes, Command, DeviceInfo, device_name
from camshaft.backends.webgpu.adapters import FEATURES, Adapter, adapters
from camshaft.backends.webgpu.copies import CopyKernels
from camshaft.backends.webgpu.kernel import Lowered, WebGpuKernel, counts, lower
from camshaft.backends.webgpu.memory import WebGpuMemory, words_nbytes
from camshaft.backends.webgpu.native import Faults, native
from camshaft.backends.webgpu.run import WebGpuRun
from camshaft.emit.wgsl.layout import WgslTarget
from camshaft.errors import BackendError, CamshaftError
from camshaft.lang import CompileRequest
from camshaft.store.files import digest_of

NAME = "webgpu"
LANES = 64
# The smallest alignment of buffer offsets in bytes, so that plans with 64-byte alignment fit every device.
_LEAST_ALIGNMENT = 64
_LIMITS = {
    "binding": "maxStorageBufferBindingSize",
    "buffer": "maxBufferSize",
    "lanes": "maxComputeInvocationsPerWorkgroup",
    "workgroup_memory": "maxComputeWorkgroupStorageSize",
    "workgroups": "maxComputeWorkgroupsPerDimension",
    "bindings": "maxStorageBuffersPerShaderStage",
}


class WebGpuDevice:
    """A WebGPU device. Methods are thread-safe. `limits_below` lowers limits (by the names in _LIMITS), for tests."""

    def __init__(self, name: str, adapter: Adapter, limits_below: Mapping[str, int] | None = None) -> None:
        self.name, self.backend, self.space, self.adapter = name, NAME, name, adapter
        self.native, self.lock = native(), threading.RLock()
        self.faults = Faults(self.native, name)
        self.features = adapter.features | {"packed-dot"}
        self.uniform_alignment = adapter.limits["minUniformBufferOffsetAlignment"]
        self.limits: Mapping[str, int] = _limits(adapter) | dict(limits_below or {})
        self.lanes = min(LANES, self.limits["lanes"])
        self.target = _target(adapter, self.features, self.limits)
        self._copy_kernels: CopyKernels | None = None
        self._lowered: dict[str, Lowered] = {}
        self._kernels: dict[Lowered, WebGpuKernel] = {}
        self.handle = self._open()
        self.queue = self.native.lib.wgpuDeviceGetQueue(self.handle)
        self.period_ns = float(self.native.lib.wgpuQueueGetTimestampPeriod(self.queue))

    def _open(self) -> Any:
        n, found = self.native, []
        signature = "void(WGPURequestDeviceStatus, WGPUDevice, WGPUStringView, void *, void *)"
        done = n.ffi.callback(signature, lambda status, device, message, *_: found.append((device, n.string(message))))
        features = n.ffi.new("WGPUFeatureName[]", [getattr(n.lib, FEATURES[f]) for f in sorted(self.adapter.features)])
        limits = n.struct("WGPULimits", **self.adapter.limits)
        asked = n.struct(
            "WGPUDeviceDescriptor",
            requiredFeatureCount=len(self.adapter.features),
            requiredFeatures=features,
            requiredLimits=limits,
            deviceLostCallbackInfo={"mode": n.lib.WGPUCallbackMode_AllowSpontaneous, "callback": self.faults.lost},
            uncapturedErrorCallbackInfo={"callback": self.faults.error},
        )
        answer = n.struct("WGPURequestDeviceCallbackInfo", mode=n.lib.WGPUCallbackMode_AllowSpontaneous, callback=done)
        n.lib.wgpuAdapterRequestDevice(self.adapter.handle, asked.pointer, answer.pointer[0])
        if not found or not found[0][0]:
            raise BackendError(
                f"{self.name}: {self.adapter.description} gives no device: {found[0][1] if found else 'no answer'}"
            )
        return found[0][0]

    # --- the protocol of backends/device.py ------------------------------------------------------------------------
    def refusal(self, request: CompileRequest) -> str | None:
        """Returns what WGSL or this adapter lacks for the kernel, or None. Traces and emits; compiles nothing."""
        return self._lower(request).refusal

    def compile(self, request: CompileRequest) -> WebGpuKernel:
        """Creates the kernel's shader module once. `bind` creates the pipelines.

        BackendError with the reason of a refusal, or with naga's message and the WGSL line.
        """
        lowered = self._lower(request)
        if lowered.refusal is not None:
            raise BackendError(f"{self.name} cannot run kernel {request.kernel.name}: {lowered.refusal}")
        with self.lock:
            if lowered not in self._kernels:
                made = WebGpuKernel(self, request.kernel.name, [a.writable for a in request.arrays], lowered.emitted)
                made.module(frozenset())
                self._kernels[lowered] = made
            return self._kernels[lowered]

    def _lower(self, request: CompileRequest) -> Lowered:
        """Lowers the kernel once."""
        width = request.lanes or self.lanes
        key = digest_of(request.key(), width)
        with self.lock:
            if key not in self._lowered:
                self._lowered[key] = lower(request.trace(), width, self.target, self.adapter.name)
            return self._lowered[key]

    def allocate(self, nbytes: int) -> WebGpuMemory:
        """Allocates zeroed memory. BackendError above the adapter's maximum buffer size or if there is not enough."""
        whole, most = words_nbytes(nbytes), self.limits["buffer"]
        if whole > most:
            words = "" if nbytes > most else f" ({whole} in whole words)"
            raise BackendError(
                f"{self.name}: a buffer of {nbytes} bytes{words}; the largest of {self.adapter.name} is {most}"
            )
        return WebGpuMemory(self, nbytes)

    def bind(self, commands: Sequence[Command], n_extents: int, *, timed: bool = False) -> WebGpuRun:
        """Creates pipelines, bind groups and staging buffers for the commands, with `timed` also timestamp queries."""
        return WebGpuRun(self, commands, n_extents, timed and "timestamp-query" in self.features)

    # --- used by the other modules ---------------------------------------------------------------------------------
    def create_buffer(self, nbytes: int, usage: int) -> Any:
        """Creates a WGPUBuffer. BackendError with the requested size."""
        n = self.native
        with self.lock:
            handle = n.lib.wgpuDeviceCreateBuffer(
                self.handle, n.struct("WGPUBufferDescriptor", size=nbytes, usage=usage).pointer
            )
            self.faults.check(f"a buffer of {nbytes} bytes")
        counts.buffers += 1
        return handle

    def write_buffer(self, buffer: Any, offset_nbytes: int, raw: Bytes) -> None:
        """Queues a write of whole words that runs before the next submit."""
        self.write_address(buffer, offset_nbytes, raw.ctypes.data, raw.nbytes)

    def write_address(self, buffer: Any, offset_nbytes: int, address: int, nbytes: int) -> None:
        """Like `write_buffer`, from a host address. The bytes are copied before this returns."""
        n = self.native
        n.lib.wgpuQueueWriteBuffer(self.queue, buffer, offset_nbytes, n.ffi.cast("void *", address), nbytes)

    def begin_commands(self) -> Any:
        """Creates a WGPUCommandEncoder."""
        return self.native.lib.wgpuDeviceCreateCommandEncoder(self.handle, self.native.ffi.NULL)

    def submit_commands(self, encoder: Any) -> None:
        """Finishes the encoder and submits its commands."""
        lib, ffi = self.native.lib, self.native.ffi
        commands = lib.wgpuCommandEncoderFinish(encoder, ffi.NULL)
        lib.wgpuCommandEncoderRelease(encoder)
        if self.faults.any:  # submitting an invalid command buffer aborts the process
            return
        lib.wgpuQueueSubmit(self.queue, 1, ffi.new("WGPUCommandBuffer[]", [commands]))
        lib.wgpuCommandBufferRelease(commands)

    def finish_work(self) -> None:
        """Waits until all submitted work is done and its callbacks were called."""
        self.native.lib.wgpuDevicePoll(self.handle, True, self.native.ffi.NULL)

    def copy_kernels(self) -> CopyKernels:
        """Returns the pipelines for copies that no encoder command supports, created on first use."""
        with self.lock:
            if self._copy_kernels is None:
                self._copy_kernels = CopyKernels(self)
            return self._copy_kernels

    def close(self) -> None:
        """Destroys the device and everything created from it, for tests."""
        self.native.lib.wgpuDeviceDestroy(self.handle)


def _limits(adapter: Adapter) -> dict[str, int]:
    limits = {word: adapter.limits[name] for word, name in _LIMITS.items()}
    limits["lanes"] = min(limits["lanes"], adapter.limits["maxComputeWorkgroupSizeX"])
    return limits | {"alignment": max(adapter.limits["minStorageBufferOffsetAlignment"], _LEAST_ALIGNMENT)}


def _target(adapter: Adapter, features: frozenset[str], limits: Mapping[str, int]) -> WgslTarget:
    return WgslTarget(
        features,
        adapter.subgroup_size,
        max_binding_nbytes=limits["binding"],
        max_bindings=limits["bindings"],
        max_workgroups=limits["workgroups"],
        max_workgroup_nbytes=limits["workgroup_memory"],
        max_threads=limits["lanes"],
        alignment=limits["alignment"],
    )


@functools.cache
def absent() -> str | None:
    """Returns one line that says why WebGPU is not available, or None."""
    try:
        found = adapters()
    except CamshaftError as error:
        return str(error)
    if found:
        return None
    return "no adapter: wgpu finds no driver of Vulkan, Metal, D3D12 or OpenGL (Debian: mesa-vulkan-drivers has one in software)"


def devices() -> tuple[DeviceInfo, ...]:
    """Returns the adapters, best first, or one row with the reason why there is none."""
    reason = absent()
    if reason is not None:
        return (DeviceInfo(NAME, NAME, "", reason),)
    return tuple(_info(index, adapter) for index, adapter in enumerate(adapters()))


def _info(index: int, adapter: Adapter) -> DeviceInfo:
    features = tuple(sorted(adapter.features))
    return DeviceInfo(device_name(NAME, index), NAME, adapter.description, None, _limits(adapter), features)


@functools.cache
def make(index: int) -> WebGpuDevice:
    """Returns the device of adapter `index`, 0 being the best. BackendError if there is no such adapter."""
    reason = absent()
    if reason is not None:
        raise BackendError(f"webgpu is absent: {reason}")
    if not 0 <= index < len(adapters()):
        named = "; ".join(f"{device_name(NAME, i)} is {a.description}" for i, a in enumerate(adapters()))
        raise BackendError(f"no device {NAME}:{index}; {named}")
    return WebGpuDevice(device_name(NAME, index), adapters()[index])
