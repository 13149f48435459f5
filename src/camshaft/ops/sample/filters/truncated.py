"""The kernel of top_k_top_p: keeps what sample's top_k, top_p and min_p keep at temperature 1, from the parts of kept.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from camshaft.dtypes import u32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.sample.kept import LOWEST, fixed_point, keep_top_k, keep_top_p, list_blocks, row_of
from camshaft.ops.sample.sample import block_of
from camshaft.ops.spec import TensorSpec


@kernel
def likeliest_of_row(
    k: Tracer, logits: Array, top_k: Array, top_p: Array, min_p: Array, weights: Array, out: Array, *, n: int, block: int
) -> None:  # fmt: skip
    # y[c] = x[c] if top_k, then top_p, then min_p keep c, else the lowest number, as for -inf
    this, top, nan = row_of(k, logits, n, block)
    row = this.row
    with k.when(nan > 0):  # sample is to find it
        for c in k.lanes(n):
            out[row, c] = logits[row, c]
    with k.when(nan == 0):
        wanted = k.select((top_k[row] > 0) & (top_k[row] < n), top_k[row], n)
        list_blocks(this, wanted, top)
        best = keep_top_k(this, wanted)

        def weight(c: Value) -> Value:
            x = this.value(c)
            return k.exp(k.select(x == top, 0.0, x - top))

        heavy = keep_top_p(this, best, weight, weights, top_p[row])
        least = k.select(min_p[row] > 0, k.select(min_p[row] < 1, min_p[row], 1.0), 0.0)
        for c in k.lanes(n):
            out[row, c] = LOWEST
        k.barrier()
        for c in this.columns():
            w, x = weight(c), this.value(c)
            finite = (x > LOWEST) | (top <= LOWEST)
            with k.when(finite & best.holds(x, c) & heavy.holds(fixed_point(k, w), c) & (w >= least)):
                out[row, c] = logits[row, c]


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    logits = node.inputs[0]
    n = logits.bounds[1]
    arrays = (*(ops.read(i) for i in range(4)), ops.scratch(0, "update"), ops.write(0))
    launch = ops.Launch(likeliest_of_row, arrays, (ops.Cells(logits.shape[0]),), {"n": n, "block": block_of(n)})
    return ops.Build((launch,), (TensorSpec(logits.shape, u32),))


VARIANT = ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, _build)


def keeps(x: ops.Array, top_k: int, top_p: float, min_p: float) -> ops.Array:
    """Which tokens of a row stay, in float64: all if one is NaN; none of -inf, unless there are no others."""
    if np.isnan(x).any():
        return np.ones(len(x), bool)
    keep = np.asarray((x > LOWEST) | (x.max() <= LOWEST))
    z = np.where(x > LOWEST, x, LOWEST).astype(np.float64)
    order = np.lexsort((np.arange(len(z)), -z))
    with np.errstate(invalid="ignore"):
        weights = np.where(z == z.max(), 1.0, np.exp(z - z.max()))
    if 0 < top_k < len(z):
        keep[order[top_k:]] = False
    if top_p < 1:
        ordered = np.where(keep, weights, 0.0)[order]
        before = np.cumsum(ordered) - ordered
        keep[order[1:]] &= (before < float(top_p) * ordered.sum())[1:]
    return keep & ((weights >= min(float(min_p), 1.0)) | (not min_p > 0))


def decomposed(f: Any, logits: Any, top_k: Any, top_p: Any, min_p: Any, kept: Callable[[Any, Any, Any], Any]) -> Any:
    """The same from other ops, by comparing every two tokens; `kept(f, keep, logits)` writes the result."""
    rows, n = logits.shape
    column = [x.reshape((rows, 1)) for x in (top_k, top_p, min_p)]
    x = f.maximum(logits, np.float32(LOWEST))
    this, other = x.reshape((rows, n, 1)), x.reshape((rows, 1, n))
    ahead = f.logical_or(f.greater(other, this), f.logical_and(f.equal(other, this), np.tri(n, k=-1, dtype=bool)))
    rank = f.sum(f.cast(ahead, to="i32"), axes=-1)
    some = f.logical_and(f.greater(column[0], np.int32(0)), f.less(column[0], np.int32(n)))
    keep = f.less(rank, f.where(some, column[0], np.int32(n)))
    top = f.max(x, axes=-1, keepdims=True)
    every = f.where(f.equal(x, top), np.float32(1), f.exp(x - top))
    weights = f.where(keep, every, np.float32(0))
    before = f.sum(f.where(ahead, weights.reshape((rows, 1, n)), np.float32(0)), axes=-1)
    inside = f.less(before, column[1] * f.sum(weights, axes=-1, keepdims=True))
    inside = f.logical_or(
        f.logical_or(inside, f.equal(rank, np.int32(0))), f.logical_not(f.less(column[1], np.float32(1)))
    )
    finite = f.logical_or(f.greater(x, np.float32(LOWEST)), f.less_equal(top, np.float32(LOWEST)))
    likely = f.logical_or(
        f.greater_equal(every, f.minimum(column[2], np.float32(1))), f.logical_not(f.greater(column[2], np.float32(0)))
    )
    return kept(f, f.logical_and(f.logical_and(keep, inside), f.logical_and(finite, likely)), logits)
