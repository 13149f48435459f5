"""Vectors in attention's kernels: how many accumulators fit a register tile, and how a head's columns split into vectors."""

from __future__ import annotations

from math import e, log2

from camshaft.ops import op as ops
from camshaft.ops.kernels.target import has_threads

WIDTH = 16  # elements of an explicit vector: a block of keys
LOG2_E = log2(e)
LOWEST = -3.0e38  # below every score: the initial maximum


def register_vectors(target: ops.Target) -> int:
    """Accumulators of 16 f32 that fit: 24 of 32 registers with AVX-512, 6 of two registers each of AVX2's 16, 6 of four each of
    NEON's 32.

    On a GPU a vector is one register of each of 16 threads.
    """
    return 24 if {"avx512f", "avx512vl"} <= target.features or has_threads(target) else 6


def padded(head_dim: int) -> int:
    """Columns of a head in scratch: whole vectors."""
    return -(-head_dim // WIDTH) * WIDTH


def columns_of(head_dim: int) -> range:
    """The first columns of a head's vectors; the last vector may reach past the head's end."""
    return range(0, head_dim, WIDTH)


def inside(head_dim: int, column: int) -> int | None:
    """The number of elements of the vector at a column that are in the head; None for all, which needs no mask."""
    return None if column + WIDTH <= head_dim else head_dim - column


def even_steps(head_dim: int, most: int) -> list[list[int]]:
    """The columns in the fewest runs of at most `most` vectors, of nearly equal length."""
    starts = list(columns_of(head_dim))
    n = -(-len(starts) // max(1, most))
    step = -(-len(starts) // n)
    return [starts[i : i + step] for i in range(0, len(starts), step)]
