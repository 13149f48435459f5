"""The columns of a state that a program computes, and how states of slots lie in memory: columns in blocks, rows side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

WIDTH = 16  # columns of a vector
# Vectors of a program where these divide the columns: as many sums hide a multiply-add's latency.
VECTORS = 4


def state_blocks(columns: int) -> tuple[int, int]:
    """How many blocks the columns of a state are in, and how many columns a block has.

    Rows of 64 columns that are 512 bytes apart use half of the L1 cache's sets: with them side by side the delta rule of
    128 x 128 takes 0.84 of the time."""
    per = WIDTH * VECTORS
    return (columns // per, per) if columns % per == 0 else (1, columns)


def in_blocks(state: Any) -> Any:
    """A state [.., rows, columns] as [.., blocks, rows, columns of a block]."""
    *lead, n_rows, columns = state.shape
    return np.moveaxis(state.reshape(*lead, n_rows, *state_blocks(columns)), -2, -3)


def from_blocks(state: Any) -> Any:
    """The inverse of `in_blocks`."""
    *lead, blocks, n_rows, columns = state.shape
    return np.moveaxis(state, -3, -2).reshape(*lead, n_rows, blocks * columns)
