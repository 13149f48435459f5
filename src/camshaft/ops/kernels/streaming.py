"""Nontemporal stores and prefetches for results that are larger than a CPU's caches.

An ordinary store first reads the line that it overwrites, so a result costs its bytes twice; and memory is idle while a row in
the L1 cache is computed. 1024 x 4096 f32 on one thread of Zen 4, in microseconds (plain, nontemporal, and with prefetch):
rms_norm 1815, 1583, 1306; layer_norm 2348, 1810, 1570; softmax 1871, 2300, 1578. On two threads: 1544, 1140, 1038; 1709, 1240,
1137; 1246, 1504, 1174. For 8 MB in all, nontemporal stores cost a quarter, because the caches hold what is written.
"""

from __future__ import annotations

from camshaft.lang import Array, Tracer, ir
from camshaft.ops import op as ops

# Inputs and outputs together: three quarters of the last-level cache of the machine above.
LEAST_NBYTES = 24 << 20
# f32 of a row that a program keeps on its stack until it is complete.
MAX_ROW = 16384
# f32 of a cache line, and columns that one iteration over a row covers at most.
_LINE, _STEP = 16, 64


def pays(node: ops.NodeSpec, target: ops.Target) -> bool:
    """Whether to use nontemporal stores for the node's results. Not for an Extent: the active size may be small."""
    specs = (*node.inputs, *node.outputs)
    known = all(isinstance(d, int) for spec in specs for d in spec.shape)
    return target.backend == "simd" and known and sum(spec.nbytes for spec in specs) >= LEAST_NBYTES


def prefetch_next_row(k: Tracer, x: Array, row: ir.Value, column: ir.Value) -> None:
    """Prefetches x[row + 1] at these columns."""
    for i in range(0, _STEP, _LINE):
        k.prefetch(x, row + 1, column + i)
