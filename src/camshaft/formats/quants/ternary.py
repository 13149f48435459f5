"""Layouts, decoders and encoders of TQ1_0 and TQ2_0: blocks of 256 values d, 0 or -d. Byte-equal to the `gguf` package."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from camshaft.formats.bits import Bytes, Floats, Records, as_float, bit_fields, packed, records

TQ1_0 = packed(("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2"))
TQ2_0 = packed(("qs", "u1", 64), ("d", "<f2"))
# Bytes of TQ1_0 in order, and the digits of each: a part has the first digits of its bytes, then the second ones, ...
TQ1_PARTS = ((0, 32, 5), (32, 48, 5), (48, 52, 4))


def _numbers(trits: Bytes) -> Floats:
    return trits.astype(np.float32) - np.float32(1)


def _digits(octets: Bytes, count: int) -> Bytes:
    """The base-3 digits of bytes, largest first, [n, m] to [n, count m]. A byte is the number / 243, as a fraction of 256: times
    3^i modulo 256 the i-th digit is the largest one, and times 3 that is above 256."""
    powers = 3 ** np.arange(count, dtype=np.uint8)
    moved = (octets[:, None, :] * powers[:, None]).astype(np.uint8)
    return ((moved.astype(np.uint16) * np.uint16(3)) >> np.uint16(8)).astype(np.uint8).reshape(len(octets), -1)


def decode_tq1_0(blocks: Records) -> Floats:
    """Five digits per byte, and four in each of the last four bytes: y = d (q - 1)."""
    octets = np.concatenate([blocks["qs"], blocks["qh"]], axis=1)
    trits = np.concatenate([_digits(octets[:, first:last], n) for first, last, n in TQ1_PARTS], axis=1)
    return as_float(blocks["d"]) * _numbers(trits)


def decode_tq2_0(blocks: Records) -> Floats:
    """Two bits per element, 32 bytes have 128 elements: y = d (q - 1)."""
    return as_float(blocks["d"]) * _numbers(bit_fields(blocks["qs"].reshape(-1, 2, 32), 2).reshape(-1, 256))


def _trits(values: Floats) -> tuple[Floats, Bytes]:
    """d = max |x|, and x / d + 1 with halves rounded away from zero: 0, 1 or 2."""
    d: Floats = np.abs(values).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", over="ignore"):
        scaled = values * np.where(d == 0, np.float32(0), np.float32(1) / d)
    whole = np.floor(np.abs(scaled))
    rounded = np.sign(scaled) * (whole + np.floor(2 * (np.abs(scaled) - whole)))
    return d[:, 0], (rounded + np.float32(1)).astype(np.uint8)


def encode_tq1_0(values: Floats) -> Records:
    """A byte is its digits' number in base 3, times 256 / 243, rounded up."""
    d, trits = _trits(values)
    made: list[npt.NDArray[np.uint8]] = []
    at = 0
    for first, last, count in TQ1_PARTS:
        digits = trits[:, at : at + count * (last - first)].reshape(len(trits), count, -1).astype(np.uint16)
        numbers = (digits * np.uint16(3) ** np.arange(4, 4 - count, -1, dtype=np.uint16)[:, None]).sum(axis=1)
        made.append(((numbers * 256 + 242) // 243).astype(np.uint8))
        at += count * (last - first)
    return records(TQ1_0, qs=np.concatenate(made[:2], axis=1), qh=made[2], d=d)


def encode_tq2_0(values: Floats) -> Records:
    """d = max |x|; q = x / d + 1, halves rounded away from zero."""
    d, trits = _trits(values)
    pairs = trits.reshape(-1, 2, 4, 32) << np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return records(TQ2_0, qs=np.bitwise_or.reduce(pairs, axis=2).reshape(-1, 64), d=d)
