"""Words of two bf16, as matrix units of CPUs take them, from vectors of f32."""

from __future__ import annotations

from camshaft.dtypes import f32, u32
from camshaft.lang import Tracer, Value

HALF, HIGH = 0x8000, 0xFFFF0000


def pair(k: Tracer, low: Value, high: Value) -> Value:
    """Returns words of low (first in memory) and high, each rounded to bf16: to nearest, ties away from 0."""
    first, second = (k.bitcast(x, u32) + HALF for x in (low, high))
    return (first >> 16) | (second & HIGH)


def rest(k: Tracer, x: Value) -> Value:
    """Returns x less its bf16: with both as bf16, x has 16 bits of precision."""
    return x - k.bitcast((k.bitcast(x, u32) + HALF) & HIGH, f32)
