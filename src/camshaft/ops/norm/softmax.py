"""softmax: y = exp(x - max(x)) / sum(exp(x - max(x))) over the last axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.extent import Extent
from camshaft.lang.kernel import kernel
from camshaft.lang.tracing.tracer import Array as KernelArray
from camshaft.lang.tracing.tracer import Tracer
from camshaft.ops import op as ops
from camshaft.ops.elementwise import frame as elementwise
from camshaft.ops.kernels import stores
from camshaft.ops.kernels.lane_widths import lanes_of, row_lanes
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec


@kernel
def one_row_per_program(
    k: Tracer, x: KernelArray, out: KernelArray, *, dim: int, inner: int, streams: bool, ahead: bool
) -> None:
    # y[r, c] = exp(x[r, c] - max_c x[r]) / sum_c exp(x[r, c] - max_c x[r]); a NaN in a row makes all of it NaN
    row = k.program(0) * inner + k.program(1)
    highest, total = k.accumulator("max"), k.accumulator("sum")
    for c in k.lanes(dim):  # passes over a NaN, one operation for three: the sum shows it
        value, before = x[row, c], highest.value
        highest.set(k.select(value > before, value, before))
    top = k.lanes_max(highest)
    held = k.scratch(f32, dim) if streams else None
    for c in k.lanes(dim):
        if ahead:
            stores.next_row(k, x, row, c)
        power = k.exp(x[row, c] - top)
        if held is None:
            out[row, c] = power
        else:
            held[c] = power
        total += power
    scale = 1.0 / k.lanes_sum(total)
    for c in k.lanes(dim):  # a lane reads again what it wrote itself: no barrier
        if held is None:
            out[row, c] = out[row, c] * scale
        else:
            k.stream(out, held[c] * scale, row, c)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, "softmax", specs, "one tensor x [..., n]")
    elementwise.expect_tensor("softmax", specs[0])
    ops.expect(isinstance(specs[0].shape[-1], int), "softmax", specs[0], "a last axis that is no Extent")
    return (specs[0],)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x = inputs[0].astype(np.float64)
    with np.errstate(invalid="ignore"):
        powers = np.exp(x - x.max(-1, keepdims=True))
        return (powers / powers.sum(-1, keepdims=True),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x = node.inputs[0]
    dim, inner = x.bounds[-1], int(np.prod(x.bounds[1:-1]))
    rows = x.shape[0] if len(x.shape) > 1 else 1
    flat = (int(np.prod(x.bounds)) // dim, dim)
    arrays = (ops.read(0, shape=flat), ops.write(0, shape=flat))
    grid = (ops.Cells(rows), ops.Cells(inner))
    streams = dim <= stores.MOST_HELD and stores.pays(node, target)
    constants = {"dim": dim, "inner": inner, "streams": streams, "ahead": target.backend == "simd"}
    return ops.Build((ops.Launch(one_row_per_program, arrays, grid, constants, lanes=row_lanes(dim, target)),))


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(13)
    for shape in ((1,), (33,), (3, 15), (2, 16), (5, 17), (2, 3, 33), (2, 1000)):
        yield ops.Sample("x".join(map(str, shape)), ((3 * rng.normal(size=shape)).astype(np.float32),))
    x = rng.normal(size=(4, 33)).astype(np.float32)
    x[0] += 1e4
    x[1, 5:] = -np.inf
    x[2, 7] = np.nan
    x[3] *= 100
    yield ops.Sample("great, masked and NaN", (x,))
    (spec, x), active = elementwise.part_of_bound(14, 2, 33)
    yield ops.Sample("7 of 16", (x,), specs=(spec,), extents=active)


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((x, x), {}, "wanted one tensor")
    yield ops.ErrorSample((TensorSpec((2, 8), i32),), {}, "wanted a tensor of f32")
    yield ops.ErrorSample((TensorSpec((Extent("n", 8),), f32),), {}, "wanted a last axis")


OP = ops.Op(
    name="softmax",
    formula="y = exp(x - max(x)) / sum(exp(x - max(x)))",
    parameters=Parameters("x"),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, _build, tunables=lanes_of(_build)),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-12},
    flops=lambda node: 5.0 * np.prod(node.inputs[0].bounds),
)
