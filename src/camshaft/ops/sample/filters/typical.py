"""The kernel of typical_p (Meister et al., 2022): token i stays if those with a smaller |ln p + H| have at most the mass `share`.

H is the entropy of p = softmax(logits). Sums are of integers, 2^-28 of the likeliest token's weight, so that lanes change
nothing.
"""

from __future__ import annotations

from camshaft.dtypes import i32, u32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.sample.kept import LOWEST, bisect, fixed_point, list_blocks, mass, row_of
from camshaft.ops.spec import TensorSpec

BLOCK, MOST_BLOCKS = 32, 4096
_SHIFT_BITS = 31


@kernel
def typical_row(k: Tracer, logits: Array, p: Array, weights: Array, out: Array, *, n: int, block: int) -> None:
    # y[c] = mass(c' with |ln p[c'] + H| < |ln p[c] + H|) <= share ? x[c] : the lowest number
    this, top, nan = row_of(k, logits, n, block)
    row = this.row
    filters = k.select((nan == 0) & (p[row] < 1), k.const(1, i32), 0)  # a NaN in p keeps every token, as 1 does
    with k.when(filters == 0):
        for c in k.lanes(n):
            out[row, c] = logits[row, c]
    with k.when(filters == 1):
        list_blocks(this, k.const(n, i32), top)

        def exponent(c: Value) -> Value:
            x = this.value(c)
            return k.select(x == top, 0.0, k.maximum(x - top, -1000.0))

        for c in this.columns():
            weights[row, c] = fixed_point(k, k.exp(exponent(c)))
        k.barrier()
        total = mass(this, lambda c: weights[row, c])
        spread = mass(this, lambda c: fixed_point(k, k.exp(exponent(c)) * -exponent(c)))
        mean = spread / total  # -ln p - H = (ln Z - e) - (ln Z - mean of e): Z cancels

        def shift(c: Value) -> Value:
            return k.bitcast(k.abs(-exponent(c) - mean), u32)

        def enough_left(trial: Value) -> Value:
            return mass(this, lambda c: k.select(shift(c) < trial, weights[row, c], 0)) <= total * p[row]

        limit = bisect(k, _SHIFT_BITS, enough_left)
        for c in k.lanes(n):
            out[row, c] = LOWEST
        k.barrier()
        for c in this.columns():
            with k.when(shift(c) <= limit):
                out[row, c] = logits[row, c]


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    logits = node.inputs[0]
    n, block = logits.bounds[1], BLOCK
    while -(-n // block) > MOST_BLOCKS:
        block *= 2
    arrays = ops.read(0), ops.read(1), ops.scratch(0, "update"), ops.write(0)
    launch = ops.Launch(typical_row, arrays, (ops.Cells(logits.shape[0]),), {"n": n, "block": block})
    return ops.Build((launch,), (TensorSpec(logits.shape, u32),))


VARIANT = ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, _build)
