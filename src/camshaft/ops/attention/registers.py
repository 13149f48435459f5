"""What the vector variants of attention know of vectors: how many a register tile may hold, and where a head's columns lie."""

from __future__ import annotations

from math import e, log2

from camshaft.ops import op as ops
from camshaft.ops.kernels.target import has_threads

WIDTH = 16  # elements of an explicit vector: a block of keys
LOG2_E = log2(e)
LOWEST = -3.0e38  # below every score: where a peak begins


def register_vectors(target: ops.Target) -> int:
    """Accumulators of 16 f32 that fit: 24 of 32 registers with AVX-512, 6 pairs of AVX2's 16, 6 fours of NEON's 32.

    On a GPU a vector is one register of each of 16 threads.
    """
    return 24 if {"avx512f", "avx512vl"} <= target.features or has_threads(target) else 6


def padded(head_dim: int) -> int:
    """Columns of a head in scratch: whole vectors."""
    return -(-head_dim // WIDTH) * WIDTH


def columns_of(head_dim: int) -> range:
    """Where the vectors of a head start; the last may reach past its end."""
    return range(0, head_dim, WIDTH)


def inside(head_dim: int, column: int) -> int | None:
    """How many elements of the vector at a column are the head's: None for all of them, which needs no mask."""
    return None if column + WIDTH <= head_dim else head_dim - column


def even_steps(head_dim: int, most: int) -> list[list[int]]:
    """The columns in as few runs of at most `most` vectors as can be, of nearly the same length."""
    starts = list(columns_of(head_dim))
    n = -(-len(starts) // max(1, most))
    step = -(-len(starts) // n)
    return [starts[i : i + step] for i in range(0, len(starts), step)]
