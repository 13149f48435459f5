"""Storage buffers of a WebGPU device, written through the queue and read through a staging buffer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.backends.device import Bytes, check_range
from camshaft.errors import BackendError

if TYPE_CHECKING:
    from camshaft.backends.webgpu.device import WebGpuDevice

# WGPUBufferUsage flags of webgpu.h.
MAP_READ, COPY_SRC, COPY_DST, UNIFORM, STORAGE, QUERY_RESOLVE = 0x1, 0x4, 0x8, 0x40, 0x80, 0x200
# The smallest size of a buffer in bytes: enough for the smallest binding of any kernel.
_LEAST_NBYTES = 16
_STAGING_NBYTES = 64 << 20


def words_nbytes(nbytes: int) -> int:
    """Rounds `nbytes` up to whole 32-bit words."""
    return -(-nbytes // 4) * 4


class WebGpuMemory:
    """A zeroed storage buffer of `nbytes`. `handle` is the WGPUBuffer, whose size is a multiple of 4 bytes."""

    def __init__(self, device: WebGpuDevice, nbytes: int, usage: int = STORAGE | COPY_SRC | COPY_DST) -> None:
        self.device, self.nbytes = device, nbytes
        self.size = max(words_nbytes(nbytes), _LEAST_NBYTES)
        self.handle: Any = None
        self.handle = device.create_buffer(self.size, usage)

    def write(self, data: Bytes, offset_nbytes: int = 0) -> None:
        """Copies `data` in before any later submit. A queue writes whole words, so partial words are read first."""
        self._refuse_outside(offset_nbytes, data.nbytes, "a write")
        raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        first, end = offset_nbytes // 4 * 4, words_nbytes(offset_nbytes + raw.nbytes)
        if raw.nbytes and (first, end) != (offset_nbytes, offset_nbytes + raw.nbytes):
            whole = np.zeros(end - first, np.uint8)
            whole[:4] = self._words(first, 4)
            whole[-4:] = self._words(end - 4, 4)
            whole[offset_nbytes - first :][: raw.nbytes] = raw
            raw = whole
        if raw.nbytes:
            with self.device.lock:
                self.device.write_buffer(self.handle, first, raw)
                self.device.faults.check(f"writing {data.nbytes} bytes")

    def read(self, offset_nbytes: int = 0, nbytes: int | None = None) -> Bytes:
        """Returns a copy of bytes [offset, offset + nbytes), by default up to the end, after all earlier submits."""
        count = self.nbytes - offset_nbytes if nbytes is None else nbytes
        self._refuse_outside(offset_nbytes, count, "a read")
        first, end = offset_nbytes // 4 * 4, words_nbytes(offset_nbytes + count)
        return self._words(first, end - first)[offset_nbytes - first :][:count]

    def _words(self, offset_nbytes: int, nbytes: int) -> Bytes:
        out = np.empty(nbytes, np.uint8)
        if not nbytes:
            return out
        piece = min(nbytes, _STAGING_NBYTES)
        with Staging(self.device, piece) as staging:
            for start in range(0, nbytes, piece):
                part = out[start : start + piece]
                staging.fetch(self.handle, offset_nbytes + start, part.nbytes)
                with staging.mapped(part.nbytes) as block:
                    part[:] = block
        return out

    def _refuse_outside(self, offset_nbytes: int, nbytes: int, what: str) -> None:
        if self.handle is None:
            raise BackendError(f"{self.device.name}: {what} of memory that is closed")
        check_range(f"{self.device.name}: {what}", offset_nbytes, nbytes, self.nbytes)

    def close(self) -> None:
        """Releases the buffer; the device frees it after its last use. Further calls do nothing."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self.device.native.lib.wgpuBufferRelease(handle)

    __del__ = close


_CALLBACK_TIMEOUT_S = 10.0


class Staging:
    """A mappable buffer for downloads."""

    def __init__(self, device: WebGpuDevice, nbytes: int) -> None:
        self.device, self.nbytes = device, words_nbytes(nbytes)
        self.handle: Any = None
        self.handle = device.create_buffer(self.nbytes, MAP_READ | COPY_DST)
        self._status, self._called = 0, threading.Event()
        signature = "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)"
        self._callback = device.native.ffi.callback(signature, self._mapped)
        lib = device.native.lib
        fields = {"mode": lib.WGPUCallbackMode_AllowProcessEvents, "callback": self._callback}
        self._info = device.native.struct("WGPUBufferMapCallbackInfo", **fields)

    def _mapped(self, status: int, message: Any, *_: Any) -> None:
        self._status = status
        self._called.set()

    def fetch(self, source: Any, offset_nbytes: int, nbytes: int) -> None:
        """Submits a copy of `nbytes` (whole words) of `source` to the start of this buffer."""
        device, lib = self.device, self.device.native.lib
        with device.lock:
            encoder = device.begin_commands()
            lib.wgpuCommandEncoderCopyBufferToBuffer(encoder, source, offset_nbytes, self.handle, 0, nbytes)
            device.submit_commands(encoder)
            device.faults.check(f"reading {nbytes} bytes")

    @contextmanager
    def mapped(self, nbytes: int | None = None) -> Iterator[Bytes]:
        """Waits for all submitted work and maps the first `nbytes` (default: all). The array is valid inside the `with` block.
        BackendError if the device failed."""
        device, lib, ffi = self.device, self.device.native.lib, self.device.native.ffi
        nbytes = self.nbytes if nbytes is None else nbytes
        self._status = 0
        self._called.clear()
        lib.wgpuBufferMapAsync(self.handle, lib.WGPUMapMode_Read, 0, nbytes, self._info.pointer[0])
        device.finish_work()
        device.faults.check(f"reading {nbytes} bytes")
        # Another thread that waits for the device may have taken this callback and be about to call it.
        self._called.wait(_CALLBACK_TIMEOUT_S)
        if self._status != lib.WGPUMapAsyncStatus_Success:
            raise BackendError(f"{device.name}: results could not be mapped (status {self._status})")
        start = lib.wgpuBufferGetConstMappedRange(self.handle, 0, nbytes)
        try:
            yield np.frombuffer(ffi.buffer(start, nbytes), np.uint8)
        finally:
            lib.wgpuBufferUnmap(self.handle)

    def close(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None:
            self.device.native.lib.wgpuBufferRelease(handle)

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    __del__ = close
