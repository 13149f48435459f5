"""What gradients of recurrences share: chunks of tokens whose states are recomputed, and sums over programs."""

from __future__ import annotations

from math import prod

from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.spec import TensorSpec

# A forward sweep keeps the state before each chunk. The backward sweep computes those of a chunk once more, and holds them.
SCAN_STEPS, HEAD_STEPS = 16, 8
CPUS = frozenset({"simd", "c"})
_WIDTH, _VECTORS = 16, 4  # of the numbers that a program adds up
_SUMMED = _WIDTH * _VECTORS


@kernel
def sum_of_programs(k: Tracer, parts: Array, out: Array, *, n: int, count: int) -> None:
    # out[g, i] = sum_p parts[g count + p, i]
    group, starts = k.program(0), [k.program(1) * _SUMMED + i * _WIDTH for i in range(_VECTORS)]
    counts = [None if n % _SUMMED == 0 else k.maximum(n - start, 0) for start in starts]
    totals = [k.var(k.splat(0.0, _WIDTH)) for _ in starts]
    for p in k.range(count):
        for start, here, total in zip(starts, counts, totals, strict=True):
            total.set(total.value + k.load_vector(parts, group * count + p, start, width=_WIDTH, count=here))
    for start, here, total in zip(starts, counts, totals, strict=True):
        k.store_vector(out, total.value, group, start, count=here)


def summed(scratch: int, output: int, node: ops.NodeSpec, groups: int, count: int) -> ops.Launch:
    """The launch that adds up `count` parts of output number `output`, which are in a scratch."""
    n = prod(node.outputs[output].bounds) // groups
    arrays = ops.scratch(scratch, "read", shape=(groups * count, n)), ops.write(output, shape=(groups, n))
    return ops.Launch(sum_of_programs, arrays, (ops.Cells(groups), ops.Cells(n, _SUMMED)), {"n": n, "count": count})


def flat(spec: TensorSpec) -> tuple[int, ...]:
    """Numbers of tokens as they are, others as rows of their last axis."""
    bounds = spec.bounds
    return (prod(bounds),) if len(bounds) == 3 else (prod(bounds[:-1]), bounds[-1])
