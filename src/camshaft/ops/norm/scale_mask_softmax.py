"""scale_mask_softmax: y = softmax(scale x + mask) over the last axis, for a mask that is added or says which elements count.

The mask broadcasts to x along all axes but the last. A boolean one is True where an element counts. A row of which no element
counts, or all of which is -inf, gives zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite, prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, boolean, f16, f32, f64, i64
from camshaft.extent import Extent
from camshaft.lang import Array, Constant, Tracer, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import FLOATS, TO_TOLERANCE, expect_tensor
from camshaft.ops.kernels.strides import split_index, strides_of
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import Dim, TensorSpec

_LOWEST = {"f32": float(np.finfo(np.float32).min), "f64": float(np.finfo(np.float64).min)}


@kernel
def one_row_per_program(
    k: Tracer, x: Array, mask: Array, out: Array, *,
    dim: int, sizes: tuple[int, ...], strides: tuple[int, ...], scale: float,
) -> None:  # fmt: skip
    # p[r, c] = exp(scale x[r, c] + mask[r', c] - m[r]); y[r, c] = p[r, c] / sum_c p[r, c]; r' = r where the mask has all rows
    index = [k.program(0), *split_index(k.program(1), sizes)]
    row, dtype = k.program(0) * prod(sizes) + k.program(1), ir.arithmetic_dtype(x.dtype)
    at = sum((i * s for i, s in zip(index, strides, strict=True) if s), k.number(0, i64))

    def score(c: ir.Value) -> ir.Value:
        if mask.dtype == boolean:
            return k.select(mask[at, c], x[row, c] * scale, k.number(_LOWEST[dtype.name], dtype))
        return k.fma(x[row, c], k.number(scale, dtype), mask[at, c])

    def power(c: ir.Value) -> ir.Value:
        found = k.exp(score(c) - top)
        return k.select(mask[at, c], found, k.number(0.0, dtype)) if mask.dtype == boolean else found

    greatest, total = k.accumulator("max", dtype), k.accumulator("sum", dtype)
    for c in k.lanes(dim):  # may skip a NaN, as softmax does: the sum has it
        value, before = score(c), greatest.value
        greatest.set(k.select(value > before, value, before))
    top = k.maximum(k.lanes_max(greatest), k.number(_LOWEST[dtype.name], dtype))
    rounds = out.dtype != dtype  # 16-bit powers are computed twice, so that they are rounded once
    for c in k.lanes(dim):
        found = power(c)
        if not rounds:
            out[row, c] = found
        total += found
    weight = k.lanes_sum(total)
    factor = 1.0 / k.select(weight == 0.0, k.number(1.0, dtype), weight)
    for c in k.lanes(dim):  # a lane reads what it wrote itself: no barrier
        out[row, c] = (power(c) if rounds else out[row, c]) * factor


def _rows(x: TensorSpec) -> tuple[Dim, ...]:
    """The axes before the last one; one of size 1 where there is none."""
    return x.shape[:-1] or (1,)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    name = "scale_mask_softmax"
    ops.expect(len(specs) == 2, name, specs, "x [.., d] and mask")
    x, mask = specs
    expect_tensor(name, x, FLOATS)
    ops.expect(not isinstance(x.shape[-1], Extent), name, x, "an Extent as the first axis only, and not as the last")
    dtypes = {x.dtype.name: x.dtype, "f32": f32, "bool": boolean}
    fits = mask.is_plain and mask.dtype in dtypes.values() and not (x.dtype == f64 and mask.dtype == f32)
    ops.expect(fits, name, mask, f"mask of {' or '.join(dtypes)}")
    given = (1,) * (len(x.shape) - len(mask.shape)) + mask.shape
    fits = mask.shape[-1:] == x.shape[-1:] and len(given) == len(x.shape)
    fits = fits and all(m in (1, d) for m, d in zip(given, x.shape, strict=True))
    ops.expect(fits, name, mask, f"mask that broadcasts to {x}, with its last axis")
    scale = attrs.get("scale", 1.0)
    number = isinstance(scale, (int, float)) and not isinstance(scale, bool) and isfinite(scale)
    ops.expect(number, name, f"scale {scale!r}", "scale, a finite number")
    return (x,)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, mask = (a if a.dtype == bool else a.astype(np.float64) for a in inputs)
    scaled = x * attrs.get("scale", 1.0)
    with np.errstate(all="ignore"):
        scores = np.where(mask, scaled, -np.inf) if mask.dtype == bool else scaled + mask
        powers = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), _LOWEST["f64"]))
        total = powers.sum(-1, keepdims=True)
        return (powers / np.where(total == 0, 1, total),)


def _decompose(f: Any, x: Any, mask: Any, scale: float = 1.0) -> Any:
    dtype = as_dtype(x.dtype)
    wide = f64 if dtype == f64 else f32
    x, mask = (t if t.dtype in (wide, boolean) else f.cast(t, to=wide.name) for t in (x, mask))
    scores = f.where(mask, x * scale, -np.inf) if mask.dtype == boolean else x * scale + mask
    powers = f.exp(scores - f.maximum(f.max(scores, axes=-1, keepdims=True), _LOWEST[wide.name]))
    total = f.sum(powers, axes=-1, keepdims=True)
    y = powers / f.where(f.equal(total, 0), 1, total)
    return y if dtype == wide else f.cast(y, to=dtype.name)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, mask = node.inputs
    rows, dim = _rows(x), x.bounds[-1]
    inner, flat = prod(x.bounds[1:-1]), (prod(x.bounds[:-1]), dim)
    arrays = (ops.read(0, shape=flat), ops.read(1, shape=(prod(mask.bounds[:-1]), dim)), ops.write(0, shape=flat))
    constants: dict[str, Constant] = {
        "dim": dim,
        "sizes": x.bounds[1:-1] or (1,),
        "strides": (*strides_of(TensorSpec(mask.shape[:-1], f32), rows), *(() if len(rows) > 1 else (0,))),
        "scale": float(node.attrs.get("scale", 1.0)),
    }
    grid = (ops.Cells(rows[0]), ops.Cells(inner))
    return ops.Build((ops.Launch(one_row_per_program, arrays, grid, constants, sizes=("dim",)),))


def _sample(name: str, shape: tuple[int, ...], masked: tuple[int, ...], dtype: DType, kind: DType) -> ops.Sample:
    """Scores of which a third is masked, and the whole first row of the mask."""
    rng = np.random.default_rng(len(name))
    hidden = rng.random(masked) < 1 / 3
    hidden.reshape(-1, masked[-1])[0] = len(shape) > 1
    mask = ~hidden if kind == boolean else np.where(hidden, -np.inf, rng.normal(size=masked)).astype(kind.numpy)
    return ops.Sample(name, ((4 * rng.normal(size=shape)).astype(dtype.numpy), mask), {"scale": 0.25})


def _samples() -> Iterable[ops.Sample]:
    yield _sample("every row, added", (2, 3, 17), (2, 3, 17), f32, f32)
    yield _sample("a mask of all heads", (4, 5, 33), (5, 33), f32, boolean)
    yield _sample("a mask per batch", (2, 3, 5, 16), (2, 1, 5, 16), f32, f32)
    yield _sample("one row", (37,), (37,), f32, boolean)
    yield _sample("long", (2, 1001), (1, 1001), f32, f32)
    yield _sample("f64", (3, 35), (3, 35), f64, f64)
    yield _sample("f16, added f32", (3, 35), (3, 35), f16, f32)
    yield _sample("bf16", (3, 35), (3, 35), bf16, bf16)
    full, tokens = _sample("7 of 16", (16, 2, 33), (16, 1, 33), f32, boolean), Extent("tokens", 16)
    specs = TensorSpec((tokens, 2, 33), f32), TensorSpec((tokens, 1, 33), boolean)
    yield ops.Sample(full.name, full.inputs, full.attrs, specs, {tokens: 7})


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 3, 8), f32)
    yield ops.ErrorSample((x,), {}, "wanted x")
    yield ops.ErrorSample((x, TensorSpec((2, 8), f32)), {}, "wanted mask that broadcasts")
    yield ops.ErrorSample((x, TensorSpec((2, 3, 1), f32)), {}, "with its last axis")
    yield ops.ErrorSample((x, TensorSpec((1, 2, 3, 8), f32)), {}, "wanted mask that broadcasts")
    yield ops.ErrorSample((x, TensorSpec((3, 8), f64)), {}, "wanted mask of f32 or bool")
    yield ops.ErrorSample((x, x), {"scale": float("inf")}, "wanted scale, a finite number")


OP = ops.Op(
    name="scale_mask_softmax",
    formula="y = softmax(scale x + mask); a boolean mask is True where an element counts",
    parameters=Parameters("x mask", (Attribute("scale", "float", 1.0),)),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={**TO_TOLERANCE, "f64": 1e-28},
    flops=lambda node: 7.0 * prod(node.inputs[0].bounds),
    decompose=_decompose,
)
