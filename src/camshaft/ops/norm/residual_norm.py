"""residual_norm: s = a + b and y = s / sqrt(mean(s^2) + eps) * w in one pass over the row; both are results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import f32
from camshaft.extent import Extent
from camshaft.lang.kernel import kernel
from camshaft.lang.tracing.tracer import Array as KernelArray
from camshaft.lang.tracing.tracer import Tracer
from camshaft.ops import op as ops
from camshaft.ops.kernels import stores
from camshaft.ops.kernels.lane_widths import lanes_of
from camshaft.ops.parameters import EPS, TO, Parameters
from camshaft.ops.rule import Builder, Match, Rule, Stage, Use, Uses
from camshaft.ops.spec import TensorSpec


@kernel
def one_row_per_program(
    k: Tracer,
    a: KernelArray,
    b: KernelArray,
    w: KernelArray,
    norm: KernelArray,
    total: KernelArray,
    *,
    dim: int,
    eps: float,
) -> None:
    # s[r, c] = a[r, c] + b[r, c]; y[r, c] = s[r, c] / sqrt(mean_c(s[r]^2) + eps) * w[c]
    row, squares = k.program(0), k.accumulator("sum")
    for c in k.lanes(dim):
        value = a[row, c] + b[row, c]
        total[row, c] = value
        squares += value**2
    scale = k.rsqrt(k.lanes_sum(squares) / dim + eps)
    for c in k.lanes(dim):  # a lane reads again what it wrote itself: no barrier
        norm[row, c] = total[row, c] * scale * w[c]


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 3, "residual_norm", specs, "a [T, d], b [T, d] and w [d]")
    a, b, w = specs
    fits = a.is_plain and a.dtype == f32 and len(a.shape) == 2 and isinstance(a.shape[1], int) and a.shape[1] > 0
    ops.expect(fits, "residual_norm", a, "a of f32 [T, d]")
    ops.expect(b == a, "residual_norm", b, f"b as a is, {a}")
    ops.expect(w == TensorSpec(a.shape[1:], f32), "residual_norm", w, f"w of f32 [{a.shape[1]}]")
    ops.expect(attrs.get("eps", 0) > 0, "residual_norm", attrs.get("eps"), "eps above 0")
    return (stores.result("residual_norm", a, attrs), a)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    a, b, w = (x.astype(np.float64) for x in inputs)
    total = a + b
    return total / np.sqrt((total**2).mean(-1, keepdims=True) + attrs["eps"]) * w, total


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    rows, dim = node.inputs[0].shape[0], node.inputs[0].bounds[1]
    arrays = (ops.read(0), ops.read(1), ops.read(2), ops.write(0), ops.write(1))
    constants = {"dim": dim, "eps": node.attrs["eps"]}
    return ops.Build((ops.Launch(one_row_per_program, arrays, (ops.Cells(rows),), constants),))


def _decompose(graph: Any, tensors: Sequence[Any], attrs: ops.Attrs) -> Any:
    a, b, w = tensors
    total = graph.add(a, b)
    return graph.rms_norm(total, w, **attrs), total


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(12)
    for rows, dim in ((1, 1), (3, 15), (2, 16), (5, 17), (4, 33), (7, 576)):
        a, b = (rng.normal(size=(rows, dim)).astype(np.float32) for _ in range(2))
        yield ops.Sample(f"{rows}x{dim}", (a, b, rng.normal(size=dim).astype(np.float32)), {"eps": 1e-5})
    tokens = Extent("tokens", 16)
    spec = TensorSpec((tokens, 33), f32)
    a, b = (rng.normal(size=(16, 33)).astype(np.float32) for _ in range(2))
    specs, w = (spec, spec, TensorSpec((33,), f32)), np.ones(33, np.float32)
    yield ops.Sample("7 of 16", (a, b, w), {"eps": 1e-6}, specs, {tokens: 7})
    yield ops.Sample("to bf16, 7 of 16", (a, b, w), {"eps": 1e-6, "to": "bf16"}, specs, {tokens: 7})


def _error_samples() -> Iterable[ops.ErrorSample]:
    a, w = TensorSpec((2, 8), f32), TensorSpec((8,), f32)
    yield ops.ErrorSample((a, a), {"eps": 1e-5}, "wanted a")
    yield ops.ErrorSample((a, TensorSpec((2, 9), f32), w), {"eps": 1e-5}, "wanted b as a is")
    yield ops.ErrorSample((a, a, TensorSpec((9,), f32)), {"eps": 1e-5}, "wanted w of f32")
    yield ops.ErrorSample((a, a, w), {}, "wanted eps above 0")
    yield ops.ErrorSample((a, a, w), {"eps": 1e-5, "to": "i8"}, "wanted to f32, f16 or bf16")


def _fused(use: Use, uses: Uses) -> Match | None:
    """add, then an rms_norm of the sum on the same device with a constant weight."""
    total = use.outputs[0]
    for norm in uses.readers(total):
        x, *weights = norm.inputs
        if norm.op.name != "rms_norm" or x is not total or norm.device != use.device:
            continue
        inputs = (*use.inputs, *weights)
        if all(w.kind == "constant" for w in weights) and OP.accepts(tuple(t.spec for t in inputs), norm.attrs):
            return Match(_building(inputs, norm, total), (norm,))
    return None


def _building(inputs: tuple[Any, ...], norm: Use, total: Any) -> Callable[[Builder], Mapping[Any, Any]]:
    return lambda new: dict(zip((norm.outputs[0], total), new.apply(OP, inputs, norm.attrs, norm.name), strict=True))


OP = ops.Op(
    name="residual_norm",
    formula="s = a + b; y = s / sqrt(mean(s^2) + eps) * w",
    parameters=Parameters("a b w", (EPS, TO), results=2),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, _build, tunables=lanes_of(_build)),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance=stores.TOLERANCE,
    flops=lambda node: 5.0 * np.prod(node.inputs[0].bounds),
    decompose=_decompose,
    rules=(Rule(Stage.FUSE, ("add",), _fused),),
)
