"""Bits of floats: 16-bit operands that kernels only move, words of two bf16 for matrix units of CPUs, floats as integers.

A float loaded as f32 and rounded back loses the payload of a NaN, and on GPUs that flush them its subnormals.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from camshaft.dtypes import DType, bf16, f16, f32, u16, u32
from camshaft.lang import Tracer, Value, greater
from camshaft.ops import op as ops
from camshaft.ops.spec import TensorSpec

HALF, HIGH = 0x8000, 0xFFFF0000
GROWN = 1 + 2**-8.5

# The bits of a 16-bit NaN.
NAN_BITS = {f16: 0x7E00, bf16: 0x7FC0}


def is_short_float(spec: TensorSpec) -> bool:
    """Whether a tensor is of f16 or bf16."""
    return isinstance(spec.dtype, DType) and spec.dtype in NAN_BITS


def as_bits(operand: ops.Operand, spec: TensorSpec) -> ops.Operand:
    """The operand of this spec for a kernel that only moves elements: f16 and bf16 as u16."""
    return replace(operand, dtype=u16) if is_short_float(spec) else operand


def pair(k: Tracer, low: Value, high: Value) -> Value:
    """Returns words of low (first in memory) and high, each rounded to bf16: to nearest, ties away from 0."""
    first, second = (k.bitcast(x, u32) + HALF for x in (low, high))
    return (first >> 16) | (second & HIGH)


def cut_pair(k: Tracer, low: Value, high: Value) -> Value:
    """Returns words of low and high, each cut to bf16, in half the instructions of `pair`. Cutting takes 2^-8.5 of a number on
    average, so numbers times GROWN are about as exact as rounded ones."""
    return (k.bitcast(low, u32) >> 16) | (k.bitcast(high, u32) & HIGH)


def rest(k: Tracer, x: Value) -> Value:
    """Returns x less its bf16: with both as bf16, x has 16 bits of precision."""
    return x - k.bitcast((k.bitcast(x, u32) + HALF) & HIGH, f32)


def ordered(k: Tracer, value: Value, dtype: DType) -> Value:
    """Returns a float's integer in the order of floats, but of NaN; and from such an integer's bits the float's."""
    bits = k.bitcast(value, dtype)
    return bits ^ ((bits >> (dtype.bits - 1)) & int(np.iinfo(dtype.numpy).max))


# 2^r for |r| <= 1/2 by descending powers of r, with the smallest maximum relative error: 7.5e-5
_POWER = (0.05517166680946505, 0.24261113510078972, 0.6932609870127402, 0.9999280727910823)
_ROUNDER = 1.5 * 2.0**23  # added and taken away, it rounds to a whole number


def coarse_power(k: Tracer, x: Value) -> Value:
    """Returns 2^x for x up to 100 with a relative error of 7.5e-5, a twentieth of bf16's; at least 2^-126. NaN stays NaN."""
    x = greater(k, k.splat(-126.0, x.width), x)
    rounded = x + _ROUNDER
    r = x - (rounded - _ROUNDER)
    result = k.splat(_POWER[0], x.width)
    for coefficient in _POWER[1:]:
        result = k.fma(result, r, k.splat(coefficient, x.width))
    return k.bitcast(k.bitcast(result, u32) + (k.bitcast(rounded, u32) << 23), f32)
