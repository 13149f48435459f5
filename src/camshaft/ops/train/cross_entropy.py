"""cross_entropy: -log of the probability that softmax(logits) gives the target, as torch's of [N, C] logits and class indexes.

Classes are the last axis. `reduction` is "mean" over the targets that are not `ignore_index`, "sum" or "none"; `label_smoothing`
mixes the targets with equal probabilities of all classes. A target outside of the classes gives NaN, and reads no memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, f16, f32, f64, i32, i64
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec
from camshaft.ops.train.class_rows import ATTRIBUTES, IGNORED, drawn, expect_attributes, expect_rows, flat, rows_launch
from camshaft.ops.train.cross_entropy_gradient import peak_and_sum

# Half a step of rounding, because a mean is one number: TO_TOLERANCE is for many.
TOLERANCE = {"f32": 1e-12, "f64": 1e-28, "f16": 1.1 * 2.0**-22, "bf16": 1.1 * 2.0**-16}
REDUCTIONS = ("mean", "sum", "none")
REDUCTION = Attribute("reduction", "str", "mean")
_ATTRIBUTES = (REDUCTION, *ATTRIBUTES)


@kernel
def one_row_per_program(
    k: Tracer,
    logits: Array,
    target: Array,
    out: Array,
    *,
    dim: int,
    inner: int,
    ignore_index: int,
    label_smoothing: float,
) -> None:
    # y[r] = log(sum_c exp(x[r, c])) - (1 - s) x[r, t[r]] - s mean_c(x[r]); 0 where t[r] is ignored
    row, dtype = k.program(0) * inner + k.program(1), ir.arithmetic_dtype(logits.dtype)
    top, total = peak_and_sum(k, logits, row, dim)
    powers = k.log(total)
    at = target[row].to(i64)
    inside = (at >= 0) & (at < dim)
    loss = top - logits[row, k.select(inside, at, k.number(0, i64))] + powers
    if label_smoothing:
        lower = k.accumulator("sum", dtype)
        for c in k.lanes(dim):
            lower += top - logits[row, c]
        others = k.lanes_sum(lower) / k.number(dim, dtype) + powers
        loss = loss * (1 - label_smoothing) + others * label_smoothing
    out[row] = k.select(at == ignore_index, k.number(0.0, dtype), k.select(inside, loss, k.number(float("nan"), dtype)))


@kernel
def all_rows(k: Tracer, losses: Array, target: Array, out: Array, *, rows: int, ignore_index: int, mean: bool) -> None:
    # y = sum_r loss[r], for the mean divided by the number of targets that are not ignored
    dtype = losses.dtype
    total, count = k.accumulator("sum", dtype), k.accumulator("sum", dtype)
    for r in k.lanes(rows):
        total += losses[r]
        if mean:
            count += k.select(target[r].to(i64) == ignore_index, k.number(0.0, dtype), k.number(1.0, dtype))
    found = k.lanes_sum(total)
    out[0] = found / k.lanes_sum(count) if mean else found


def check_reduction(op: str, attrs: ops.Attrs) -> str:
    """Returns the attribute `reduction`. ShapeError for another than mean, sum and none."""
    reduction = attrs.get("reduction", "mean")
    ops.expect(reduction in REDUCTIONS, op, f"reduction {reduction!r}", f"a reduction of {', '.join(REDUCTIONS)}")
    return str(reduction)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    name = "cross_entropy"
    ops.expect(len(specs) == 2, name, specs, "logits [.., classes] and target [..]")
    logits, target = specs
    expect_rows(name, logits, target)
    reduction = check_reduction(name, attrs)
    expect_attributes(name, attrs)
    fixed = reduction == "none" or not any(isinstance(d, Extent) for d in logits.shape)
    ops.expect(fixed, name, logits, "no Extent with a mean or sum; take the losses with reduction 'none'")
    return (TensorSpec(logits.shape[:-1] if reduction == "none" else (), as_dtype(logits.dtype)),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, target = inputs[0].astype(np.float64), inputs[1].astype(np.int64)
    classes, smoothing = x.shape[-1], attrs.get("label_smoothing", 0.0)
    with np.errstate(all="ignore"):
        lower = x - x.max(-1, keepdims=True)
        surprise = np.log(np.exp(lower).sum(-1, keepdims=True)) - lower
    inside, ignored = (target >= 0) & (target < classes), target == attrs.get("ignore_index", IGNORED)
    picked = np.take_along_axis(surprise, np.where(inside, target, 0)[..., None], -1)[..., 0]
    loss = (1 - smoothing) * picked + (smoothing * surprise.mean(-1) if smoothing else 0)
    loss = np.where(ignored, 0, np.where(inside, loss, np.nan))
    reduction = attrs.get("reduction", "mean")
    if reduction == "none":
        return (loss,)
    with np.errstate(all="ignore"):
        return (np.asarray(loss.sum() / ((~ignored).sum() if reduction == "mean" else 1)),)


def _decompose(
    f: Any, logits: Any, target: Any, reduction: str = "mean", ignore_index: int = IGNORED, label_smoothing: float = 0.0
) -> Any:
    dtype, classes = as_dtype(logits.dtype), logits.shape[-1]
    x = logits if dtype in (f32, f64) else f.cast(logits, to="f32")
    surprise = -f.log_softmax(x)
    at = target.reshape((*target.shape, 1))
    hit = f.equal(at, np.arange(classes, dtype=as_dtype(target.dtype).numpy))
    loss = f.sum(f.where(hit, surprise, 0), axes=-1)
    if label_smoothing:
        loss = loss * (1 - label_smoothing) + f.mean(surprise, axes=-1) * label_smoothing
    inside, ignored = f.logical_and(target >= 0, target < classes), f.equal(target, ignore_index)
    loss = f.where(ignored, 0, f.where(inside, loss, np.nan))
    if reduction != "none":
        loss = f.sum(loss)
    if reduction == "mean":
        loss = loss / f.sum(f.cast(f.logical_not(ignored), to=loss.dtype.name))
    return loss if dtype in (f32, f64) else f.cast(loss, to=dtype.name)


def _vjp(f: Any, dy: Any, y: Any, logits: Any, target: Any, reduction: str = "mean", **attrs: Any) -> tuple[Any, None]:
    """dy (softmax(x) - t) for the smoothed target t, by cross_entropy_gradient; dy is one number for all rows or one for each."""
    wide = ir.arithmetic_dtype(as_dtype(logits.dtype)).name
    dy = dy if dy.dtype.name == wide else f.cast(dy, to=wide)
    if reduction == "mean":
        dy = dy / f.sum(f.cast(f.not_equal(target, attrs.get("ignore_index", IGNORED)), to=wide))
    if reduction != "none":
        dy = f.broadcast_to(dy.reshape((1,) * len(target.shape)), shape=target.shape) if target.shape else dy
    return f.cross_entropy_gradient(logits, target, dy, **attrs), None


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    logits, reduction = node.inputs[0], node.attrs.get("reduction", "mean")
    rows, dim = flat(logits)
    losses = ops.write(0, shape=(rows,)) if reduction == "none" else ops.Operand("scratch", 0, access="write")
    arrays = (ops.read(0, shape=(rows, dim)), ops.read(1, shape=(rows,)), losses)
    first = rows_launch(one_row_per_program, arrays, node, target)
    if reduction == "none":
        return ops.Build((first,))
    arrays = (ops.Operand("scratch", 0), ops.read(1, shape=(rows,)), ops.write(0, shape=(1,)))
    given = {"rows": rows, "mean": reduction == "mean", "ignore_index": first.constants["ignore_index"]}
    second = ops.Launch(all_rows, arrays, (ops.Cells(1),), given, sizes=("rows",))
    dtype = ir.arithmetic_dtype(as_dtype(logits.dtype))
    return ops.Build((first, second), (TensorSpec((rows,), dtype),))


def _sample(name: str, shape: tuple[int, ...], dtype: DType = f32, index: DType = i64, **attrs: Any) -> ops.Sample:
    """Logits and targets, of which every third is ignored."""
    rng = np.random.default_rng(len(name))
    return ops.Sample(name, drawn(rng, shape, dtype, index, attrs), attrs)


def _samples() -> Iterable[ops.Sample]:
    yield _sample("mean", (7, 33))
    yield _sample("sum, smoothed, ignoring 2", (5, 17), index=i32, reduction="sum", label_smoothing=0.1, ignore_index=2)
    losses = _sample("none, long", (2, 3, 1001), reduction="none")
    losses.inputs[1][1] = -1, 1001, 1000
    yield losses
    yield _sample("one row", (16,), reduction="none")
    yield _sample("f64", (4, 35), f64)
    yield _sample("f16", (4, 35), f16)
    yield _sample("bf16", (4, 35), bf16, i32, reduction="none")
    tokens = Extent("tokens", 16)
    full = _sample("7 of 16", (16, 33), reduction="none")
    yield ops.Sample(
        full.name, full.inputs, full.attrs, (TensorSpec((tokens, 33), f32), TensorSpec((tokens,), i64)), {tokens: 7}
    )


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, target, n = TensorSpec((3, 8), f32), TensorSpec((3,), i64), Extent("n", 3)
    yield ops.ErrorSample((x,), {}, "wanted logits")
    yield ops.ErrorSample((x, TensorSpec((8,), i64)), {}, "wanted target of i32 or i64")
    yield ops.ErrorSample((x, TensorSpec((3,), f32)), {}, "wanted target of i32 or i64")
    yield ops.ErrorSample((x, target), {"reduction": "max"}, "wanted a reduction of mean, sum, none")
    yield ops.ErrorSample((x, target), {"label_smoothing": 1.5}, "wanted label_smoothing from 0 to 1")
    yield ops.ErrorSample((x, target), {"ignore_index": 0.5}, "wanted ignore_index, an integer")
    yield ops.ErrorSample((TensorSpec((n, 8), f32), TensorSpec((n,), i64)), {}, "wanted no Extent with a mean")


OP = ops.Op(
    name="cross_entropy",
    formula="y[r] = log(sum(exp(x[r]))) - x[r, target[r]]; their mean where not ignored, or sum",
    parameters=Parameters("logits target", _ATTRIBUTES),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance=TOLERANCE,
    flops=lambda node: 5.0 * prod(node.inputs[0].bounds),
    decompose=_decompose,
    vjp=_vjp,
)
