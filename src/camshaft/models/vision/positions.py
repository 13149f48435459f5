"""The embeddings of patches' positions, for a grid of any size."""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.models.vision.config import VisionConfig

Array = np.ndarray[Any, Any]


def position_rows(table: Array, rows: int, columns: int, config: VisionConfig) -> Array:
    """The rows f32 [rows * columns, dim] of a table [grid * grid, dim] for patches from left to right and top to bottom."""
    if (rows, columns) == (config.grid, config.grid):
        return table
    raise AssertionError((rows, columns))
