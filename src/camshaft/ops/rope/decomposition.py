"""The rotation without kernels: its float64 reference, its decomposition into ops, and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype, f32
from camshaft.ops import op as ops
from camshaft.ops.rope.frame import Rotation


def rotated(rotation: Rotation, x: Any, positions: Any, table: Any, attrs: ops.Attrs) -> Any:
    """The reference, in float64: positions are [T, axes]."""
    out = x.astype(np.float64).reshape(len(x), attrs["heads"], attrs["head_dim"])
    axes, columns = rotation.sources()
    wide, half = table.astype(np.float64), table.shape[1] // 2
    rows = positions[:, axes]
    cos, sin = wide[rows, columns][:, None], wide[rows, half + columns][:, None]
    if attrs.get("inverse", False):
        sin = -sin
    first, second = rotation.columns()
    a, b = out[..., first].copy(), out[..., second].copy()
    out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
    return out.reshape(x.shape)


def _angles_of(f: Any, rotation: Rotation, positions: Any, table: Any) -> tuple[Any, Any]:
    """Cosines and sines [T, 1, pairs] as tensors."""
    n, half = rotation.n_pairs, table.shape[1] // 2
    rows = [f.gather(table, positions[:, axis]) for axis in range(rotation.n_axes)]
    if rotation.turns:
        axes, _ = rotation.sources()
        found = []
        for first in (0, half):
            value = rows[0][:, first : first + n]
            for axis in range(1, rotation.n_axes):
                value = f.where((axes == axis)[None], rows[axis][:, first : first + n], value)
            found.append(value)
    else:
        found = [
            _joined(
                f,
                [rows[axis][:, first + column : first + column + count] for _, count, column, axis in rotation.runs],
                1,
            )
            for first in (0, half)
        ]
    cos, sin = (value.reshape((positions.shape[0], 1, n)) for value in found)
    return cos, sin


def _joined(f: Any, tensors: list[Any], axis: int) -> Any:
    return tensors[0] if len(tensors) == 1 else f.concat(*tensors, axis=axis)


def rotated_back(op: str) -> Callable[..., Any]:
    """Returns the op's `vjp`: dy rotated by the negated angle. The table has the gradient of the decomposition."""

    def vjp(f: Any, dy: Any, y: Any, x: Any, positions: Any, table: Any, **attrs: Any) -> tuple[Any, ...]:
        turned = attrs | {"inverse": not attrs.get("inverse", False)}
        return getattr(f, op)(dy, positions, table, **turned), None, lambda: NotImplemented

    return vjp


def decomposed(f: Any, rotation: Rotation, x: Any, positions: Any, table: Any, attrs: ops.Attrs) -> Any:
    """The rotation by other ops; positions are [T, axes]. 16-bit floats are computed in f32."""
    tokens, heads, head_dim, dtype = x.shape[0], attrs["heads"], attrs["head_dim"], as_dtype(x.dtype)
    cos, sin = _angles_of(f, rotation, positions, table)
    if attrs.get("inverse", False):
        sin = -sin
    given = (x if dtype == f32 else f.cast(x, to="f32")).reshape((tokens, heads, head_dim))
    pieces = []
    for pair, count, column in rotation.parts:
        middle = 1 if rotation.interleaved else count
        step, end = (2, column + 2 * count) if rotation.interleaved else (1, column + count)
        a, b = given[:, :, column:end:step], given[:, :, column + middle : end + (0 if step == 2 else count) : step]
        c, s = cos[:, :, pair : pair + count], sin[:, :, pair : pair + count]
        turned = [a * c - b * s, a * s + b * c]
        if rotation.interleaved:
            joined = f.concat(*(t.reshape((tokens, heads, count, 1)) for t in turned), axis=3)
            turned = [joined.reshape((tokens, heads, 2 * count))]
        pieces += turned
    if 2 * rotation.n_pairs < head_dim:
        pieces.append(given[:, :, 2 * rotation.n_pairs :])
    made = _joined(f, pieces, 2).reshape(x.shape)
    return made if dtype == f32 else f.cast(made, to=dtype.name)
