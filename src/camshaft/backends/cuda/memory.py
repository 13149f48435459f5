"""Device memory of an NVIDIA GPU, and page-locked host memory for copies."""

from __future__ import annotations

import ctypes
import sys
import weakref
from typing import TYPE_CHECKING

import numpy as np

from camshaft.backends.cuda.driver import DriverError, ask
from camshaft.backends.device import Bytes
from camshaft.errors import BackendError

if TYPE_CHECKING:
    from camshaft.backends.cuda.device import CudaDevice


class CudaMemory:
    """Bytes on a GPU, zeroed when made. `address` is the GPU's."""

    def __init__(self, device: CudaDevice, nbytes: int) -> None:
        self.device, self.nbytes = device, nbytes
        with device.entered():
            self.address = _allocate(device, max(nbytes, 1))
            self._free = weakref.finalize(self, _release, device, "cuMemFree", self.address)
            ask("cuMemsetD8Async", self.address, 0, max(nbytes, 1), device.stream)

    def write(self, data: Bytes, offset_nbytes: int = 0) -> None:
        """Copies bytes in, ordered before every later submit; they are read before this returns. BackendError past the end."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._check(offset_nbytes, raw.nbytes)
        if raw.nbytes:
            with self.device.entered():
                ask("cuMemcpyHtoDAsync", self.address + offset_nbytes, raw.ctypes.data, raw.nbytes, self.device.stream)
                # page-locked memory would still be read after the call; it is the caller's again when this returns
                ask("cuStreamSynchronize", self.device.stream)

    def read(self, offset_nbytes: int = 0, nbytes: int | None = None) -> Bytes:
        """A copy of bytes, after everything submitted before. BackendError past the end."""
        length = self.nbytes - offset_nbytes if nbytes is None else nbytes
        self._check(offset_nbytes, length)
        out = np.empty(length, np.uint8)
        if length:
            with self.device.entered():
                ask("cuMemcpyDtoHAsync", out.ctypes.data, self.address + offset_nbytes, length, self.device.stream)
                ask("cuStreamSynchronize", self.device.stream)
        return out

    def close(self) -> None:
        """Gives the memory back, after what was submitted before."""
        self._free()

    def _check(self, offset: int, nbytes: int) -> None:
        if not self._free.alive:
            raise BackendError(f"{self.device.name}: memory of {self.nbytes} bytes was closed")
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise BackendError(
                f"{self.device.name}: bytes {offset} to {offset + nbytes} of memory that has {self.nbytes}"
            )


class Pinned:
    """Page-locked memory of the process as a uint8 array: a graph copies from and to it without the process taking part."""

    def __init__(self, device: CudaDevice, nbytes: int) -> None:
        with device.entered():
            self.address = int(ask("cuMemHostAlloc", max(nbytes, 1), 0))
        self.bytes: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self.address))
        self._free = weakref.finalize(self, _release, device, "cuMemFreeHost", self.address)

    def close(self) -> None:
        """Gives the memory back; `bytes` must not be used any more."""
        self._free()


def _allocate(device: CudaDevice, nbytes: int) -> int:
    try:
        return int(ask("cuMemAlloc", nbytes))
    except DriverError as error:
        if error.code != "CUDA_ERROR_OUT_OF_MEMORY":
            raise
        free, total = ask("cuMemGetInfo")
        raise BackendError(
            f"{device.name}: no memory for {nbytes} bytes; {free} of its {total} bytes are free"
        ) from error


def _release(device: CudaDevice, call: str, address: int) -> None:
    if not sys.is_finalizing():  # the driver takes it all back when the process ends
        with device.entered():
            ask(call, address)
