"""Quantizes rows with an importance per column: errors of important columns weigh more, as in llama.cpp's quantizers."""

from __future__ import annotations

import numpy as np

from camshaft.errors import FormatError
from camshaft.formats.bits import Bytes, Floats
from camshaft.formats.blocks import BlockFormat

# The weight of an error by the column's importance q: q sqrt(s + x^2), where s is a factor times the mean of x^2 over
# the row or the block; or q alone. Formats that are not listed ignore the importance, as in llama.cpp.
_ROW, _BLOCK, _ALONE = "row", "block", "alone"
WEIGHTED = {
    "Q4_0": (_ROW, 1),
    "Q4_1": (_ROW, 1),
    "Q5_0": (_ROW, 1),
    "Q5_1": (_ROW, 1),
    "Q2_K": (_BLOCK, 1),
    "Q3_K": (_BLOCK, 2),
    "Q4_K": (_BLOCK, 2),
    "Q5_K": (_BLOCK, 2),
    "Q6_K": (_ALONE, 0),
    "IQ4_NL": (_BLOCK, 2),
    "IQ4_XS": (_BLOCK, 2),
}
_STEP_ELEMENTS = 1 << 17  # keeps a chunk's temporaries in the cache


def uses_importance(row: BlockFormat) -> bool:
    """Whether a format's encoder weighs errors."""
    return row.name in WEIGHTED


def quantize_rows(row: BlockFormat, values: Floats, importance: Floats | None) -> Bytes:
    """float32 [rows, k] to uint8 [rows, bytes per row], with an importance of 0 or more for each column, float32 [k].

    FormatError as `BlockFormat.quantize`, and for an importance of another length."""
    columns = values.shape[-1]
    if importance is None or not uses_importance(row):
        return row.quantize(values.reshape(-1, row.block_size)).reshape(len(values), -1)
    if importance.shape != (columns,):
        raise FormatError(f"an importance of shape {list(importance.shape)}; wanted [{columns}], one for each column")
    step = max(1, _STEP_ELEMENTS // columns)
    made = np.empty((len(values), row.row_nbytes(columns)), np.uint8)
    for first in range(0, len(values), step):
        made[first : first + step] = _encoded(row, values[first : first + step], importance)
    return made


def _encoded(row: BlockFormat, values: Floats, importance: Floats) -> Bytes:
    weights = _weights(row, values, importance)
    return row.quantize(values.reshape(-1, row.block_size), weights).reshape(len(values), -1)


def _weights(row: BlockFormat, values: Floats, importance: Floats) -> Floats:
    """The weights of errors, float32 [blocks, block_size]."""
    of, factor = WEIGHTED[row.name]
    blocks = values.reshape(-1, row.block_size)
    each = np.broadcast_to(importance, values.shape).reshape(blocks.shape)
    if of == _ALONE:
        return each
    whole = values if of == _ROW else blocks
    mean = (whole * whole).sum(axis=-1, keepdims=True) * np.float32(factor / whole.shape[-1])
    spread = np.repeat(mean, len(blocks) // len(mean), axis=0)
    made: Floats = each * np.sqrt(spread + blocks * blocks)
    return made
