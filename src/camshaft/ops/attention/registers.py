"""Vectors in attention's kernels: how many accumulators fit a register tile, and how a head's columns split into vectors."""

from __future__ import annotations

from math import e, log2

from camshaft.ops import op as ops
from camshaft.ops.kernels.target import has_threads

WIDTH = 16  # elements of an explicit vector: a block of keys
LOG2_E = log2(e)
LOWEST = -3.0e38  # below every score: the initial maximum


def register_vectors(target: ops.Target) -> int:
    """Returns how many accumulators of 16 f32 fit: with AVX-512 24 (of 32 registers), with AVX2 6 of two registers each (of
    16), with NEON 6 of four registers each (of 32).

    On a GPU a vector is one register in each of 16 threads.
    """
    return 24 if {"avx512f", "avx512vl"} <= target.features or has_threads(target) else 6


def padded(head_dim: int) -> int:
    """Rounds a head's columns up to whole vectors, for scratch."""
    return -(-head_dim // WIDTH) * WIDTH


def columns_of(head_dim: int) -> range:
    """Returns the first column of each vector of a head. The last vector may pass the head's end."""
    return range(0, head_dim, WIDTH)


def inside(head_dim: int, column: int) -> int | None:
    """Returns how many elements of the vector at `column` are in the head; None for all (no mask)."""
    return None if column + WIDTH <= head_dim else head_dim - column


def even_steps(head_dim: int, most: int) -> list[list[int]]:
    """Splits the vectors' columns into the fewest runs of at most `most`, of nearly equal length."""
    starts = list(columns_of(head_dim))
    n = -(-len(starts) // max(1, most))
    step = -(-len(starts) // n)
    return [starts[i : i + step] for i in range(0, len(starts), step)]
