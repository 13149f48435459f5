"""assign: a state's new value, written in place: what a step of training leaves for the next one."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np

from camshaft.dtypes import bf16, f16, f32, f64, i32, u8
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.gradient import IN_PLACE
from camshaft.ops.kernels.bits import as_bits
from camshaft.ops.kernels.blocks import BLOCK
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec

_DTYPES = (f32, f64, f16, bf16, i32, u8)


@kernel
def one_block_per_program(k: Tracer, state: Array, x: Array, *, n: int, block: int) -> None:
    # state = x
    first = k.program(0) * block
    for i in k.lanes(first, k.minimum(first + block, n)):
        state[i] = x[i]


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "assign", specs, "a state and its new value")
    ops.expect(not attrs, "assign", f"attributes {', '.join(attrs)}", "no attributes")
    state, x = specs
    fits = state.is_plain and state.dtype in _DTYPES and not any(isinstance(d, Extent) for d in state.shape)
    wanted = f"a state of {', '.join(d.name for d in _DTYPES)} with no Extent and no empty axis"
    ops.expect(fits and 0 not in state.shape, "assign", state, wanted)
    ops.expect(x == state, "assign", x, f"a value of {state}")
    return ()


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    spec = node.inputs[0]
    n = prod(spec.bounds)
    arrays = tuple(as_bits(operand, spec) for operand in (ops.update(0, shape=(n,)), ops.read(1, shape=(n,))))
    constants = {"n": n, "block": BLOCK}
    return ops.Build((ops.Launch(one_block_per_program, arrays, (ops.Cells(n, per=BLOCK),), constants, sizes=("n",)),))


def _samples() -> Iterable[ops.Sample]:
    for shape, dtype in (
        ((5, 33), f32),
        ((BLOCK + 17,), f32),
        ((), i32),
        ((3, 7), f64),
        ((2, 9), bf16),
        ((3, 257), u8),
    ):
        values = np.arange(2 * prod(shape)).astype(dtype.numpy).reshape(2, *shape)
        yield ops.Sample(f"{list(shape)} of {dtype.name}", (values[0], values[1]))


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((3, 8), f32)
    yield ops.ErrorSample((x,), {}, "wanted a state and its new value")
    yield ops.ErrorSample((x, TensorSpec((3, 8), f16)), {}, r"wanted a value of f32\[3, 8\]")
    yield ops.ErrorSample((TensorSpec((0,), f32),) * 2, {}, "wanted a state of f32")


OP = ops.Op(
    name="assign",
    vjp=IN_PLACE,
    formula="state = x",
    parameters=Parameters("state x", results=0),
    infer=_infer,
    reference=lambda inputs, attrs: (inputs[1],),
    variants=(ops.KernelVariant("one_block_per_program", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={},
    updates=(0,),
)
