"""Patches of a tile as rows; their positions: embeddings for a grid of any size, tables of rotations, places in windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.models.vision.config import VisionConfig
from camshaft.models.vision.images import Pixels
from camshaft.ops.rope.table import rope_table

CHANNELS = 3

Array = np.ndarray[Any, Any]
# How the pairs of a head rotate by row and column: attributes of rope_multi.
ROPES: dict[str, dict[str, Any]] = {
    "vision": {"layout": "vision"},
    "by_turns": {"layout": "contiguous", "pairing": "interleaved"},
}


def position_rows(table: Array, rows: int, columns: int, config: VisionConfig) -> Array:
    """The rows f32 [rows * columns, dim] of a table [grid * grid, dim] for patches from left to right and top to bottom, between
    its own rows where the grid has another size."""
    if (rows, columns) == (config.grid, config.grid):
        return table
    grid = table.reshape(config.grid, config.grid, -1)
    weights = _triangles if config.row.positions == "resized" else _weights
    down, across = (weights(n, config.grid) for n in (rows, columns))
    made = np.einsum("rg,ghd->rhd", down, grid)
    made = np.einsum("ch,rhd->rcd", across, made)
    return np.ascontiguousarray(made, np.float32).reshape(rows * columns, -1)


def axis_rows(table: Array, rows: int, columns: int) -> Array:
    """The embeddings f32 [rows * columns, dim] of patches: the sum of a column's and a row's, of a table [2, places, dim]."""
    made = table[0, None, :columns] + table[1, :rows, None]
    return np.ascontiguousarray(made, np.float32).reshape(rows * columns, -1)


def _weights(n: int, size: int) -> Array:
    """The weights f32 [n, size] of linear interpolation whose ends are those of the table."""
    at = np.linspace(0, size - 1, n, dtype=np.float32)
    low = np.floor(at).astype(int)
    high, share = np.minimum(low + 1, size - 1), at - low
    weights = np.zeros((n, size), np.float32)
    np.add.at(weights, (np.arange(n), low), 1 - share)
    np.add.at(weights, (np.arange(n), high), share)
    return weights


def _triangles(n: int, size: int) -> Array:
    """The weights f32 [n, size] of linear resizing of pixels: of each result the centre's distances, over wide ones if it
    shrinks."""
    scale = size / n
    wide = max(scale, 1.0)
    centres = (np.arange(n) + 0.5) * scale
    weights = np.maximum(0, 1 - np.abs(np.arange(size) + 0.5 - centres[:, None]) / wide)
    made: Array = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return made


def rotations(config: VisionConfig) -> Array:
    """The table of rotations, for as many rows or columns as an image may have."""
    theta = config.row.theta
    if config.row.rope in ("vision", "halves"):
        return rope_table(config.most_side, config.head_dim // 2, theta)
    # Rows have every other frequency of a whole head, columns the rest.
    table, n = rope_table(config.most_side, config.head_dim, theta), config.head_dim // 2
    order = np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)])
    return np.ascontiguousarray(table[:, np.concatenate([order, n + order])])


def axes_of(rows: int, columns: int) -> Array:
    """The row and the column of each patch, i32 [rows * columns, 2]."""
    made: Array = np.indices((rows, columns), np.int32).reshape(2, -1)
    return np.ascontiguousarray(made.T)


def windows_of(rows: int, columns: int, side: int) -> tuple[Array, Array, Array]:
    """Windows of `side` by `side` patches: of each patch its window and its place there, of each window its patches."""
    y, x = axes_of(rows, columns).T
    window = (y // side) * -(-columns // side) + x // side
    order = np.argsort(window, kind="stable")
    lengths = np.bincount(window)
    places = np.empty_like(window)
    places[order] = np.arange(len(window)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return window, places, lengths


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
