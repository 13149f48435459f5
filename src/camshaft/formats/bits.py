"""Unpack bit fields of quantized blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Records = npt.NDArray[np.void]  # one structured record per block

# Values of the non-linear 4-bit types (IQ4_NL, IQ4_XS), and of FP4 E2M1 times two (MXFP4; minus zero becomes zero).
IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def packed(*fields: tuple[Any, ...]) -> np.dtype[np.void]:
    """The dtype of a block: little-endian fields (name, type[, shape]) without padding."""
    return np.dtype(list(fields), align=False)


def records(layout: np.dtype[np.void], **fields: npt.NDArray[Any]) -> Records:
    """Returns one record per block with these fields, each [n, ...]."""
    made = np.empty(len(next(iter(fields.values()))), layout)
    for name, values in fields.items():
        made[name] = values
    return made


def bit_fields(data: Bytes, n_bits: int) -> Bytes:
    """uint8 [..., m] to uint8 [..., 8 / n_bits, m]: the fields of n_bits (1, 2 or 4) of each byte, lowest first."""
    shifts = np.arange(0, 8, n_bits, dtype=np.uint8)[:, None]
    return (data[..., None, :] >> shifts) & np.uint8((1 << n_bits) - 1)


def as_float(field: npt.NDArray[Any]) -> Floats:
    """A field of every block, [n, ...], as float32; a scalar field gets a last axis of 1."""
    values = field.astype(np.float32)
    return values[:, None] if values.ndim == 1 else values
