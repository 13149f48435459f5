"""A CUDA driver for tests: the calls that backends/cuda/ makes, with the memory of this process, run on the simulated GPU.

Enumerations and structures are cuda-bindings' own, and a call with other arguments than theirs is refused.
"""

from __future__ import annotations

import ctypes
import functools
import re

import numpy as np
from cuda.bindings import driver as real

from tests.support.devices.fake_cuda_streams import FakeStreams

SUCCESS = real.CUresult.CUDA_SUCCESS


def _arguments(name: str) -> int:
    """How many arguments cuda-bindings' function of that name takes, by its signature."""
    first = (getattr(real, name).__doc__ or "").strip().split("\n")[0]
    inside = first[first.index("(") + 1 : first.rindex(")")]
    inside = re.sub(r"\[[^\]]*\]", "", inside)
    return len([a for a in inside.split(",") if a.strip()])


class FakeDriver(FakeStreams):
    """Stands for cuda.bindings.driver. `calls` lists the names called; `fail[name]` is an error's name to answer with."""

    def __init__(self, version=12040, capability=(9, 0), count=1, memory=1 << 30, seed=0) -> None:
        super().__init__(seed)
        self.version, self.capability, self.count, self.memory = version, capability, count, memory
        self.calls: list[str] = []
        self.fail: dict[str, str] = {}
        self.kernels: dict = {}  # symbol -> (SimulatedKernel, number of parameters)
        self.buffers: dict[int, np.ndarray] = {}
        self.modules: dict[int, str] = {}
        self.launched: list[tuple[str, int]] = []
        self.copied: list[int] = []

    def __getattr__(self, name: str):
        found = getattr(real, name)
        if name.startswith("cu") and not name.startswith("cuuint"):
            raise AttributeError(f"the fake driver has no {name}")
        return found

    def __getattribute__(self, name: str):
        found = object.__getattribute__(self, name)
        if not name.startswith("cu"):
            return found

        @functools.wraps(found)
        def call(*args):
            assert len(args) == _arguments(name), f"{name} takes {_arguments(name)} arguments, got {len(args)}"
            if name not in ("cuGetErrorName", "cuGetErrorString"):
                self.calls.append(name)
            if name in self.fail:
                return getattr(real.CUresult, self.fail[name]), *([None] * 6)
            answer = found(*args)
            if isinstance(answer, real.CUresult):
                return answer, None
            values = answer if isinstance(answer, tuple) else () if answer is None else (answer,)
            return SUCCESS, *values

        return call

    # --- errors and devices ------------------------------------------------------------------------------------------
    def cuGetErrorName(self, error):
        return error.name.encode()

    def cuGetErrorString(self, error):
        return error.name.removeprefix("CUDA_ERROR_").lower().replace("_", " ").encode()

    def cuInit(self, flags):
        return None

    def cuDriverGetVersion(self):
        return self.version

    def cuDeviceGetCount(self):
        return self.count

    def cuDeviceGet(self, ordinal):
        return ordinal

    def cuDeviceGetName(self, length, device):
        return b"Fake GPU".ljust(length, b"\0")

    def cuDeviceTotalMem(self, device):
        return self.memory

    def cuDeviceGetAttribute(self, attribute, device):
        which = attribute.name
        return self.capability["MINOR" in which] if "CAPABILITY" in which else 16

    def cuDevicePrimaryCtxRetain(self, device):
        return self.handle()

    def cuCtxSetCurrent(self, context):
        return None

    # --- memory --------------------------------------------------------------------------------------------------------
    def cuMemGetInfo(self):
        return self.memory - self._held(), self.memory

    def _held(self) -> int:
        return sum(b.nbytes for b in self.buffers.values())

    def _new(self, nbytes: int) -> int:
        raw = np.full(nbytes + 256, 0xEE, np.uint8)
        address = -(-raw.ctypes.data // 256) * 256
        self.buffers[address] = raw
        return address

    def cuMemAlloc(self, nbytes):
        if self._held() + nbytes > self.memory:
            return real.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        return real.CUdeviceptr(self._new(nbytes))

    def cuMemFree(self, address):
        del self.buffers[int(address)]

    def cuMemHostAlloc(self, nbytes, flags):
        return self._new(nbytes)

    def cuMemFreeHost(self, address):
        del self.buffers[int(address)]

    def cuMemsetD8Async(self, address, value, nbytes, stream):
        self._do(stream, "set", lambda: ctypes.memset(int(address), value, nbytes))

    def _copy(self, destination, source, nbytes, stream):
        def run(size=nbytes):
            assert 0 < size <= nbytes
            self.copied.append(size)
            ctypes.memmove(int(destination), int(source), size)

        self._do(stream, "copy", run, nbytes, (int(source), int(destination)))

    cuMemcpyHtoDAsync = cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = _copy

    # --- kernels -------------------------------------------------------------------------------------------------------
    def cuModuleLoadDataEx(self, image, count, options, values):
        assert not any(s.capturing for s in self.streams.values()), "a module loaded during capture"
        assert image.endswith(b"\0")
        module = self.handle()
        self.modules[module] = re.search(r"\.visible \.entry (\w+)", image.decode()).group(1)
        return module

    def cuModuleGetFunction(self, module, name):
        assert self.modules[module] == name.decode()
        function = self.handle()
        self.functions[function] = name.decode()
        return real.CUfunction(function)

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra):
        symbol = self.functions[int(function)]
        kernel, n_parameters = self.kernels[symbol]
        assert (gy, gz, by, bz, shared, bx) == (1, 1, 1, 1, 0, kernel.lanes)
        pointers = (ctypes.c_int64 * max(n_parameters, 1)).from_address(params)
        args = np.array([ctypes.c_int64.from_address(pointers[i]).value for i in range(n_parameters)] or [0], np.int64)

        def run(grid=gx):
            assert grid > 0, "a grid of no workgroups"
            self.launched.append((kernel.name, grid))
            kernel(args.ctypes.data, 0, grid)

        self._do(stream, "kernel", run, gx)
