"""rms_norm: y[r, c] = x[r, c] / sqrt(mean_c(x[r]^2) + eps) * w[c] (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from camshaft.dtypes import f32
from camshaft.lang.kernel import kernel
from camshaft.lang.tracing.tracer import Array as KernelArray
from camshaft.lang.tracing.tracer import Tracer
from camshaft.ops import op as ops
from camshaft.ops.kernels import stores
from camshaft.ops.kernels import stores as output_dtype
from camshaft.ops.kernels.lane_widths import lanes_of, row_lanes
from camshaft.ops.parameters import EPS, TO, Parameters
from camshaft.ops.spec import TensorSpec


@kernel
def one_row_per_program(
    k: Tracer, x: KernelArray, w: KernelArray, out: KernelArray, *, dim: int, inner: int, eps: float, streams: bool
) -> None:
    # y[r, c] = x[r, c] / sqrt(mean_c(x[r]^2) + eps) * w[c]; rows are numbered over all leading axes
    row, squares = k.program(0) * inner + k.program(1), k.accumulator("sum")
    for c in k.lanes(dim):
        squares += x[row, c] ** 2
    scale = k.rsqrt(k.lanes_sum(squares) / dim + eps)
    for c in k.lanes(dim):
        if streams:
            stores.next_row(k, x, row, c)
        value = x[row, c] * scale * w[c]
        stores.put(k, out, value, row, c, streams)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "rms_norm", specs, "x [..., d] and w [d]")
    x, w = specs
    ops.expect(
        2 <= len(x.shape) <= 3 and x.dtype == f32 and x.is_plain,
        "rms_norm",
        x,
        "x of f32 [rows, d] or [rows, heads, d]",
    )
    ops.expect(w.is_plain and w.shape == x.shape[-1:] and w.dtype == f32, "rms_norm", w, f"w of f32 [{x.shape[-1]}]")
    ops.expect(attrs.get("eps", 0) > 0, "rms_norm", attrs.get("eps"), "eps above 0")
    return (output_dtype.result("rms_norm", x, attrs),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, w = (a.astype(np.float64) for a in inputs)
    return (x / np.sqrt((x**2).mean(-1, keepdims=True) + attrs["eps"]) * w,)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x = node.inputs[0]
    dim, inner = x.bounds[-1], x.bounds[1] if len(x.shape) == 3 else 1
    flat = (x.bounds[0] * inner, dim)
    arrays = (ops.read(0, shape=flat), ops.read(1), ops.write(0, shape=flat))
    grid = (ops.Cells(x.shape[0]), ops.Cells(inner))
    constants = {"dim": dim, "inner": inner, "eps": node.attrs["eps"], "streams": stores.pays(node, target)}
    return ops.Build((ops.Launch(one_row_per_program, arrays, grid, constants, lanes=row_lanes(dim, target)),))


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(1)
    for rows, dim in ((1, 1), (3, 15), (2, 16), (5, 17), (4, 33), (7, 576)):
        x = rng.normal(size=(rows, dim)).astype(np.float32)
        yield ops.Sample(f"{rows}x{dim}", (x, rng.normal(size=dim).astype(np.float32)), {"eps": 1e-5})
    x = (rng.normal(size=(3, 2, 64)) * 1e-3).astype(np.float32)
    yield ops.Sample("heads, small values", (x, np.ones(64, np.float32)), {"eps": 1e-6})
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in ((3, 35), 35))
    yield ops.Sample("to bf16", (x, w), {"eps": 1e-5, "to": "bf16"})


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, w = TensorSpec((2, 8), f32), TensorSpec((8,), f32)
    yield ops.ErrorSample((x, TensorSpec((9,), f32)), {"eps": 1e-5}, "wanted w of f32")
    yield ops.ErrorSample((x,), {"eps": 1e-5}, "wanted x")
    yield ops.ErrorSample((x, w), {"eps": 0.0}, "wanted eps above 0")
    yield ops.ErrorSample((x, w), {"eps": 1e-5, "to": "i8"}, "wanted to f32, f16 or bf16")


OP = ops.Op(
    name="rms_norm",
    formula="y = x / sqrt(mean(x^2) + eps) * w",
    parameters=Parameters("x w", (EPS, TO)),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, _build, tunables=lanes_of(_build)),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance=output_dtype.TOLERANCE,
    flops=lambda node: 4.0 * np.prod(node.inputs[0].bounds),
)
