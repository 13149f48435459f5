"""What argsort, sort and top_k mean: their attributes, results and reference.

Stable: equal elements stay in order, -0 equals 0. NaN is the greatest, as in NumPy and torch: last of an ascending order, first
of a descending one. Attributes: `axis` (-1 by default), `descending`; top_k has `k` and `largest` instead. `to`: the dtype of
indexes, i32 or i64 as NumPy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from camshaft.dtypes import DTYPES, DType, as_dtype, i32, i64
from camshaft.ops import op as ops
from camshaft.ops.checks import EVERY, same_dtype
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.scan.definition import axis_of, expect_attributes
from camshaft.ops.spec import Dim, TensorSpec

AXIS = Attribute("axis", "int", -1)
TO = Attribute("to", "str", "i32")
DESCENDING = Attribute("descending", "bool", False)
MOST = 1 << 30


@dataclass(frozen=True)
class Ordered:
    """`gives`: its results, of 'values' and 'places'. `selects`: whether it has `k` and `largest` instead of `descending`."""

    name: str
    text: str
    gives: tuple[str, ...]
    selects: bool = False

    @property
    def parameters(self) -> Parameters:
        """The attributes, by what it gives."""
        own = (Attribute("k", "int"), AXIS, Attribute("largest", "bool", True)) if self.selects else (AXIS, DESCENDING)
        return Parameters("x", (*own, TO) if "places" in self.gives else own, results=len(self.gives))

    def descending(self, attrs: ops.Attrs) -> bool:
        """Whether the greatest come first."""
        return bool(attrs.get("largest", True) if self.selects else attrs.get("descending", False))

    def count(self, attrs: ops.Attrs, dim: int) -> int:
        """Elements of a result's row."""
        return int(attrs["k"]) if self.selects else dim


def index_dtype(op: str, attrs: ops.Attrs) -> DType:
    """The dtype of indexes that `to` names. ShapeError for others than i32 and i64."""
    to = attrs.get("to", i32.name)
    ops.expect(to in (i32.name, i64.name), op, f"to {to!r}", "to i32 or i64")
    return DTYPES[to]


def infer(row: Ordered, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, row.name, specs, "one tensor x")
    expect_attributes(row.name, attrs, row.parameters)
    dtype, x = same_dtype(row.name, specs, EVERY), specs[0]
    axis = axis_of(row.name, x, attrs)
    dim = x.bounds[axis]
    ops.expect(dim <= MOST, row.name, x, f"at most {MOST} elements along axis {axis}")
    if row.selects:
        k = attrs.get("k")
        fits = isinstance(k, int) and not isinstance(k, bool) and 1 <= k <= dim
        ops.expect(fits, row.name, f"k {k!r} of {x}", f"k from 1 to {dim}, the size of axis {axis}")
    shape: tuple[Dim, ...] = (*x.shape[:axis], row.count(attrs, dim), *x.shape[axis + 1 :])
    made = {"values": dtype, "places": index_dtype(row.name, attrs) if "places" in row.gives else i32}
    return tuple(TensorSpec(shape, made[name]) for name in row.gives)


def order_of(x: ops.Array, axis: int, descending: bool) -> ops.Array:
    """The stable order along an axis, by NumPy; NaN first if descending."""
    if not descending:
        return np.argsort(x.astype(np.float64) if x.dtype.kind == "V" else x, axis, kind="stable")
    flipped = np.argsort(np.flip(x.astype(np.float64) if x.dtype.kind == "V" else x, axis), axis, kind="stable")
    found: ops.Array = x.shape[axis] - 1 - np.flip(flipped, axis)
    return found


def reference(row: Ordered, inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    (x,) = inputs
    axis = attrs.get("axis", -1) % x.ndim
    wide = x.astype(np.float64) if as_dtype(x.dtype).is_float else x
    order = np.take(order_of(wide, axis, row.descending(attrs)), range(row.count(attrs, x.shape[axis])), axis)
    made = {"values": np.take_along_axis(x, order, axis), "places": order.astype(DTYPES[attrs.get("to", "i32")].numpy)}
    return tuple(made[name] for name in row.gives)
