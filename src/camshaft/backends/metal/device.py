"""Metal as a device: MSL compiled and launched through PyObjC. Not yet run on hardware.

It follows Metal's documentation; tests run its MSL on a CPU (tests/support/devices/fake_metal.py).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from camshaft.backends.device import Command, DeviceInfo, DeviceRun, Memory, device_name
from camshaft.backends.metal.api import MetalApi, MetalApiDevice, absent_api, metal_api
from camshaft.backends.metal.memory import Queue, allocate
from camshaft.backends.metal.pipelines import MetalKernel, Pipelines
from camshaft.backends.metal.run import MetalRun
from camshaft.emit.msl.context import MslModule, MslTarget
from camshaft.emit.msl.module import emit, simt_form
from camshaft.emit.msl.module import refusal as past_limits
from camshaft.emit.refusal import refusal
from camshaft.errors import BackendError
from camshaft.lang import CompileRequest, ir
from camshaft.lang.simt.form import SimtKernel
from camshaft.store.files import digest_of

# Default threads per threadgroup: two SIMD-groups.
LANES = 64
# Bytes. Metal requires the alignment of an element; arenas use more.
ALIGNMENT = 16
# MTLGPUFamilyApple7: the M1 and the A14.
FAMILY_WITH_MATRICES = 1007


@dataclass(frozen=True)
class MetalDevice:
    """A GPU. `limits`: 'alignment', 'memory', 'unified' (1 if it shares memory with the CPU), 'buffer', 'workgroup_memory'."""

    name: str
    native: MetalApiDevice = field(repr=False)
    api: MetalApi = field(repr=False)
    queue: Queue = field(repr=False)
    pipelines: Pipelines = field(repr=False)
    target: MslTarget
    limits: Mapping[str, int]
    features: frozenset[str] = frozenset({"simdgroups"})
    backend: str = "metal"
    lanes: int = LANES

    @property
    def space(self) -> str:
        return self.name

    def refusal(self, request: CompileRequest) -> str | None:
        """Returns what Metal lacks for the kernel or which limit it exceeds, or None."""
        traced = request.trace()
        lacking = refusal(traced, "msl")
        return past_limits(self._simt(traced, request.lanes), self.target) if lacking is None else lacking

    def _simt(self, traced: ir.KernelIR, lanes: int | None) -> SimtKernel:
        return simt_form(traced, lanes or self.lanes, self.target)

    def compile(self, request: CompileRequest) -> MetalKernel:
        """Returns the kernel's pipeline from memory, else traces, verifies, emits and compiles it. Metal caches on disk."""
        signature = digest_of(request.key(), request.lanes or self.lanes, self.target.key())

        def source() -> MslModule:
            return emit(self._simt(request.trace(), request.lanes), self.target)

        return self.pipelines.kernel(request.kernel.name, signature, source)

    def allocate(self, nbytes: int) -> Memory:
        """Allocates zeroed memory that the CPU and the GPU share. BackendError with the requested size on failure."""
        return allocate(self.native, self.queue, nbytes)

    def bind(self, commands: Sequence[Command], n_extents: int, *, timed: bool = False) -> DeviceRun:
        """Prepares commands to run. A timed run uses one command buffer per command, because Metal times those."""
        return MetalRun(
            self.queue, commands, n_extents, lambda nbytes: allocate(self.native, self.queue, nbytes), timed
        )


@functools.cache
def _native_devices() -> tuple[MetalApiDevice, ...]:
    return tuple(metal_api().MTLCopyAllDevices())


@functools.cache
def absent() -> str | None:
    """Returns why there is no Metal device, or None."""
    reason = absent_api()
    if reason is None and not _native_devices():
        return "Metal finds no GPU here"
    return reason


def devices() -> tuple[DeviceInfo, ...]:
    """Returns every GPU of Metal, or one row with the reason why there is none."""
    reason = absent()
    if reason is not None:
        return (DeviceInfo("metal", "metal", "", reason),)
    return tuple(_info(index, native) for index, native in enumerate(_native_devices()))


def _info(index: int, native: MetalApiDevice) -> DeviceInfo:
    return DeviceInfo(device_name("metal", index), "metal", str(native.name()), None, _limits(native), ("simdgroups",))


def _limits(native: MetalApiDevice) -> dict[str, int]:
    return {
        "alignment": ALIGNMENT,
        "memory": int(native.recommendedMaxWorkingSetSize()),
        "unified": int(native.hasUnifiedMemory()),
        "buffer": int(native.maxBufferLength()),
        "workgroup_memory": int(native.maxThreadgroupMemoryLength()),
    }


def make(index: int) -> MetalDevice:
    """Returns the GPU with that index. BackendError with the reason if there is none."""
    reason = absent()
    if reason is not None:
        raise BackendError(f"backend 'metal' is absent: {reason}")
    found, api, name = _native_devices(), metal_api(), device_name("metal", index)
    if not 0 <= index < len(found):
        raise BackendError(f"no device {name}; Metal has {len(found)} here")
    native = found[index]
    queue = native.newCommandQueue()
    if queue is None:
        raise BackendError(f"{name} ({native.name()}) gives no command queue")
    matrices = bool(native.supportsFamily_(FAMILY_WITH_MATRICES))
    target = MslTarget(max_threadgroup_nbytes=int(native.maxThreadgroupMemoryLength()), has_matrices=matrices)
    pipelines = Pipelines(api, native, name)
    return MetalDevice(name, native, api, Queue(api, queue, name), pipelines, target, _limits(native))
