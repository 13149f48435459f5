"""Cold operands: a measured kernel finds its large inputs in memory, as it finds weights in a model's plan.

Every use in a measured plan has copies of its large inputs to itself, so many that one run reads twice what the last cache holds:
what a use reads was evicted since the run before. Emptying the caches between runs instead would evict the interpreter's code,
too, and cost each run a hundred microseconds.
"""

from __future__ import annotations

from math import ceil

from camshaft.ops.op import NodeSpec, Op
from camshaft.selection.host_info import capabilities

ASSUMED_CACHE_NBYTES = 32 << 20
CACHES_READ = 2
MOST_COPIES, MOST_COPIED_NBYTES = 1024, 512 << 20
# Inputs with less than this share of all inputs' bytes are activations, which lie in a cache in a model's plan as well.
SMALL = 1 / 8


def last_cache_nbytes() -> int:
    """Bytes of the largest cache, 32 MiB where the operating system does not tell."""
    return max(size or 0 for size in capabilities().cache_nbytes.values()) or ASSUMED_CACHE_NBYTES


def large_inputs(node: NodeSpec) -> tuple[int, ...]:
    """The inputs that uses have copies of."""
    total = sum(spec.nbytes for spec in node.inputs)
    return tuple(i for i, spec in enumerate(node.inputs) if spec.nbytes >= SMALL * total)


def n_copies(op: Op, node: NodeSpec) -> int:
    """How many copies make a run read CACHES_READ times the last cache; fewer where they would take half a gigabyte."""
    copied = sum(node.inputs[i].nbytes for i in large_inputs(node))
    wanted = ceil(CACHES_READ * last_cache_nbytes() / max(op.nbytes(node), 1.0))
    return max(1, min(wanted, MOST_COPIES, MOST_COPIED_NBYTES // max(copied, 1)))
