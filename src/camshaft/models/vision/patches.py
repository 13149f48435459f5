"""The encoder's input from one tile: patches as rows, their positions, and which patches become one token."""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.models.vision.config import VisionConfig
from camshaft.models.vision.images import Pixels

Array = np.ndarray[Any, Any]
CHANNELS = 3


def patch_rows(pixels: Pixels, config: VisionConfig) -> Array:
    """The patches of u8 [height, width, 3] from left to right and top to bottom, f32 [patches, 3 * patch * patch]: normalized,
    in the order channel, row, column of the weights."""
    rows, columns = grid_of(pixels, config)
    size = config.patch
    x = (pixels.astype(np.float32) * np.float32(1 / 255) - np.array(config.mean, np.float32)) / np.array(
        config.std, np.float32
    )
    x = 2 * x - 1 if config.row.signed else x
    x = x.reshape(rows, size, columns, size, CHANNELS).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(x).reshape(rows * columns, CHANNELS * size * size)


def grid_of(pixels: Pixels, config: VisionConfig) -> tuple[int, int]:
    """The rows and columns of patches of a tile."""
    return pixels.shape[0] // config.patch, pixels.shape[1] // config.patch


def merged(rows: int, columns: int, merge: int) -> Array:
    """The patches of each token, i32 [merge * merge, tokens]: from left to right and top to bottom, tokens and their patches.
    `rows` and `columns` are multiples of `merge`."""
    index = np.arange(rows * columns, dtype=np.int32).reshape(rows // merge, merge, columns // merge, merge)
    return np.ascontiguousarray(index.transpose(1, 3, 0, 2)).reshape(merge * merge, -1)
