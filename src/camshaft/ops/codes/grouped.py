"""affine_matmul_grouped: y[t, s] = x[t] W[experts[t, s]]^T, one matrix of a stack of affine weights per (token, slot).

A composite op, which gathers and reads only the codes of the chosen experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype, f32, i32, u32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.codes import samples
from camshaft.ops.codes.weights import AFFINE, Form, affine_form, weights_of
from camshaft.ops.experts.grouped import check, grouped
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec

NAME = "affine_matmul_grouped"


def _form(specs: Sequence[TensorSpec], attrs: ops.Attrs) -> Form:
    """Returns the form of a stack's codes, scales and biases [n_experts, n, ..], seen as one matrix with all rows."""
    for spec in specs:
        fits = spec.is_plain and len(spec.shape) == 3 and not any(isinstance(d, Extent) for d in spec.shape)
        ops.expect(fits, NAME, spec, "codes, scales and biases [n_experts, n, ..]")
    heads = {spec.bounds[:2] for spec in specs}
    ops.expect(len(heads) == 1, NAME, tuple(specs), "as many experts and rows of codes, scales and biases")
    flat = [TensorSpec((prod(s.bounds[:2]), s.bounds[2]), as_dtype(s.dtype)) for s in specs]
    return affine_form(NAME, flat, attrs)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 5, NAME, specs, "x, codes, scales, biases and experts")
    x, codes, *_, experts = specs
    form = _form(specs[1:4], attrs)
    whole = not any(isinstance(d, Extent) for d in (*x.shape, *experts.shape))
    ops.expect(whole, NAME, (x, experts), "x and experts without an Extent")
    return (check(NAME, (x, TensorSpec((*codes.shape[:2], form.columns), f32), experts), (f32,)),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, codes, scales, biases, experts = inputs
    parts = codes, scales, biases
    form = _form([TensorSpec(a.shape, samples.dtype_of(a)) for a in parts], attrs)
    flat = [a.reshape(form.n, -1) for a in parts]
    return (grouped(x, weights_of(flat, form).reshape(*codes.shape[:2], form.columns), experts),)


def _decompose(f: Any, x: Any, codes: Any, scales: Any, biases: Any, experts: Any, **attrs: Any) -> Any:
    (n_experts, n, _), (tokens, slots) = codes.shape, experts.shape
    inside = f.logical_and(f.greater_equal(experts, 0), f.less(experts, n_experts))
    chosen = f.where(inside, experts, 0).reshape((tokens * slots,))
    parts = (f.gather(a, chosen).reshape((tokens * slots * n, a.shape[2])) for a in (codes, scales, biases))
    weights = f.affine_dequantize(*parts, **attrs).reshape((tokens, slots, n, x.shape[-1]))
    rows = x.reshape((tokens, x.shape[1] if len(x.shape) == 3 else 1, 1, x.shape[-1]))
    y = f.matmul(rows, weights, transpose_b=True).reshape((tokens, slots, n))
    return f.where(inside.reshape((tokens, slots, 1)), y, 0.0)


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(36)
    stack = [a.reshape(4, 5, -1) for a in samples.affine(rng, 4, 32, 20, 64)]
    experts = np.array([[0, 3], [2, -1], [1, 4]], np.int32)
    x = rng.normal(size=(3, 64)).astype(np.float32)
    yield ops.Sample("3 tokens, 2 slots", (x, *stack, experts), {"bits": 4, "group_size": 32})


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, codes, scales = TensorSpec((3, 64), f32), TensorSpec((4, 5, 8), u32), TensorSpec((4, 5, 1), f32)
    experts = TensorSpec((3, 2), i32)
    yield ops.ErrorSample((x, codes, scales), {}, "wanted x, codes")
    yield ops.ErrorSample((x, codes, scales, TensorSpec((4, 1), f32), experts), {}, r"\[n_experts, n, ..\]")
    yield ops.ErrorSample((x, codes, scales, TensorSpec((3, 5, 1), f32), experts), {}, "as many experts")
    yield ops.ErrorSample((x, codes, scales, scales, TensorSpec((3, 2), f32)), {}, "wanted experts of i32")


OP = ops.Op(
    name=NAME,
    formula="y[t, s, r] = sum_c x[t, (s,) c] affine_dequantize(codes, scales, biases)[experts[t, s], r, c]",
    parameters=Parameters("x codes scales biases experts", AFFINE),
    infer=_infer,
    reference=_reference,
    decompose=_decompose,
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-11},
)
