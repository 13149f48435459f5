"""What a driver reports: errors and the loss of the device, kept until someone asks."""

from __future__ import annotations

from typing import Any

from camshaft.backends.webgpu.native import Native
from camshaft.errors import BackendError

# wgpu-core's words; wgpu-native reports both as validation errors.
_NO_MEMORY, _LOST = "Not enough memory left", "device is lost"


class Faults:
    """The callbacks of one device. They may come on any thread; `check` raises what came first.

    `error` and `lost` are C function pointers: this value must live as long as the device.
    """

    def __init__(self, n: Native, device: str) -> None:
        self._native, self._device = n, device
        self._errors: list[tuple[int, str]] = []
        self._lost: str | None = None
        signature = "void(WGPUDevice const *, {}, WGPUStringView, void *, void *)"
        self.error = n.ffi.callback(signature.format("WGPUErrorType"), self._note_error)
        self.lost = n.ffi.callback(signature.format("WGPUDeviceLostReason"), self._note_loss)

    def _note_error(self, device: Any, kind: int, message: Any, *_: Any) -> None:
        self._errors.append((kind, self._native.string(message)))

    def _note_loss(self, device: Any, reason: int, message: Any, *_: Any) -> None:
        destroyed = reason == self._native.lib.WGPUDeviceLostReason_Destroyed
        self._lost = _one_line(self._native.string(message)) or ("it was destroyed" if destroyed else "no reason given")

    @property
    def any(self) -> bool:
        """Whether something waits to be raised."""
        return bool(self._errors) or self._lost is not None

    def check(self, what: str) -> None:
        """BackendError if the device was lost (for good) or reported an error since the last check, while `what` was done."""
        if self._lost is not None:
            raise BackendError(f"{self._device}: the device was lost: {self._lost}")
        if not self._errors:
            return
        kind, message = self._errors[0]
        self._errors.clear()
        if _LOST in message:
            raise BackendError(f"{self._device}: the device was lost: {_one_line(message)}")
        if kind == self._native.lib.WGPUErrorType_OutOfMemory or _NO_MEMORY in message:
            raise BackendError(f"{self._device}: out of device memory: {what}")
        raise BackendError(f"{self._device}: {what}: {message.strip()}")


def _one_line(text: str) -> str:
    return " ".join(text.split())
