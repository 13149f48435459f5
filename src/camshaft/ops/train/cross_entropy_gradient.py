"""cross_entropy_gradient: the gradient of the logits of cross_entropy, in one pass over each row that computes its softmax again.

dx[r, c] = dy[r] (softmax(x[r])[c] - t[r, c]) for the smoothed target t[r, c] = (1 - s) [c = target[r]] + s / classes; 0 in rows
whose target is ignored, NaN where it is not a class. A row of 49,152 f32 stays in a core's L2 cache between both reads, so the
logits come from memory once, and no probabilities are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, f16, f32, f64, i32, i64
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, Value, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec
from camshaft.ops.train.class_rows import ATTRIBUTES, IGNORED, drawn, expect_attributes, expect_rows, flat, rows_launch

NAME = "cross_entropy_gradient"
# Columns whose largest element is found before their powers are added up: 16 KiB of f32 stay in the L1 cache.
BLOCK = 4096


def peak_and_sum(k: Tracer, x: Array, row: Value, dim: ir.Operand) -> tuple[Value, Value]:
    """The largest element m of a row and sum(exp(x - m)), block by block with the sum rescaled where m grows; NaN for a NaN."""
    dtype = ir.arithmetic_dtype(x.dtype)
    top, total = k.var(x[row, 0], dtype), k.var(0.0, dtype)
    for start in k.range(0, dim, BLOCK):
        stop = k.minimum(start + BLOCK, dim)
        greatest, powers = k.accumulator("max", dtype), k.accumulator("sum", dtype)
        for c in k.lanes(start, stop):  # may skip a NaN: the sum has it
            value, before = x[row, c], greatest.value
            greatest.set(k.select(value > before, value, before))
        before, found = top.value, k.lanes_max(greatest)
        now = k.select(found > before, found, before)
        for c in k.lanes(start, stop):
            powers += k.exp(x[row, c] - now)
        total.set(k.fma(total.value, k.exp(before - now), k.lanes_sum(powers)))
        top.set(now)
    return top.value, total.value


@kernel
def one_row_per_program(
    k: Tracer,
    logits: Array,
    target: Array,
    dy: Array,
    out: Array,
    *,
    dim: int,
    inner: int,
    ignore_index: int,
    label_smoothing: float,
) -> None:
    # dx[r, c] = dy[r] (exp(x[r, c] - m) / sum_c exp(x[r, c] - m) - t[r, c]); 0 where target[r] is ignored
    row, dtype = k.program(0) * inner + k.program(1), ir.arithmetic_dtype(logits.dtype)
    zero = k.number(0.0, dtype)
    at = target[row].to(i64)
    inside = (at >= 0) & (at < dim)
    with k.when(at == ignore_index):
        for c in k.lanes(dim):
            out[row, c] = zero
    with k.when(at != ignore_index):
        top, total = peak_and_sum(k, logits, row, dim)
        weight = k.select(inside, dy[row], k.number(float("nan"), dtype))
        scale, place = weight / total, k.select(inside, at, k.number(0, i64))
        least = weight * label_smoothing / k.number(dim, dtype)
        for c in k.lanes(dim):
            out[row, c] = k.fma(k.exp(logits[row, c] - top), scale, -least)
        k.barrier()
        share = k.exp(logits[row, place] - top) / total - (1 - label_smoothing)
        out[row, place] = k.fma(weight, share, -least)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 3, NAME, specs, "logits [.., classes], target [..] and dy [..]")
    logits, target, dy = specs
    expect_rows(NAME, logits, target)
    rows, wide = logits.shape[:-1], ir.arithmetic_dtype(as_dtype(logits.dtype))
    fits = dy.is_plain and dy.dtype == wide and dy.shape == rows
    ops.expect(fits, NAME, dy, f"dy of {wide.name} {list(map(str, rows))}")
    expect_attributes(NAME, attrs)
    return (TensorSpec(logits.shape, as_dtype(logits.dtype)),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, target, dy = inputs[0].astype(np.float64), inputs[1].astype(np.int64)[..., None], inputs[2].astype(np.float64)
    classes, smoothing = x.shape[-1], attrs.get("label_smoothing", 0.0)
    powers = np.exp(x - x.max(-1, keepdims=True))
    wanted = (1 - smoothing) * (target == np.arange(classes)) + smoothing / classes
    made = dy[..., None] * (powers / powers.sum(-1, keepdims=True) - wanted)
    made = np.where((target >= 0) & (target < classes), made, np.nan)
    return (np.where(target == attrs.get("ignore_index", IGNORED), 0, made),)


def _decompose(
    f: Any, logits: Any, target: Any, dy: Any, ignore_index: int = IGNORED, label_smoothing: float = 0.0
) -> Any:
    dtype, classes = as_dtype(logits.dtype), logits.shape[-1]
    x = logits if dtype in (f32, f64) else f.cast(logits, to="f32")
    at = target.reshape((*target.shape, 1))
    ignored, inside = f.equal(at, ignore_index), f.logical_and(at >= 0, at < classes)
    weight = f.where(ignored, 0, f.where(inside, dy.reshape(at.shape), np.nan))
    hit = f.equal(at, np.arange(classes, dtype=as_dtype(target.dtype).numpy))
    wanted = f.cast(hit, to=x.dtype.name) * (1 - label_smoothing) + label_smoothing / classes
    made = f.where(ignored, 0, (f.softmax(x) - wanted) * weight)
    return made if dtype in (f32, f64) else f.cast(made, to=dtype.name)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    table = flat(node.inputs[0])
    line = table[:1]
    arrays = ops.read(0, shape=table), ops.read(1, shape=line), ops.read(2, shape=line), ops.write(0, shape=table)
    return ops.Build((rows_launch(one_row_per_program, arrays, node, target),))


def _sample(name: str, shape: tuple[int, ...], dtype: DType = f32, index: DType = i64, **attrs: Any) -> ops.Sample:
    """Logits, targets of which every third is ignored, and weights."""
    rng = np.random.default_rng(len(name))
    logits, target = drawn(rng, shape, dtype, index, attrs)
    dy = rng.normal(size=shape[:-1]).astype(ir.arithmetic_dtype(dtype).numpy)
    return ops.Sample(name, (logits, target, dy), attrs)


def _samples() -> Iterable[ops.Sample]:
    yield _sample("rows of 33", (4, 33))
    yield _sample("smoothed, ignoring 2", (5, 17), index=i32, label_smoothing=0.1, ignore_index=2)
    outside = _sample("several blocks, no class", (1, 3, BLOCK + 65))
    outside.inputs[0][0, 0, BLOCK + 1] = 40.0
    outside.inputs[1][0, 2] = BLOCK + 65
    yield outside
    yield _sample("one row", (16,))
    yield _sample("f64", (4, 35), f64)
    yield _sample("f16", (4, 35), f16)
    yield _sample("bf16", (4, 35), bf16, i32)
    tokens = Extent("tokens", 16)
    full = _sample("7 of 16", (16, 31))
    specs = TensorSpec((tokens, 31), f32), TensorSpec((tokens,), i64), TensorSpec((tokens,), f32)
    yield ops.Sample(full.name, full.inputs, full.attrs, specs, {tokens: 7})


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, target, dy = TensorSpec((3, 8), f32), TensorSpec((3,), i64), TensorSpec((3,), f32)
    yield ops.ErrorSample((x, target), {}, "wanted logits")
    yield ops.ErrorSample((x, TensorSpec((8,), i64), dy), {}, "wanted target of i32 or i64")
    yield ops.ErrorSample((x, target, TensorSpec((3,), f64)), {}, "wanted dy of f32")
    yield ops.ErrorSample((x, target, dy), {"label_smoothing": -1}, "wanted label_smoothing from 0 to 1")
    yield ops.ErrorSample((x, target, dy), {"ignore_index": 0.5}, "wanted ignore_index, an integer")


OP = ops.Op(
    name=NAME,
    formula="dx[r] = dy[r] (softmax(x[r]) - the smoothed target); 0 in ignored rows",
    parameters=Parameters("logits target dy", ATTRIBUTES),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance=TO_TOLERANCE | {"f64": 1e-28},
    flops=lambda node: 8.0 * prod(node.inputs[0].bounds),
    decompose=_decompose,
)
