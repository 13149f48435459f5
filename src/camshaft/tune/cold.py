"""Keep operands cold in benchmarks, so that large inputs are read from memory as a model's weights are.

Every use in a measured plan has its own copies of large inputs, so many that a run reads twice the size of the last-level cache.
Flushing caches between runs instead would also evict the interpreter's code and cost each run 100 microseconds.
"""

from __future__ import annotations

from math import ceil

from camshaft.ops.op import NodeSpec, Op
from camshaft.selection.host_info import capabilities

ASSUMED_CACHE_NBYTES = 32 << 20
CACHES_READ = 2
MAX_COPIES, MAX_COPIED_NBYTES = 1024, 512 << 20
# Inputs with a smaller share of all input bytes are activations, which are in a cache in a model's plan too.
SMALL = 1 / 8


def last_cache_nbytes() -> int:
    """Size of the largest cache in bytes, 32 MiB if unknown."""
    return max(size or 0 for size in capabilities().cache_nbytes.values()) or ASSUMED_CACHE_NBYTES


def large_inputs(node: NodeSpec) -> tuple[int, ...]:
    """The indices of the inputs to copy for each use."""
    total = sum(spec.nbytes for spec in node.inputs)
    return tuple(i for i, spec in enumerate(node.inputs) if spec.nbytes >= SMALL * total)


def n_copies(op: Op, node: NodeSpec) -> int:
    """The number of copies with which a run reads CACHES_READ times the last-level cache, within half a gigabyte."""
    copied = sum(node.inputs[i].nbytes for i in large_inputs(node))
    wanted = ceil(CACHES_READ * last_cache_nbytes() / max(op.nbytes(node), 1.0))
    return max(1, min(wanted, MAX_COPIES, MAX_COPIED_NBYTES // max(copied, 1)))
