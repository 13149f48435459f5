"""Index and reshape tensors: x[1:3, ..., None, -1] becomes one slice node and views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from operator import index
from typing import Any

from camshaft.errors import ArrayTypeError, ShapeError
from camshaft.extent import Extent
from camshaft.graph.tensor import Tensor, graph_of, use
from camshaft.ops.spec import Dim, bound


@dataclass(frozen=True)
class _Cut:
    """The part of an axis that an index selects, and whether the axis remains. Size None selects all of it."""

    start: int = 0
    size: int | None = None
    step: int = 1
    remains: bool = True


def indexed(x: Tensor, key: Any) -> Tensor:
    """Returns x[key] for ints, slices, `...` and None, like NumPy. Raises ShapeError for other or empty indexes."""
    keys = _expand(x, key if isinstance(key, tuple) else (key,))
    axes = iter(enumerate(x.shape))
    cuts: list[_Cut] = []
    shape: list[Dim] = []
    for item in keys:
        if item is None:
            shape.append(1)
            continue
        axis, dim = next(axes)
        cut = _cut(x, axis, dim, item)
        cuts.append(cut)
        if cut.remains:
            shape.append(dim if cut.size is None else cut.size)
    if any(cut.size is not None for cut in cuts):
        starts, sizes, steps = zip(*((cut.start, cut.size, cut.step) for cut in cuts), strict=True)
        x = use("slice", x, starts=starts, sizes=sizes, steps=steps)
    return x if tuple(shape) == x.shape else graph_of(x).reshape(x, shape)


def _expand(x: Tensor, keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the keys with a whole slice for each axis that they leave out."""
    for item in keys:
        if not (item is None or item is Ellipsis or isinstance(item, slice) or _is_index(item)):
            kind = "a list or array" if hasattr(item, "__len__") else f"{item!r}"
            raise ArrayTypeError(
                f"{x}: got {kind} as an index; wanted ints, slices, ... and None (gather takes rows by an array)"
            )
    dots = [i for i, item in enumerate(keys) if item is Ellipsis]
    missing = x.ndim - sum(item is not None and item is not Ellipsis for item in keys)
    if len(dots) > 1 or missing < 0:
        raise ShapeError(f"{x}: got {len(keys) - len(dots)} indexes and {len(dots)} '...'; wanted {x.ndim} and one")
    at = dots[0] if dots else len(keys)
    return (*keys[:at], *(slice(None),) * missing, *keys[at + 1 :])


def _is_index(item: object) -> bool:
    return not isinstance(item, (bool, Tensor)) and hasattr(item, "__index__") and not getattr(item, "shape", ())


def _cut(x: Tensor, axis: int, dim: Dim, item: Any) -> _Cut:
    if item == slice(None):
        return _Cut()
    if isinstance(dim, Extent):
        raise ShapeError(f"{x}: got {item!r} for axis {axis}, whose size is known in each run only; wanted all of it")
    if not isinstance(item, slice):
        place = index(item)
        if not -dim <= place < dim:
            raise ShapeError(f"{x}: index {place} is out of bounds for axis {axis} with size {dim}")
        return _Cut(place % dim, 1, 1, remains=False)
    taken = range(dim)[item]
    if not taken:
        raise ShapeError(f"{x}: {item} takes nothing of axis {axis}; wanted one element or more")
    return _Cut() if taken == range(dim) else _Cut(taken.start, len(taken), taken.step if len(taken) > 1 else 1)


def reshaped(x: Tensor, shape: Sequence[Any]) -> Tensor:
    """Returns x in another shape; one size may be -1. Raises ShapeError like Graph.reshape."""
    sizes = list(shape) if isinstance(shape, Sequence) else [shape]
    unknown = [i for i, size in enumerate(sizes) if isinstance(size, int) and size == -1]
    if len(unknown) == 1:
        known = -prod(bound(size) for size in sizes)
        elements = prod(x.spec.bounds)
        if known == 0 or elements % known:
            raise ShapeError(f"reshape: got {x} as {tuple(shape)}; wanted a plain tensor with as many elements")
        sizes[unknown[0]] = elements // known
    return graph_of(x).reshape(x, sizes)
