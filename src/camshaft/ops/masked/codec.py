"""Codec: how the kernels of attention with options read keys and values of a cache; Plain: numbers, Q8_0 and Q4_0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from camshaft.dtypes import f32, i8, u8
from camshaft.lang import Array, Tracer, Value
from camshaft.ops.attention.kv_cache_quantize import GROUP, NIBBLE_ZERO


class Codec(Protocol):
    """How a kernel reads keys and values of block `block` and kv head `head`. `start` and `finish` change a program's query and
    result of one head, in scratch."""

    def start(self, k: Tracer, query: Array) -> None: ...
    def key(self, k: Tracer, at: tuple[Value, Value], d: Value, j: Value) -> Value: ...
    def value(self, k: Tracer, at: tuple[Value, Value], j: Value, d: Value) -> Value: ...


@dataclass(frozen=True)
class Plain:
    """A cache of f16, bf16 or f32, or of Q8_0 or Q4_0 with scales."""

    keys: Array
    values: Array
    key_scales: Array | None = None
    value_scales: Array | None = None

    def start(self, k: Tracer, query: Array) -> None:
        """Queries stay as they are."""

    def key(self, k: Tracer, at: tuple[Value, Value], d: Value, j: Value) -> Value:
        """Loads component d of keys j, with lanes over j."""
        if self.key_scales is None:
            return self.keys[*at, d, j]
        return _decoded(self.keys[*at, _stored(self.keys, d), j], self.keys, d) * self.key_scales[*at, d // GROUP, j]

    def value(self, k: Tracer, at: tuple[Value, Value], j: Value, d: Value) -> Value:
        """Loads columns d of key j's value, with lanes over d."""
        if self.value_scales is None:
            return self.values[*at, j, d]
        code = k.gather(self.values, *at, j, _stored(self.values, d))
        return _decoded(code, self.values, d) * k.gather(self.value_scales, *at, d // GROUP, j)


def _stored(codes: Array, d: Value) -> Value:
    """Returns the index of an element's code."""
    return d // GROUP * (GROUP // 2) + d % (GROUP // 2) if codes.dtype == u8 else d


def _decoded(code: Value, codes: Array, d: Value) -> Value:
    """Converts a code to f32, without its scale."""
    if codes.dtype == i8:
        return code.to(f32)
    shift = (d // (GROUP // 2) % 2 * 4).to(code.dtype)
    return ((code >> shift) & 15).to(f32) - float(NIBBLE_ZERO)
