"""Random bits of (seed, step, index), in kernels and in NumPy, and exponential times from them."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from camshaft.dtypes import f32
from camshaft.lang import Tracer, Value

Word = TypeVar("Word", Value, np.ndarray[Any, Any])


def mix(x: Word) -> Word:
    """Hashes a 32-bit word bijectively (xorshift and multiply, constants of Wellons' Hash Prospector)."""
    x = x ^ (x >> 16)
    x = x * 0x21F0AAAD
    x = x ^ (x >> 15)
    x = x * 0x735A2D97
    y: Word = x ^ (x >> 15)
    return y


def keys(low: Word, high: Word, step: Word) -> tuple[Word, Word]:
    """Returns two 32-bit keys of (seed, step)."""
    return mix(mix(mix(low) ^ high) ^ step), mix(mix(mix(step ^ 0x9E3779B9) ^ low) ^ high)


def noise(index: Word, first: Word, second: Word) -> Word:
    """Returns 32 random bits for an index."""
    return mix(mix(index ^ first) + second)


def exponential(k: Tracer, bits: Value) -> Value:
    """-ln(1 - v) for v = (bits + 1/2) / 2^32, precise near 0: ln(u) v / (u - 1), u = 1 - v rounded (Goldberg's log1p)."""
    v = k.minimum((bits.to(f32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    u = 1.0 - v
    tiny = u == 1.0
    return k.select(tiny, v, k.log(u) * v / k.select(tiny, -1.0, u - 1.0))
