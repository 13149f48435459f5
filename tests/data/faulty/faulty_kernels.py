"""Kernels from outside of camshaft that claim to be the cheapest, and each of which is wrong in its own way."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import camshaft
from camshaft.ops.op import HostCall, KernelVariant, NodeSpec

Array = np.ndarray[Any, Any]
Body = Callable[[Sequence[Array], Array], None]


def _silu(x: Array, out: Array) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        out[...] = x / (1 + np.exp(-x.astype(np.float64)))


def wrong_in_last_ragged_element(inputs: Sequence[Array], out: Array) -> None:
    _silu(inputs[0], out)
    if out.size % 16:
        out.reshape(-1)[-1] += 1


def writes_past_its_output(inputs: Sequence[Array], out: Array) -> None:
    _silu(inputs[0], out)
    ctypes.memset(out.ctypes.data + out.nbytes, 0, 4)


def hangs(inputs: Sequence[Array], out: Array) -> None:
    while True:
        time.sleep(0.1)


def crashes(inputs: Sequence[Array], out: Array) -> None:
    ctypes.string_at(0)


def allocates_far_too_much(inputs: Sequence[Array], out: Array) -> None:
    _silu(inputs[0], out)
    out += np.zeros(1 << 43, np.uint8)[0]


def right_but_slow(inputs: Sequence[Array], out: Array) -> None:
    _silu(inputs[0], out)


def wrong_unless_k_is_n(inputs: Sequence[Array], out: Array) -> None:
    a, b = inputs
    out[...] = a.astype(np.float64) @ b
    if b.shape[0] != b.shape[1]:
        out[..., -1] = a[..., : min(b.shape)] @ b[: min(b.shape), 0]


# op, kernel, nanoseconds that it claims to take
FAULTS: tuple[tuple[str, Body, float], ...] = (
    ("silu", wrong_in_last_ragged_element, 1e-6),
    ("silu", writes_past_its_output, 2e-6),
    ("silu", hangs, 3e-6),
    ("silu", crashes, 4e-6),
    ("silu", allocates_far_too_much, 5e-6),
    ("silu", right_but_slow, 1e12),
    ("matmul", wrong_unless_k_is_n, 1e-6),
)


def _variant(body: Body, nanoseconds: float) -> KernelVariant:
    def build(node: NodeSpec, target: object) -> HostCall:
        return HostCall(lambda node, inputs, outputs: body(inputs, outputs[0]))

    def supports(node: NodeSpec, target: object) -> str | None:
        f32_only = all(spec.is_plain and spec.dtype.name == "f32" for spec in node.inputs)
        return None if f32_only and not any(node.attrs.values()) else "wants f32 and no attributes"

    return KernelVariant(body.__name__, frozenset({"simd"}), build, supports, lambda node, target: nanoseconds)


for _op, _body, _nanoseconds in FAULTS:
    camshaft.register_variant(_op, _variant(_body, _nanoseconds), __name__)
