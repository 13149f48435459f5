"""silu_multiply: y = silu(gate) * up, the middle of a gated feed-forward layer (Shazeer, 2020)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import f32
from camshaft.lang.kernel import kernel
from camshaft.lang.tracing.tracer import Array as KernelArray
from camshaft.lang.tracing.tracer import Tracer
from camshaft.ops import op as ops
from camshaft.ops.elementwise import frame as elementwise
from camshaft.ops.kernels import stores
from camshaft.ops.parameters import TO, Parameters
from camshaft.ops.spec import TensorSpec


@kernel
def silu_multiply_block(
    k: Tracer, gate: KernelArray, up: KernelArray, out: KernelArray, *, columns: int, block: int
) -> None:
    # y[r, c] = gate[r, c] / (1 + exp(-gate[r, c])) * up[r, c]
    row, first = k.program(0), k.program(1) * block
    for c in k.lanes(first, k.minimum(first + block, columns)):
        value = gate[row, c]
        out[row, c] = value / (1.0 + k.exp(-value)) * up[row, c]


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "silu_multiply", specs, "gate and up of one shape")
    gate, up = specs
    elementwise.expect_tensor("silu_multiply", gate)
    ops.expect(up == gate, "silu_multiply", up, f"up as gate is, {gate}")
    return (stores.result("silu_multiply", gate, attrs),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    gate, up = (x.astype(np.float64) for x in inputs)
    with np.errstate(all="ignore"):
        return (gate / (1.0 + np.exp(-gate)) * up,)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    how = elementwise.cut(node.inputs[0])
    arrays = (ops.read(0, shape=how.shape), ops.read(1, shape=how.shape), ops.write(0, shape=how.shape))
    return elementwise.launch(silu_multiply_block, how, arrays)


def _decompose(graph: Any, tensors: Sequence[Any], attrs: ops.Attrs) -> Any:
    gate, up = tensors
    y = graph.multiply(graph.silu(gate), up)
    return graph.cast(y, to=attrs["to"]) if "to" in attrs else y


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(8)
    for shape in elementwise.sample_shapes():
        gate, up = ((3 * rng.normal(size=shape)).astype(np.float32) for _ in range(2))
        yield ops.Sample("x".join(map(str, shape)), (gate, up))
    special = np.array([np.nan, np.inf, 0.0, -0.0, 100.0, -80.0], np.float32)
    yield ops.Sample("special", (special, np.full(6, 2.0, np.float32)))
    (spec, gate), active = elementwise.part_of_bound(9, 33)
    yield ops.Sample("7 of 16", (gate, gate[::-1].copy()), specs=(spec, spec), extents=active)
    yield ops.Sample("to bf16, 7 of 16", (gate, gate[::-1].copy()), {"to": "bf16"}, (spec, spec), active)


def _error_samples() -> Iterable[ops.ErrorSample]:
    gate = TensorSpec((2, 8), f32)
    yield ops.ErrorSample((gate, TensorSpec((2, 9), f32)), {}, "wanted up as gate is")
    yield ops.ErrorSample((gate,), {}, "wanted gate and up")
    yield ops.ErrorSample((gate, gate), {"to": "i8"}, "wanted to f32, f16 or bf16")


OP = ops.Op(
    name="silu_multiply",
    formula="y = gate / (1 + exp(-gate)) * up",
    parameters=Parameters("gate up", (TO,)),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("row_blocks", elementwise.BACKENDS, _build, tunables=elementwise.tunables(_build)),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance=stores.TOLERANCE,
    flops=lambda node: 5.0 * np.prod(node.inputs[0].bounds),
    decompose=_decompose,
)
