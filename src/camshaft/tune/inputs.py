"""Make inputs for benchmarks: random data of a node's specs, valid indexes, and copies that keep large operands cold.

Each use in a measured plan has its own copies of large inputs, enough that one run reads twice the size of the last-level cache,
since a model's weights come from memory too. Flushing caches between runs instead would also evict the interpreter's code and
cost each run 100 microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np

from camshaft.ops.op import NodeSpec, Op
from camshaft.ops.spec import Part, TensorSpec, bound
from camshaft.plan.memory.allocate import HUGE_PAGE, aligned_bytes, huge_pages
from camshaft.selection.host_info import hardware

ASSUMED_CACHE_NBYTES = 32 << 20
CACHES_READ = 2
MAX_COPIES, MAX_COPIED_NBYTES = 1024, 512 << 20
# Inputs with a smaller share of all input bytes are activations, which are in a cache in a model's plan too.
SMALL = 1 / 8

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Array = np.ndarray[Any, Any]


def inputs_for(op: Op, node: NodeSpec) -> tuple[Array, ...]:
    """An array per input, elements for plain tensors and bytes for others: the op's own workload, else indexes that cycle up to
    their limit, else random data."""
    given = op.workload(node)
    return tuple(given[i] if i in given else _input(op, node, i) for i in range(len(node.inputs)))


def memory_of(array: Array, spec: TensorSpec) -> Bytes:
    """Copy an array into plan memory: bytes, 64-byte aligned, large ones in huge pages, as weights are."""
    memory = huge_pages(spec.nbytes) if spec.nbytes >= HUGE_PAGE else aligned_bytes(max(spec.nbytes, 1), 64)
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    memory[: len(raw)] = raw
    return memory


def _input(op: Op, node: NodeSpec, index: int) -> Array:
    spec = node.inputs[index]
    if index in op.indexes:
        count = np.arange(int(np.prod(spec.bounds)), dtype=spec.parts[0].dtype.numpy)
        return (count % max(bound(op.indexes[index](node)), 1)).reshape(spec.bounds)
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


def input_sets(op: Op, node: NodeSpec, args: Sequence[Array], cold: bool) -> list[list[Bytes]]:
    """Sets of inputs in plan memory: one set, or as many as keep large inputs cold; the sets share small inputs."""
    first = [memory_of(array, spec) for array, spec in zip(args, node.inputs, strict=True)]
    copied = large_inputs(node)
    more = n_copies(op, node) - 1 if cold else 0
    return [
        first,
        *([memory_of(args[i], s) if i in copied else first[i] for i, s in enumerate(node.inputs)] for _ in range(more)),
    ]


def last_cache_nbytes() -> int:
    """Size of the largest cache in bytes, 32 MiB if unknown."""
    return max(size or 0 for size in hardware()[2]) or ASSUMED_CACHE_NBYTES


def large_inputs(node: NodeSpec) -> tuple[int, ...]:
    """The indices of the inputs to copy for each use."""
    total = sum(spec.nbytes for spec in node.inputs)
    return tuple(i for i, spec in enumerate(node.inputs) if spec.nbytes >= SMALL * total)


def n_copies(op: Op, node: NodeSpec) -> int:
    """The number of copies with which a run reads CACHES_READ times the last-level cache, within half a gigabyte."""
    copied = sum(node.inputs[i].nbytes for i in large_inputs(node))
    wanted = ceil(CACHES_READ * last_cache_nbytes() / max(op.nbytes(node), 1.0))
    return max(1, min(wanted, MAX_COPIES, MAX_COPIED_NBYTES // max(copied, 1)))
