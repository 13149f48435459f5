"""Shared by ops that change the logits of listed tokens: the kernel's loop over the list, and `infer` for logits and ids."""

from __future__ import annotations

from collections.abc import Callable

from camshaft.dtypes import i32, i64
from camshaft.lang import Array, Tracer, Value
from camshaft.ops import op as ops
from camshaft.ops.checks import expect_tensor
from camshaft.ops.spec import TensorSpec


def change_listed(
    k: Tracer, logits: Array, ids: Array, out: Array, *, columns: int, block: int, listed: tuple[int, int],
    change: Callable[[Value, Value, Value], Value],
) -> None:  # fmt: skip
    """Copies the program's block of logits, then sets each token of ids[row, listed[0]:listed[1]] in it to `change(j, its logit,
    the value so far)`, in order. Ids that are not tokens change nothing."""
    row, first = k.program(0), k.program(1) * block
    stop = k.minimum(first + block, columns)
    for c in k.lanes(first, stop):
        out[row, c] = logits[row, c]
    k.barrier()
    for j in k.range(*listed):
        token = ids[row, j].to(i64)
        with k.when((token >= first) & (token < stop)):  # -1 is in no block
            out[row, token] = change(j, logits[row, token], out[row, token])


def expect_listed(op: str, logits: TensorSpec, ids: TensorSpec) -> None:
    """ShapeError unless these are logits [R, n] of f32 and ids [R, m] of i32."""
    expect_tensor(op, logits)
    ops.expect(len(logits.shape) == 2, op, logits, "logits of f32 [R, n]")
    expect_tensor(op, ids, (i32,))
    fits = len(ids.shape) == 2 and ids.shape[0] == logits.shape[0]
    ops.expect(fits, op, ids, f"ids of i32 [R, m] with the rows of {logits}")
