"""NVIDIA GPUs as devices: discovery, memory, kernels and runs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from camshaft.backends.cuda import driver
from camshaft.backends.cuda.driver import bindings, driver_call
from camshaft.backends.cuda.kernel import CudaKernel, load, ptx_text
from camshaft.backends.cuda.memory import CudaMemory
from camshaft.backends.cuda.run import CudaRun
from camshaft.backends.device import Command, DeviceInfo, device_name
from camshaft.emit.nvptx.module import MOST_SHARED_NBYTES, shared_nbytes, simt_form
from camshaft.emit.refusal import refusal
from camshaft.emit.target import GPU_TARGETS, GpuTarget
from camshaft.errors import BackendError
from camshaft.lang import CompileRequest
from camshaft.lang.simt.form import SimtKernel
from camshaft.store.files import digest_of

NAME = "cuda"
LANES = 128
MOST_LANES = 1024
# Compute capability -> (target, first driver version that accepts its PTX). Other GPUs get the oldest target.
_TARGETS = {(9, 0): ("sm_90a", 12000), (10, 0): ("sm_100", 12080)}
_ATTRIBUTES = {
    "multiprocessors": "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
    "l2_cache": "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE",
}


@functools.cache
def absent() -> str | None:
    """Returns why no NVIDIA GPU can be used here, or None."""
    return driver.absent_reason()


def target_of(capability: tuple[int, int], driver_version: int) -> GpuTarget:
    """Returns the PTX target for a GPU and driver."""
    name, oldest = _TARGETS.get(capability, ("sm_80", 0))
    return GPU_TARGETS[name if driver_version >= oldest else "sm_80"]


def _attribute(name: str, handle: Any) -> int:
    return int(driver_call("cuDeviceGetAttribute", getattr(bindings().CUdevice_attribute, name), handle))


def _capability(handle: Any) -> tuple[int, int]:
    words = ("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR", "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR")
    major, minor = (_attribute(word, handle) for word in words)
    return major, minor


def _limits(handle: Any) -> dict[str, int]:
    major, minor = _capability(handle)
    return {
        "alignment": 256,
        "memory": int(driver_call("cuDeviceTotalMem", handle)),
        "lanes": MOST_LANES,
        "workgroup_memory": MOST_SHARED_NBYTES,
        "workgroups": 2**31 - 1,
        "compute_capability": 10 * major + minor,
        **{word: _attribute(attribute, handle) for word, attribute in _ATTRIBUTES.items()},
    }


def _info(index: int) -> DeviceInfo:
    handle = driver_call("cuDeviceGet", index)
    text = driver_call("cuDeviceGetName", 256, handle).split(b"\0")[0].decode()
    return DeviceInfo(
        device_name(NAME, index), NAME, text, driver.capability_reason(_capability(handle)), _limits(handle)
    )


def devices() -> tuple[DeviceInfo, ...]:
    """Returns every GPU, or one row with the reason why there is none."""
    reason = absent()
    if reason is not None:
        return (DeviceInfo(NAME, NAME, "", reason),)
    return tuple(_info(index) for index in range(driver_call("cuDeviceGetCount")))


def make(index: int) -> CudaDevice:
    """Returns the GPU with that index. BackendError with the reason if there is none or it is too old."""
    reason = absent()
    if reason is None and index >= driver_call("cuDeviceGetCount"):
        reason = f"the NVIDIA driver sees {driver_call('cuDeviceGetCount')} GPUs"
    if reason is None:
        reason = driver.capability_reason(_capability(driver_call("cuDeviceGet", index)))
    if reason is not None:
        raise BackendError(f"device {device_name(NAME, index)!r} is absent: {reason}")
    return CudaDevice(index)


class CudaDevice:
    """A GPU with its primary context, one stream for all runs and one for graph capture.

    Methods are thread-safe; a thread holds `lock` while it enqueues.
    """

    def __init__(self, index: int) -> None:
        self.name, self.backend, self.lanes, self.space = (
            device_name(NAME, index),
            NAME,
            LANES,
            device_name(NAME, index),
        )
        self.handle = driver_call("cuDeviceGet", index)
        self.limits: Mapping[str, int] = _limits(self.handle)
        self.target = target_of(_capability(self.handle), driver_call("cuDriverGetVersion"))
        self.features = frozenset({"dot4"})
        self.lock = threading.RLock()
        self.context = driver_call("cuDevicePrimaryCtxRetain", self.handle)
        self._kernels: dict[str, CudaKernel] = {}
        with self.entered():
            apart = bindings().CUstream_flags.CU_STREAM_NON_BLOCKING
            self.stream, self.capture_stream = (
                driver_call("cuStreamCreate", apart),
                driver_call("cuStreamCreate", apart),
            )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Makes the context current in this thread and keeps other threads from enqueueing."""
        with self.lock:
            driver_call("cuCtxSetCurrent", self.context)
            yield

    # --- the protocol of backends/device.py ---------------------------------------------------------------------------
    def refusal(self, request: CompileRequest) -> str | None:
        """Returns what PTX lacks or which limit the kernel exceeds, or None. Traces the kernel; compiles nothing."""
        traced = request.trace()
        return refusal(traced, "ptx") or _over(simt_form(traced, request.lanes or self.lanes))

    def compile(self, request: CompileRequest) -> CudaKernel:
        """Returns the kernel loaded into this device's context, from memory or from PTX in the store; otherwise traces and
        emits it.

        BackendError with the reason of a refusal, LLVM's message or the driver's log.
        """
        width, name = request.lanes or self.lanes, request.kernel.name
        key = digest_of(request.key(), width)

        def simt() -> SimtKernel:
            traced = request.trace()
            reason = refusal(traced, "ptx") or _over(made := simt_form(traced, width))
            if reason is not None:
                raise BackendError(f"{self.name} cannot run kernel {name}: {reason}")
            return made

        with self.lock:
            if key not in self._kernels:
                symbol, text = ptx_text(key, self.target, simt)
                with self.entered():
                    self._kernels[key] = load(name, symbol, text)
            return self._kernels[key]

    def allocate(self, nbytes: int) -> CudaMemory:
        """Allocates zeroed memory. BackendError with the requested and the free size if there is not enough."""
        return CudaMemory(self, nbytes)

    def bind(self, commands: Sequence[Command], n_extents: int, *, timed: bool = False) -> CudaRun:
        """Prepares commands: as one captured graph, or with `timed` as single launches between events."""
        return CudaRun(self, commands, n_extents, timed)


def _over(kernel: SimtKernel) -> str | None:
    """Returns which limit common to all GPUs the kernel exceeds, or None."""
    if kernel.lanes > MOST_LANES:
        return f"a workgroup of {kernel.lanes} threads; wanted at most {MOST_LANES}"
    nbytes = shared_nbytes(kernel)
    if nbytes > MOST_SHARED_NBYTES:
        return f"{nbytes} bytes of workgroup memory; wanted at most {MOST_SHARED_NBYTES}"
    return None
