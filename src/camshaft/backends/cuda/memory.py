"""Device memory of an NVIDIA GPU, and page-locked host memory for copies."""

from __future__ import annotations

import ctypes
import sys
import weakref
from typing import TYPE_CHECKING

import numpy as np

from camshaft.backends.cuda.driver import DriverError, driver_call
from camshaft.backends.device import Bytes, check_range
from camshaft.errors import BackendError

if TYPE_CHECKING:
    from camshaft.backends.cuda.device import CudaDevice


class CudaMemory:
    """A zeroed allocation on a GPU. `address` is a device address."""

    def __init__(self, device: CudaDevice, nbytes: int) -> None:
        self.device, self.nbytes = device, nbytes
        with device.entered():
            self.address = _allocate(device, max(nbytes, 1))
            self._free = weakref.finalize(self, _release, device, "cuMemFree", self.address)
            driver_call("cuMemsetD8Async", self.address, 0, max(nbytes, 1), device.stream)

    def write(self, data: Bytes, offset_nbytes: int = 0) -> None:
        """Copies `data` to the GPU before any later submit; the caller may reuse it. BackendError if it passes the end."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._check("a write", offset_nbytes, raw.nbytes)
        if raw.nbytes:
            with self.device.entered():
                driver_call(
                    "cuMemcpyHtoDAsync", self.address + offset_nbytes, raw.ctypes.data, raw.nbytes, self.device.stream
                )
                # without this the driver could still read page-locked `data` after the return
                driver_call("cuStreamSynchronize", self.device.stream)

    def read(self, offset_nbytes: int = 0, nbytes: int | None = None) -> Bytes:
        """Returns a copy of the bytes after all earlier submits. BackendError if the range passes the end."""
        length = self.nbytes - offset_nbytes if nbytes is None else nbytes
        self._check("a read", offset_nbytes, length)
        out = np.empty(length, np.uint8)
        if length:
            with self.device.entered():
                driver_call(
                    "cuMemcpyDtoHAsync", out.ctypes.data, self.address + offset_nbytes, length, self.device.stream
                )
                driver_call("cuStreamSynchronize", self.device.stream)
        return out

    def close(self) -> None:
        """Frees the memory after all earlier submits."""
        self._free()

    def _check(self, what: str, offset: int, nbytes: int) -> None:
        if not self._free.alive:
            raise BackendError(f"{self.device.name}: memory of {self.nbytes} bytes was closed")
        check_range(f"{self.device.name}: {what}", offset, nbytes, self.nbytes)


class Pinned:
    """Page-locked host memory as a uint8 array. A graph can copy from and to it."""

    def __init__(self, device: CudaDevice, nbytes: int) -> None:
        with device.entered():
            self.address = int(driver_call("cuMemHostAlloc", max(nbytes, 1), 0))
        self.bytes: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self.address))
        self._free = weakref.finalize(self, _release, device, "cuMemFreeHost", self.address)

    def close(self) -> None:
        """Frees the memory; `bytes` must not be used afterwards."""
        self._free()


def _allocate(device: CudaDevice, nbytes: int) -> int:
    try:
        return int(driver_call("cuMemAlloc", nbytes))
    except DriverError as error:
        if error.code != "CUDA_ERROR_OUT_OF_MEMORY":
            raise
        free, total = driver_call("cuMemGetInfo")
        raise BackendError(
            f"{device.name}: no memory for {nbytes} bytes; {free} of its {total} bytes are free"
        ) from error


def _release(device: CudaDevice, call: str, address: int) -> None:
    if not sys.is_finalizing():  # the driver frees everything at process exit
        with device.entered():
            driver_call(call, address)
