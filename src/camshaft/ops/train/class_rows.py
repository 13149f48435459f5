"""Rows of logits, each with the class that is its target: what cross_entropy and its gradient share."""

from __future__ import annotations

from math import prod

import numpy as np

from camshaft.dtypes import DType, i32, i64
from camshaft.extent import Extent
from camshaft.lang import Kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import FLOATS, expect_tensor
from camshaft.ops.kernels.blocks import row_lanes
from camshaft.ops.parameters import Attribute
from camshaft.ops.spec import TensorSpec

IGNORED = -100  # torch's default of `ignore_index`
ATTRIBUTES = (Attribute("ignore_index", "int", IGNORED), Attribute("label_smoothing", "float", 0.0))


def expect_rows(op: str, logits: TensorSpec, target: TensorSpec) -> None:
    """ShapeError unless logits are floats [.., classes], their last size fixed, and targets integers [..]."""
    expect_tensor(op, logits, FLOATS)
    rows, last = logits.shape[:-1], logits.shape[-1]
    ops.expect(not isinstance(last, Extent), op, logits, "an Extent as the first axis only, not as the last")
    fits = target.is_plain and target.dtype in (i32, i64) and target.shape == rows
    ops.expect(fits, op, target, f"target of i32 or i64 {list(map(str, rows))}")


def expect_attributes(op: str, attrs: ops.Attrs) -> None:
    """ShapeError for a `label_smoothing` outside of 0 to 1, or an `ignore_index` that is not an integer."""
    smoothing, ignored = attrs.get("label_smoothing", 0.0), attrs.get("ignore_index", IGNORED)
    ops.expect(0 <= smoothing <= 1, op, f"label_smoothing {smoothing!r}", "label_smoothing from 0 to 1")
    ops.expect(type(ignored) is int, op, f"ignore_index {ignored!r}", "ignore_index, an integer")


def flat(logits: TensorSpec) -> tuple[int, int]:
    """Logits as rows and classes."""
    return prod(logits.bounds[:-1]), logits.bounds[-1]


def rows_launch(kernel: Kernel, arrays: tuple[ops.Operand, ...], node: ops.NodeSpec, target: ops.Target) -> ops.Launch:
    """A launch with a program per row; its constants are `dim`, `inner` (rows of one index of the first axis) and ATTRIBUTES."""
    logits, attrs = node.inputs[0], node.attrs
    dim, outer, inner = logits.bounds[-1], logits.shape[0] if len(logits.shape) > 1 else 1, prod(logits.bounds[1:-1])
    given = {
        "dim": dim,
        "inner": inner,
        "ignore_index": attrs.get("ignore_index", IGNORED),
        "label_smoothing": float(attrs.get("label_smoothing", 0.0)),
    }
    grid = ops.Cells(outer), ops.Cells(inner)
    return ops.Launch(kernel, arrays, grid, given, lanes=row_lanes(dim, target), sizes=("dim",))


def drawn(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, index: DType, attrs: ops.Attrs
) -> tuple[ops.Array, ops.Array]:
    """Logits, and targets of which every third is ignored."""
    target = rng.integers(0, shape[-1], shape[:-1])
    target.reshape(-1)[1::3] = attrs.get("ignore_index", IGNORED)
    return (3 * rng.normal(size=shape)).astype(dtype.numpy), target.astype(index.numpy)
