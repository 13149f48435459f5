"""layer_norm: y[r, c] = (x[r, c] - m[r]) / sqrt(v[r] + eps) * w[c] + b[c], m, v a row's mean and variance (Ba et al., 2016)."""

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
from camshaft.ops.parameters import EPS, Parameters
from camshaft.ops.spec import TensorSpec


@kernel
def one_row_per_program(
    k: Tracer,
    x: KernelArray,
    w: KernelArray,
    b: KernelArray,
    out: KernelArray,
    *,
    dim: int,
    inner: int,
    eps: float,
    streams: bool,
) -> None:
    # the variance is of the differences from the mean, which lose nothing where it is large; their own mean is what the mean
    # was off by. The row is read from memory once, and then is in the first cache
    row = k.program(0) * inner + k.program(1)
    total, rest, squares = k.accumulator("sum"), k.accumulator("sum"), k.accumulator("sum")
    for c in k.lanes(dim):
        total += x[row, c]
    near = k.lanes_sum(total) / dim
    for c in k.lanes(dim):
        if streams:
            stores.next_row(k, x, row, c)
        apart = x[row, c] - near
        rest += apart
        squares += apart * apart
    off = k.lanes_sum(rest) / dim
    scale = k.rsqrt(k.lanes_sum(squares) / dim - off * off + eps)
    shift = -off * scale
    for c in k.lanes(dim):
        value = ((x[row, c] - near) * scale + shift) * w[c] + b[c]
        stores.put(k, out, value, row, c, streams)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 3, "layer_norm", specs, "x [..., d], w [d] and b [d]")
    x = specs[0]
    elementwise.expect_tensor("layer_norm", x)
    ops.expect(isinstance(x.shape[-1], int), "layer_norm", x, "a last axis that is no Extent")
    for name, spec in zip("wb", specs[1:], strict=True):
        fits = spec.is_plain and spec.shape == x.shape[-1:] and spec.dtype == f32
        ops.expect(fits, "layer_norm", spec, f"{name} of f32 [{x.shape[-1]}]")
    ops.expect(attrs.get("eps", 0) > 0, "layer_norm", attrs.get("eps"), "eps above 0")
    return (x,)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, w, b = (a.astype(np.float64) for a in inputs)
    apart = x - x.mean(-1, keepdims=True)
    return (apart / np.sqrt((apart**2).mean(-1, keepdims=True) + attrs["eps"]) * w + b,)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x = node.inputs[0]
    dim, inner = x.bounds[-1], int(np.prod(x.bounds[1:-1]))
    rows = x.shape[0] if len(x.shape) > 1 else 1
    flat = (int(np.prod(x.bounds)) // dim, dim)
    arrays = (ops.read(0, shape=flat), ops.read(1), ops.read(2), ops.write(0, shape=flat))
    constants = {"dim": dim, "inner": inner, "eps": node.attrs["eps"], "streams": stores.pays(node, target)}
    grid = (ops.Cells(rows), ops.Cells(inner))
    return ops.Build((ops.Launch(one_row_per_program, arrays, grid, constants, lanes=row_lanes(dim, target)),))


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(21)

    def sample(name: str, x: ops.Array, **more: object) -> ops.Sample:
        w, b = (rng.normal(size=x.shape[-1]).astype(np.float32) for _ in range(2))
        return ops.Sample(name, (x, w, b), {"eps": 1e-5}, **more)  # type: ignore[arg-type]

    for shape in ((1,), (33,), (3, 15), (2, 16), (5, 17), (2, 3, 33), (7, 576), (2, 1001)):
        yield sample("x".join(map(str, shape)), rng.normal(size=shape).astype(np.float32))
    yield sample("about 100", (100 + rng.normal(size=(4, 700))).astype(np.float32))
    (spec, x), active = elementwise.part_of_bound(22, 2, 33)
    vector = TensorSpec((33,), f32)
    yield sample("7 of 16", x, specs=(spec, vector, vector), extents=active)


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, w = TensorSpec((2, 8), f32), TensorSpec((8,), f32)
    yield ops.ErrorSample((x, w), {"eps": 1e-5}, "wanted x")
    yield ops.ErrorSample((x, w, TensorSpec((9,), f32)), {"eps": 1e-5}, "wanted b of f32")
    yield ops.ErrorSample((TensorSpec((2, 8), i32), w, w), {"eps": 1e-5}, "wanted a tensor of f32")
    yield ops.ErrorSample((TensorSpec((Extent("n", 8),), f32), w, w), {"eps": 1e-5}, "wanted a last axis")
    yield ops.ErrorSample((x, w, w), {"eps": 0.0}, "wanted eps above 0")


OP = ops.Op(
    name="layer_norm",
    formula="y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w + b",
    parameters=Parameters("x w b", (EPS,)),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, _build, tunables=lanes_of(_build)),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-12},
    flops=lambda node: 8.0 * np.prod(node.inputs[0].bounds),
)
