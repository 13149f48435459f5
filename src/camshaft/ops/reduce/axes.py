"""The axes over which an op reduces: read from its attribute `axes` and checked, and the shape that is left."""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.spec import Dim, TensorSpec


def axes_of(op: str, spec: TensorSpec, attrs: ops.Attrs) -> tuple[int, ...]:
    """The reduced axes, from 0. ShapeError for an axis that the tensor lacks or that is repeated."""
    asked, rank = attrs.get("axes"), len(spec.shape)
    if asked is None:
        return tuple(range(rank))
    given = (asked,) if isinstance(asked, int) else tuple(asked)
    if not all(isinstance(a, int) and -rank <= a < rank for a in given):
        ops.expect(False, op, f"axes {asked} of {spec}", f"axes from {-rank} to {rank - 1}")
    found = tuple(a % rank for a in given)
    if len(set(found)) < len(found):
        ops.expect(False, op, f"axes {asked} of {spec}", "each axis once")
    return found


def expect_kept_extent(op: str, x: TensorSpec, axes: Sequence[int]) -> None:
    """ShapeError for an empty axis, and for an Extent that is not the first axis or is among `axes`."""
    extents = [i for i, d in enumerate(x.shape) if isinstance(d, Extent)]
    fits = 0 not in x.bounds and (not extents or (extents == [0] and 0 not in axes))
    ops.expect(fits, op, x, "no empty axis, and an Extent only as a first axis that is kept")


def reduced(spec: TensorSpec, axes: Sequence[int], keepdims: bool) -> tuple[Dim, ...]:
    """The result's shape."""
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(spec.shape))
    return tuple(d for i, d in enumerate(spec.shape) if i not in axes)
