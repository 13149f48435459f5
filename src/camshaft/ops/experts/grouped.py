"""quantized_matmul_grouped: y[t, s] = x[t] W[experts[t, s]]^T, one matrix of a stack per (token, slot), in GGUF block formats.

x [T, k] has a row per token, or [T, S, k] one per slot. An expert out of range gives zeros, so that -1 marks a slot that is not
used. Formats are those of quantized_matmul; another layout of weights is another set of variants.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import DType, f32, i32
from camshaft.extent import Extent
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat
from camshaft.ops import op as ops
from camshaft.ops.experts import avx2_kernels, quantized_variants
from camshaft.ops.experts.order import n_pairs
from camshaft.ops.parameters import Parameters
from camshaft.ops.quantize import quantize_activations as q8
from camshaft.ops.quantized.matmul import quantized_input
from camshaft.ops.quantized.packed.packing import packed_format
from camshaft.ops.quantized.products.kernels import is_q8
from camshaft.ops.rule import Rule, Stage
from camshaft.ops.spec import TensorSpec

NAME = "quantized_matmul_grouped"


def check(name: str, specs: tuple[TensorSpec, ...], dtypes: tuple[DType, ...]) -> TensorSpec:
    """Returns the spec of y in f32. ShapeError unless the specs are x, stack and experts, x of one of `dtypes`."""
    ops.expect(len(specs) == 3, name, specs, "x [T, k] or [T, S, k], w [n_experts, n, k] and experts [T, S]")
    x, w, experts = specs
    fits = experts.is_plain and experts.dtype == i32 and len(experts.shape) == 2 and 0 not in experts.bounds
    fits = fits and isinstance(experts.shape[1], int)
    ops.expect(fits, name, experts, "experts of i32 [T, S], no axis empty")
    rows = ((experts.shape[0],), experts.shape)
    fits = len(x.shape) in (2, 3) and x.shape[:-1] in rows and x.dtype in dtypes and x.bounds[-1] > 0
    fits = fits and not isinstance(x.shape[-1], Extent)
    texts = " or ".join(f"[{', '.join(map(str, (*(getattr(d, 'name', d) for d in r), 'k')))}]" for r in rows)
    ops.expect(fits, name, x, f"x of {' or '.join(d.name for d in dtypes)} {texts}")
    fits = len(w.shape) == 3 and w.shape[2] == x.shape[-1] and 0 not in w.bounds
    fits = fits and not any(isinstance(d, Extent) for d in w.shape)
    ops.expect(fits, name, w, f"w [n_experts, n, {x.shape[-1]}]")
    return TensorSpec((*experts.shape, w.shape[1]), f32)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    y = check(NAME, specs, (f32,))
    x, w, _ = specs
    ops.expect(isinstance(w.dtype, BlockFormat), NAME, w, "w in a block format")
    form = packed_format(w)
    if is_q8(x):
        wanted = q8.LAYOUTS[form.sums]
        ops.expect(x.layout is wanted, NAME, x, f"{wanted.name} for {w.dtype.name}")
    return (y,)


def grouped(x: ops.Array, w: ops.Array, experts: ops.Array) -> ops.Array:
    """Returns y in float64; zeros for experts out of range."""
    y = np.zeros((*experts.shape, w.shape[1]))
    for t, s in np.ndindex(*experts.shape):
        if 0 <= experts[t, s] < len(w):
            y[t, s] = w[experts[t, s]].astype(np.float64) @ (x[t] if x.ndim == 2 else x[t, s]).astype(np.float64)
    return y


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    """Samples have the numbers in their attributes, so that packing is validated too."""
    return (attrs["wanted"](),) if "wanted" in attrs else (grouped(*inputs),)


def products(f: Any, x: Any, w: Any, experts: Any) -> Any:
    """The products of each slot, with the matrices of its experts gathered; zeros for experts out of range."""
    tokens, n_slots = experts.shape
    made = []
    for s in range(n_slots):
        expert = experts[:, s]
        inside = f.logical_and(f.greater_equal(expert, 0), f.less(expert, w.shape[0]))
        matrices = f.gather(w, f.where(inside, expert, 0))
        row = (x if len(x.shape) == 2 else x[:, s]).reshape((tokens, 1, x.shape[-1]))
        y = f.sum(f.cast(row, to="f32") * f.cast(matrices, to="f32"), axes=-1).reshape((tokens, 1, w.shape[1]))
        made.append(f.where(inside.reshape((tokens, 1, 1)), y, 0.0))
    return f.concat(*made, axis=1) if n_slots > 1 else made[0]


def _decompose(f: Any, x: Any, w: Any, experts: Any) -> Any:
    return products(f, x if x.spec.is_plain else f.dequantize(x), f.dequantize(w), experts)


def _vjp(f: Any, dy: Any, y: Any, x: Any, w: Any, experts: Any) -> Any:
    """dx = dy W of each pair, summed over a token's slots where x has a row per token."""
    if not x.spec.is_plain:
        return NotImplemented
    made = f.quantized_matmul_grouped_transposed(dy, w, experts)
    return (f.sum(made, axes=1) if len(x.shape) == 2 else made), None, None


