"""wgpu-native's C interface (webgpu.h), through cffi, from the library in the wgpu package.

The C functions are called directly. wgpu's Python classes take 3 to 10 microseconds per call, too much for runs of 300 thunks,
and do not report a lost device.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from camshaft.backends.webgpu.declarations import declarations
from camshaft.errors import BackendError, MissingExtraError

# Parts of wgpu-core's messages; wgpu-native reports both as validation errors.
_NO_MEMORY, _LOST = "Not enough memory left", "device is lost"


class Faults:
    """The error callbacks of a device, called on any thread. `check` raises the first reported error.

    `error` and `lost` are C function pointers, so this value must outlive the device.
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
        """Whether there is an error that `check` would raise."""
        return bool(self._errors) or self._lost is not None

    def check(self, what: str) -> None:
        """Raises BackendError if the device was lost (permanent) or reported an error since the last check. `what` names
        the operation."""
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


PACKAGE, EXTRA = "wgpu", "webgpu"


@dataclass(frozen=True)
class Native:
    """The cffi library: `lib` has its functions and constants, `ffi` creates C structs."""

    lib: Any = field(repr=False)
    ffi: Any = field(repr=False)

    def string(self, view: Any) -> str:
        """Converts a WGPUStringView to text."""
        if view.data == self.ffi.NULL or view.length == 0:
            return ""
        ends_itself = view.length == self.lib.WGPU_STRLEN
        raw = self.ffi.string(view.data) if ends_itself else self.ffi.buffer(view.data, view.length)[:]
        return bytes(raw).decode(errors="replace")

    def struct(self, kind: str, **values: Any) -> Struct:
        """Creates a zeroed C struct `kind` and sets fields from strings, nested dicts, Structs (by pointer) and other values.

        The caller sets the count field of an array.
        """
        made = Struct(self.ffi.new(f"{kind} *"), [])
        self._fill(made.pointer, values, made.references)
        return made

    def array(self, kind: str, items: Iterable[dict[str, Any]]) -> Struct:
        """Creates a C array of structs `kind`, each filled as in `struct`."""
        rows = list(items)
        made = Struct(self.ffi.new(f"{kind}[]", max(len(rows), 1)), [])
        for place, values in zip(made.pointer, rows, strict=False):
            self._fill(place, values, made.references)
        return made

    def _fill(self, place: Any, values: dict[str, Any], references: list[Any]) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                self._fill(getattr(place, name), value, references)
            elif isinstance(value, str):
                text = value.encode()
                data = self.ffi.new("char[]", text)
                references.append(data)
                view = getattr(place, name)
                view.data, view.length = data, len(text)
            elif isinstance(value, Struct):
                references.append(value)
                setattr(place, name, value.pointer)
            else:
                setattr(place, name, value)


@dataclass(frozen=True)
class Struct:
    """A C struct or array, with references that keep its pointees alive."""

    pointer: Any
    references: list[Any]


@functools.cache
def native() -> Native:
    """Loads the library. MissingExtraError without the package, BackendError if the library does not load."""
    found = find_spec(PACKAGE)
    if found is None:
        raise MissingExtraError(PACKAGE, EXTRA, "the backend 'webgpu'")
    try:
        return _in_folder(Path(found.origin or "").parent / "resources") or _imported()
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(f"webgpu: the library of the package 'wgpu' does not load here: {error}") from error


def _in_folder(resources: Path) -> Native | None:
    """Loads the package's library by its header, without importing the package (0.6 s). None where they are elsewhere."""
    path, header = os.environ.get("WGPU_LIB_PATH", "").strip(), resources / "combined_header.h"
    libraries = [path] if path else sorted(str(p) for p in resources.glob("*wgpu_native-release.*"))
    if len(libraries) != 1 or not header.is_file():
        return None
    ffi = declarations(header)
    return Native(ffi.dlopen(libraries[0]), ffi)


def _imported() -> Native:
    from wgpu.backends.wgpu_native import ffi, lib

    # wgpu also logs each reported error; without a handler Python would print it to stderr.
    logging.getLogger(PACKAGE).addHandler(logging.NullHandler())
    return Native(lib, ffi)
