"""The memory of logits, into which every plan of a model writes its rows, and the device that has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.dtypes import f32
from camshaft.ops.spec import TensorSpec
from camshaft.plan.memory.allocate import aligned_bytes

if TYPE_CHECKING:
    from camshaft.backends.device import Device
    from camshaft.plan.memory.device_memory import DeviceArray, DeviceRows

Array = np.ndarray[Any, Any]


def logits_memory(rows: int, vocab_size: int, device: Device | None) -> Array | DeviceArray:
    """Memory f32 [rows, vocab_size] of the host, or of a device."""
    spec = TensorSpec((rows, vocab_size), f32)
    if device is not None:
        from camshaft.plan.memory.device_memory import DeviceArray

        return DeviceArray.zeros(device, spec)
    return aligned_bytes(spec.nbytes, 64).view(np.float32).reshape(spec.bounds)


def first_rows(logits: Array | DeviceArray, n: int) -> Array | DeviceRows:
    """The first `n` rows: a view, or on a device what `copy()` fetches."""
    if isinstance(logits, np.ndarray):
        return logits[:n]
    from camshaft.plan.memory.device_memory import DeviceRows

    return DeviceRows(logits, n)


def put_rows(logits: Array | DeviceArray, parts: Sequence[Array]) -> Array | DeviceRows:
    """Make the rows of several runs, one after the other, the first ones."""
    rows = np.concatenate(parts) if parts else np.empty((0, logits.shape[1]), np.float32)
    if isinstance(logits, np.ndarray):
        logits[: len(rows)] = rows
    elif len(rows):
        logits.memory.write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8), 0)
    return first_rows(logits, len(rows))


def move_row(logits: Array | DeviceArray, row: int, to: int = 0) -> None:
    """Copy a row over an earlier one: a sequence's logits are drawn from the first rows."""
    if row == to:
        return
    if isinstance(logits, np.ndarray):
        logits[to] = logits[row]
        return
    nbytes = logits.shape[1] * f32.nbytes
    logits.memory.write(logits.memory.read(row * nbytes, nbytes), to * nbytes)


def device_with_memory(backend: str | None) -> Device | None:
    """The named device if it has its own memory, else None."""
    if backend is None:
        return None
    from camshaft.backends.device import HOST
    from camshaft.backends.registry import device

    named = device(backend)
    return None if named.space == HOST else named
