"""Check positions, slots and block tables of calls on arrays, as plans check theirs: kernels of a paged cache cannot raise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from camshaft import ops
from camshaft.dtypes import i32
from camshaft.eager.numpy_forms import attribute_key, attributes_of
from camshaft.errors import ShapeError
from camshaft.extent import Extent
from camshaft.ops.arguments import operand
from camshaft.ops.op import NodeSpec, Op
from camshaft.ops.parameters import PLACES
from camshaft.ops.spec import TensorSpec, bound


def has_places(op: Op) -> bool:
    """Whether the op reads or writes a paged cache."""
    return PLACES in op.parameters.tensors


def check_places(op: Op, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    """Raises ShapeError for an index out of bounds. What the op's shape rule refuses is left to it."""
    names = op.parameters.tensors.split()
    first = names.index("positions")
    arrays = [np.asarray(operand(x, op.name)) for x in inputs]
    if len(arrays) < first + 3 or not all(a.ndim for a in arrays[: first + 2]) or arrays[first + 2].ndim != 2:
        return
    shapes = tuple(a.shape for a in arrays[: first + 3])
    for index, limit in _limits(op.name, shapes, attribute_key(attributes_of(op.name, attrs, 0))):
        value = arrays[index]
        if value.dtype == i32.numpy and value.size and limit > 0 and not 0 <= value.min() <= value.max() < limit:
            came = f"{names[index]} from {value.min()} to {value.max()}"
            raise ShapeError(f"{op.name}: got {came}; wanted 0 to {limit - 1}")


@lru_cache(256)
def _limits(name: str, shapes: tuple[tuple[int, ...], ...], attrs: Any) -> tuple[tuple[int, int], ...]:
    """Returns (index of an input, its limit); 0 or less where the op refuses the attributes."""
    op = ops.get(name)
    node = NodeSpec(tuple(TensorSpec(s, i32) for s in shapes), (), {key: value for key, _, value in attrs})
    found = [(index, limit(node)) for index, limit in op.indexes.items()]
    return tuple((index, bound(n) if isinstance(n, int | Extent) else 0) for index, n in found)
