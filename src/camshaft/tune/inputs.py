"""What measured kernels read: noise of a node's specs, and indexes as its op says. Bottom of tune/."""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.ops.op import NodeSpec, Op
from camshaft.ops.spec import Part, TensorSpec
from camshaft.plan.runtime.workers import aligned_bytes

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Array = np.ndarray[Any, Any]


def inputs_for(op: Op, node: NodeSpec) -> tuple[Array, ...]:
    """An array per input, elements for plain tensors and bytes for others: the op's workload, else indexes that count up to
    their limit, else noise."""
    given = op.workload(node)
    return tuple(given[i] if i in given else _input(op, node, i) for i in range(len(node.inputs)))


def memory_of(array: Array, spec: TensorSpec) -> Bytes:
    """The array in memory that a plan takes: bytes, 64-byte aligned."""
    memory = aligned_bytes(max(spec.nbytes, 1), 64)
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    memory[: len(raw)] = raw
    return memory


def _input(op: Op, node: NodeSpec, index: int) -> Array:
    spec = node.inputs[index]
    if index in op.indexes:
        count = np.arange(int(np.prod(spec.bounds)), dtype=spec.parts[0].dtype.numpy)
        return (count % max(op.indexes[index](node), 1)).reshape(spec.bounds)
    if spec.is_plain:
        return _noise(spec.parts[0], index)
    whole = np.zeros(spec.nbytes, np.uint8)
    for part in spec.parts:
        raw = _noise(part, index).reshape(-1).view(np.uint8)
        whole[part.offset_nbytes : part.offset_nbytes + part.nbytes] = raw
    return whole


def _noise(part: Part, seed: int) -> Array:
    """Floats that are neither great nor denormal; small whole numbers, and any bytes for codes."""
    rng = np.random.default_rng(seed)
    if part.dtype.numpy.kind in "iub":
        high = min(np.iinfo(part.dtype.numpy).max, 1 << 31) if part.name == "codes" else 64
        return rng.integers(0, high, part.shape).astype(part.dtype.numpy)
    return (0.1 + 0.9 * rng.random(part.shape, np.float32)).astype(part.dtype.numpy)
