"""sample: draws a token per row of logits: temperature, then top_k, top_p, min_p, then a categorical draw, in one kernel.

temperature 0 (or NaN) takes the greatest logit, the first of equals. top_k 0 and top_p 1 are off. Of equal tokens at the end of
top_k and top_p those of smaller index stay. NaN and -inf count as the lowest finite number: never drawn unless all are. top_p
takes tokens lighter than 2^-28 of the likeliest for nothing. seed holds the low word, the high word and the step.
"""

from __future__ import annotations

import numpy as np

from camshaft.dtypes import DType, f32, i32, u32
from camshaft.ops import op as ops
from camshaft.ops.parameters import Parameters
from camshaft.ops.sample.kernel import MOST_TOKENS, one_row_per_program
from camshaft.ops.sample.reference import distribution, error_samples, reference, samples, times
from camshaft.ops.spec import TensorSpec

__all__ = ["OP", "distribution", "times"]

# Columns of a block; there are at most MOST_BLOCKS of them, for the scratch's sake. Of 32 to 256, 32 was the fastest with top_k
# (n = 49152, AVX-512; top_k 40, top_p 0.95, min_p 0.05: 19 microseconds, 24 with 64, 75 with 256), and no matter without.
BLOCK, MOST_BLOCKS = 32, 4096
_PARAMETERS: tuple[tuple[str, DType, tuple[int, ...]], ...] = (
    ("temperature", f32, ()),
    ("top_k", i32, ()),
    ("top_p", f32, ()),
    ("min_p", f32, ()),
    ("seed", u32, (3,)),
)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    wanted = "logits [R, n], temperature [R], top_k [R], top_p [R], min_p [R] and seed [R, 3]"
    ops.expect(len(specs) == 6, "sample", specs, wanted)
    x = specs[0]
    fits = x.is_plain and x.dtype == f32 and len(x.shape) == 2 and isinstance(x.shape[1], int)
    fits = fits and 0 < x.bounds[1] <= MOST_TOKENS
    ops.expect(fits, "sample", x, f"logits of f32 [R, n], n from 1 to {MOST_TOKENS}")
    for spec, (name, dtype, shape) in zip(specs[1:], _PARAMETERS, strict=True):
        right = TensorSpec((x.shape[0], *shape), dtype)
        ops.expect(spec == right, "sample", spec, f"{name} of {right}")
    return (TensorSpec(x.shape[:1], i32),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    logits = node.inputs[0]
    n, block = logits.bounds[1], BLOCK
    while -(-n // block) > MOST_BLOCKS:
        block *= 2
    arrays = (*(ops.read(i) for i in range(6)), ops.scratch(0, "update"), ops.write(0))
    launch = ops.Launch(one_row_per_program, arrays, (ops.Cells(logits.shape[0]),), {"n": n, "block": block})
    return ops.Build((launch,), (TensorSpec(logits.shape, u32),))


OP = ops.Op(
    name="sample",
    formula="y ~ softmax(logits / temperature) over what top_k, top_p and min_p keep",
    parameters=Parameters("logits temperature top_k top_p min_p seed"),
    infer=_infer,
    reference=reference,
    variants=(ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, _build),),
    samples=samples,
    error_samples=error_samples,
    tolerance={},
    flops=lambda node: 60.0 * np.prod(node.inputs[0].bounds),
)
