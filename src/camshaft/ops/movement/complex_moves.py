"""Ops that move elements, on complex numbers: as pairs of real and imaginary part, along one more axis that stays last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from camshaft.ops import op as ops

Moved = Callable[[int, ops.Attrs], ops.Attrs]


def _transposed(rank: int, attrs: ops.Attrs) -> ops.Attrs:
    axes = attrs.get("axes")
    axes = tuple(reversed(range(rank))) if axes is None else tuple(axes)
    return {**attrs, "axes": (*(_from_front(axis, rank) for axis in axes), rank)}


def _sliced(rank: int, attrs: ops.Attrs) -> ops.Attrs:
    rows = {"starts": (0,), "sizes": (None,), "steps": (1,)}
    return {
        name: (*value, *rows[name]) if name in rows and isinstance(value, tuple) else value
        for name, value in attrs.items()
    }


def _joined(rank: int, attrs: ops.Attrs) -> ops.Attrs:
    return {**attrs, "axis": _from_front(attrs.get("axis", 0), rank)}


def _from_front(axis: Any, rank: int) -> Any:
    """Counts an axis from the front; one that x lacks stays out of range."""
    if not isinstance(axis, int):
        return axis
    if -rank <= axis < rank:
        return axis % rank
    return axis + 1 if axis > 0 else axis - 1


def _same(rank: int, attrs: ops.Attrs) -> ops.Attrs:
    return attrs


# Op -> the number of inputs that are moved (None: all), and the attributes for pairs of inputs of a rank.
MOVES: dict[str, tuple[int | None, Moved]] = {
    "copy": (1, _same),
    "transpose": (1, _transposed),
    "slice": (1, _sliced),
    "concat": (None, _joined),
    "gather": (1, _same),
}


def moves_pairs(op: str, dtypes: Sequence[Any], complex_dtypes: Sequence[Any]) -> bool:
    """Whether an op of MOVES is called on complex numbers of one dtype, which it moves as pairs."""
    if not dtypes:
        return False
    moved = dtypes[: MOVES[op][0]]
    return moved[0] in complex_dtypes and all(dtype == moved[0] for dtype in moved)
