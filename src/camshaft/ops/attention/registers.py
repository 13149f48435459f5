"""What the vector variants of attention know of a machine: how many vectors of 16 a register tile may hold."""

from __future__ import annotations

from math import e, log2

from camshaft.ops import op as ops
from camshaft.ops.workgroup import has_threads

WIDTH = 16  # elements of an explicit vector: a block of keys
LOG2_E = log2(e)


def register_vectors(target: ops.Target) -> int:
    """Accumulators of 16 f32 that fit: 24 of 32 registers with AVX-512, 6 pairs of AVX2's 16, 6 fours of NEON's 32.

    On a GPU a vector is one register of each of 16 threads.
    """
    return 24 if {"avx512f", "avx512vl"} <= target.features or has_threads(target) else 6
