"""The gradient of grouped products by their x: y[t, s, k] = sum_n x[t, s, n] w[experts[t, s], n, k], x having a row per slot.

matmul_grouped_transposed takes plain stacks, quantized_matmul_grouped_transposed packed ones (transposed_kernels.py). An expert
out of range gives zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.experts import grouped
from camshaft.ops.experts.gradient import transposed_kernels as kernels
from camshaft.ops.experts.plain import FLOATS
from camshaft.ops.experts.samples import Case, sample
from camshaft.ops.parameters import Parameters
from camshaft.ops.quantized.packed.formats import PACKED_FORMATS
from camshaft.ops.quantized.packed.packing import packed_format
from camshaft.ops.spec import TensorSpec

PLAIN, PACKED = "matmul_grouped_transposed", "quantized_matmul_grouped_transposed"


def _check(name: str, specs: tuple[TensorSpec, ...]) -> TensorSpec:
    """The spec of y. ShapeError unless the specs are x, stack and experts."""
    ops.expect(len(specs) == 3, name, specs, "x [T, S, n], w [n_experts, n, k] and experts [T, S]")
    x, w, experts = specs
    fits = experts.is_plain and experts.dtype == i32 and len(experts.shape) == 2 and 0 not in experts.bounds
    ops.expect(fits and isinstance(experts.shape[1], int), name, experts, "experts of i32 [T, S], no axis empty")
    rows = (*(getattr(d, "name", d) for d in experts.shape), "n")
    fits = x.is_plain and x.dtype == f32 and len(x.shape) == 3 and x.shape[:2] == experts.shape
    ops.expect(fits and x.bounds[-1] > 0, name, x, f"x of f32 [{', '.join(map(str, rows))}]")
    fits = len(w.shape) == 3 and w.shape[1] == x.shape[2] and 0 not in w.bounds
    fits = fits and all(isinstance(d, int) for d in w.shape)
    ops.expect(fits, name, w, f"w [n_experts, {x.bounds[2]}, k]")
    return TensorSpec((*experts.shape, w.shape[2]), f32)


def _infer_plain(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    y = _check(PLAIN, specs)
    ops.expect(specs[1].is_plain and specs[1].dtype in FLOATS, PLAIN, specs[1], "w of f32, f16 or bf16")
    return (y,)


def _infer_packed(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    y = _check(PACKED, specs)
    ops.expect(isinstance(specs[1].dtype, BlockFormat), PACKED, specs[1], "w in a block format")
    packed_format(specs[1])
    return (y,)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    """Samples of packed stacks have the numbers in their attributes."""
    if "wanted" in attrs:
        return (attrs["wanted"](),)
    x, w, experts = inputs
    return (grouped.grouped(x, np.asarray(w).swapaxes(1, 2), experts),)


def _decompose(f: Any, x: Any, w: Any, experts: Any) -> Any:
    """The products with the matrices turned."""
    wide = f.cast(w, to="f32") if w.spec.is_plain else f.dequantize(w)
    return grouped.products(f, x, f.transpose(wide, axes=(0, 2, 1)), experts)


def _plain_samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(18)
    for dtype, tokens, slots, stack in (
        (FLOATS[0], 1, 2, (4, 33, 9)),
        (FLOATS[0], 25, 2, (3, 16, 65)),
        (FLOATS[1], 5, 3, (3, 35, 32)),
        (FLOATS[2], 5, 1, (3, 17, 40)),
    ):
        experts = np.array([rng.permutation(stack[0])[:slots] for _ in range(tokens)], np.int32)
        if tokens > 2:
            experts[1, 0], experts[2, -1] = -1, stack[0]
        x = rng.normal(size=(tokens, slots, stack[1])).astype(np.float32)
        w = rng.normal(size=stack).astype(dtype.numpy)
        made = ops.Sample(f"{dtype.name} {tokens}x{slots} of {stack}", (x, w, experts))
        yield made
        if tokens == 25:
            yield partly_active(made, 23, fixed=(1,))


def _packed_samples() -> Iterable[ops.Sample]:
    """For each format several tokens; then one token, a number of rows that is not whole tiles, and several passes of pairs."""
    for name in PACKED_FORMATS:
        yield sample(Case(name, 9, 7, 2, (3, 32, max(BLOCK_FORMATS[name].block_size, 64)), False, True, True))
    yield sample(Case("Q4_0", 1, 1, 2, (4, 16, 64), False, True, True))
    yield sample(Case("Q4_1", 9, 7, 2, (3, 33, 64), False, True, True))
    yield sample(Case("Q8_0", 40, 39, 2, (3, 48, 96), False, True, True))


def _plain_errors() -> Iterable[ops.ErrorSample]:
    x, w, experts = TensorSpec((2, 3, 16), f32), TensorSpec((4, 16, 64), f32), TensorSpec((2, 3), i32)
    yield ops.ErrorSample((x, w), {}, "wanted x")
    yield ops.ErrorSample((x, TensorSpec((4, 16, 64), i32), experts), {}, "wanted w of f32, f16 or bf16")
    yield ops.ErrorSample((TensorSpec((2, 16), f32), w, experts), {}, r"wanted x of f32 \[2, 3, n\]")
    yield ops.ErrorSample((x, TensorSpec((4, 64, 16), f32), experts), {}, r"wanted w \[n_experts, 16, k\]")
    yield ops.ErrorSample((x, w, TensorSpec((2, 3), f32)), {}, "wanted experts of i32")


def _packed_errors() -> Iterable[ops.ErrorSample]:
    x, w, experts = TensorSpec((2, 3, 16), f32), TensorSpec((4, 16, 64), BLOCK_FORMATS["Q4_0"]), TensorSpec((2, 3), i32)
    yield ops.ErrorSample((x, w), {}, "wanted x")
    yield ops.ErrorSample((x, TensorSpec((4, 16, 64), f32), experts), {}, "wanted w in a block format")
    yield ops.ErrorSample((TensorSpec((2, 16), f32), w, experts), {}, r"wanted x of f32 \[2, 3, n\]")


def _plain_vjp(f: Any, dy: Any, y: Any, x: Any, w: Any, experts: Any) -> Any:
    return (
        lambda: f.matmul_grouped(dy, w, experts),
        lambda: f.cast(f.matmul_grouped_weights(dy, x, experts, n_experts=w.shape[0]), to=w.dtype.name),
        None,
    )


_SHARED: dict[str, Any] = {
    "parameters": Parameters("x w experts"),
    "reference": _reference,
    "flops": grouped.flops,
    "nbytes": grouped.nbytes,
    "workload": grouped.workload,
    "decompose": _decompose,
}
OPS = {
    PLAIN: ops.Op(
        name=PLAIN,
        formula="y[t, s, k] = sum_n x[t, s, n] w[experts[t, s], n, k]",
        infer=_infer_plain,
        variants=kernels.PLAIN_VARIANTS,
        samples=_plain_samples,
        error_samples=_plain_errors,
        tolerance={"f32": 1e-12},
        vjp=_plain_vjp,
        **_SHARED,
    ),
    PACKED: ops.Op(
        name=PACKED,
        formula="y[t, s, k] = sum_n x[t, s, n] dequantize(w)[experts[t, s], n, k]",
        infer=_infer_packed,
        variants=kernels.PACKED_VARIANTS,
        samples=_packed_samples,
        error_samples=_packed_errors,
        tolerance={"f32": 1e-11},
        vjp=lambda f, dy, y, x, w, experts: (f.quantized_matmul_grouped(dy, w, experts), None, None),
        **_SHARED,
    ),
}
