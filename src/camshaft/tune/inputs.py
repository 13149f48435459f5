"""Generate inputs for benchmarks: random data of a node's specs, and valid indexes."""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.ops.op import NodeSpec, Op
from camshaft.ops.spec import Part, TensorSpec
from camshaft.plan.memory.allocate import aligned_bytes

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Array = np.ndarray[Any, Any]


def inputs_for(op: Op, node: NodeSpec) -> tuple[Array, ...]:
    """An array per input, elements for plain tensors and bytes for others: the op's own workload, else indexes that cycle up to
    their limit, else random data."""
    given = op.workload(node)
    return tuple(given[i] if i in given else _input(op, node, i) for i in range(len(node.inputs)))


def memory_of(array: Array, spec: TensorSpec) -> Bytes:
    """Copy an array into plan memory: bytes, 64-byte aligned."""
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
    packed = np.zeros(spec.nbytes, np.uint8)
    for part in spec.parts:
        raw = _noise(part, index).reshape(-1).view(np.uint8)
        packed[part.offset_nbytes : part.offset_nbytes + part.nbytes] = raw
    return packed


def _noise(part: Part, seed: int) -> Array:
    """Random data: floats from 0.1 to 1, small integers, any bytes for quantization codes."""
    rng = np.random.default_rng(seed)
    if part.dtype.numpy.kind in "iub":
        high = min(np.iinfo(part.dtype.numpy).max, 1 << 31) if part.name == "codes" else 64
        return rng.integers(0, high, part.shape).astype(part.dtype.numpy)
    return (0.1 + 0.9 * rng.random(part.shape, np.float32)).astype(part.dtype.numpy)