def _samples() -> Iterable[ops.Sample]:
    from camshaft.ops.experts.samples import quantized_samples  # only validation needs them

    return quantized_samples()


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, w = TensorSpec((2, 64), f32), TensorSpec((4, 16, 64), BLOCK_FORMATS["Q4_0"])
    experts = TensorSpec((2, 3), i32)
    yield ops.ErrorSample((x, w), {}, "wanted x")
    yield ops.ErrorSample((x, w, TensorSpec((2, 3), f32)), {}, "wanted experts of i32")
    yield ops.ErrorSample((TensorSpec((3, 64), f32), w, experts), {}, r"wanted x of f32 \[2, k\] or \[2, 3, k\]")
    yield ops.ErrorSample((x, TensorSpec((4, 16, 32), w.dtype), experts), {}, r"wanted w \[n_experts, n, 64\]")
    yield ops.ErrorSample((x, TensorSpec((4, 16, 64), f32), experts), {}, "wanted w in a block format")
    yield ops.ErrorSample((TensorSpec((2, 64), f32, q8.LAYOUTS[16, 8]), w, experts), {}, "sums of 32 by -8")


def flops(node: ops.NodeSpec) -> float:
    """Returns two operations per weight and pair."""
    return 2.0 * n_pairs(node) * float(np.prod(node.inputs[1].bounds[1:]))


def nbytes(node: ops.NodeSpec) -> float:
    """Returns the bytes read and written: of the stack only the experts that are chosen, at most one per pair."""
    x, w, experts = node.inputs
    return float(x.nbytes + experts.nbytes + node.outputs[0].nbytes) + w.nbytes * min(1.0, n_pairs(node) / w.bounds[0])


def workload(node: ops.NodeSpec) -> dict[int, ops.Array]:
    """Returns experts that differ within a token, all about equally often."""
    n_experts, (tokens, n_slots) = node.inputs[1].bounds[0], node.inputs[2].bounds
    first = np.random.default_rng(0).permuted(np.tile(np.arange(n_experts), (tokens, 1)), axis=1)
    return {2: np.resize(first, (tokens, max(n_slots, n_experts)))[:, :n_slots].astype(np.int32)}


OP = ops.Op(
    name=NAME,
    formula="y[t, s, n] = sum_k x[t, (s,) k] dequantize(w)[experts[t, s], n, k]",
    parameters=Parameters("x w experts"),
    infer=_infer,
    reference=_reference,
    variants=(*quantized_variants.VARIANTS, *avx2_kernels.VARIANTS),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-11},
    flops=flops,
    nbytes=nbytes,
    workload=workload,
    decompose=_decompose,
    vjp=_vjp,
    rules=(Rule(Stage.QUANTIZE, (NAME,), quantized_input),),
)
