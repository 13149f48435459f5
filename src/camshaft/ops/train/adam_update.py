"""adam_update: a step of Adam (Kingma and Ba, 2015) or AdamW (Loshchilov and Hutter, 2019) in place; nothing at step 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite, log, prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, f16, f32, f64, i32
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.elementwise.activation import expm1
from camshaft.ops.gradient import IN_PLACE
from camshaft.ops.kernels.blocks import BLOCK
from camshaft.ops.kernels.launch import has_threads
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

_DEFAULTS = {"b1": 0.9, "b2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
_NAMES = "p m v g lr step"


@kernel
def one_block_per_program(
    k: Tracer, p: Array, m: Array, v: Array, g: Array, lr: Array, step: Array, *,
    n: int, block: int, b1: float, b2: float, eps: float, weight_decay: float,
) -> None:  # fmt: skip
    # m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p = p (1 - lr decay) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
    # at step 0 nothing: a plan refuses a step so, whose gradients are not finite
    first, dtype = k.program(0) * block, p.dtype
    rate, steps = lr[0], step[0].to(dtype)

    def correction(b: float) -> ir.Operand:
        return -expm1(k, steps * k.number(log(b), dtype)) if b else 1.0  # exact for a b near 1, as 1 - b^t is not

    c1, c2 = correction(b1), correction(b2)
    last = k.select(step[0] > 0, k.minimum(first + block, n), first)
    for i in k.lanes(first, last):
        gradient = g[i]
        mean = k.fma(m[i], k.number(b1, dtype), gradient * (1 - b1))
        square = k.fma(v[i], k.number(b2, dtype), gradient * gradient * (1 - b2))
        m[i], v[i] = mean, square
        old = p[i] * (1.0 - rate * weight_decay) if weight_decay else p[i]
        p[i] = old - rate * (mean / c1) / (k.sqrt(square / c2) + eps)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    name = "adam_update"
    ops.expect(len(specs) == 6, name, specs, "p, m, v and g of one shape, lr and step")
    p, m, v, g, lr, step = specs
    fits = p.is_plain and p.dtype in (f32, f64) and not any(isinstance(d, Extent) for d in p.shape)
    ops.expect(fits and 0 not in p.shape, name, p, "p of f32 or f64 with no Extent and no empty axis")
    for state, spec in (("m", m), ("v", v)):
        ops.expect(spec == p, name, spec, f"{state} of {p}")
    fits = g.is_plain and g.dtype in (p.dtype, f16, bf16) and g.shape == p.shape
    ops.expect(fits, name, g, f"g of {p.dtype.name}, f16 or bf16 {list(p.shape)}")
    for scalar, spec, dtype in (("lr", lr, as_dtype(p.dtype)), ("step", step, i32)):
        fits = spec.is_plain and spec.dtype == dtype and spec.shape in ((), (1,))
        ops.expect(fits, name, spec, f"{scalar}, one {dtype.name}")
    given = {**_DEFAULTS, **attrs}
    for number, value in given.items():
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) and value >= 0
        ops.expect(fits and (number not in ("b1", "b2") or value < 1), name, f"{number} {value!r}", _WANTED[number])
    return ()


_WANTED = {
    "b1": "b1 from 0 to below 1",
    "b2": "b2 from 0 to below 1",
    "eps": "eps, a finite number from 0 on",
    "weight_decay": "weight_decay, a finite number from 0 on",
}


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    p, m, v, g, lr, step = (a.astype(np.float64) for a in inputs)
    b1, b2, eps, decay = ({**_DEFAULTS, **attrs}[name] for name in _DEFAULTS)
    rate, t = lr.reshape(()), step.reshape(())
    if t == 0:
        return p, m, v
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
    with np.errstate(all="ignore"):
        moved = rate * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
    return p * (1 - rate * decay) - moved, m, v


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    n = prod(node.inputs[0].bounds)
    arrays = (*(ops.update(i, shape=(n,)) for i in range(3)), ops.read(3, shape=(n,)))
    scalars = ops.read(4, shape=(1,)), ops.read(5, shape=(1,))
    given = {name: float(node.attrs.get(name, default)) for name, default in _DEFAULTS.items()}
    block = (
        4 * target.lanes if has_threads(target) else BLOCK
    )  # a thread of a GPU has 4 elements: small matrices are many
    constants = {"n": n, "block": block, **given}
    grid = (ops.Cells(n, per=block),)
    return ops.Build((ops.Launch(one_block_per_program, (*arrays, *scalars), grid, constants, sizes=("n",)),))


def _sample(
    name: str, shape: tuple[int, ...], step: int, dtype: DType = f32, g: DType = f32, **attrs: Any
) -> ops.Sample:
    rng = np.random.default_rng(step)
    p, m, drawn = rng.normal(size=shape), 0.1 * rng.normal(size=shape), rng.normal(size=shape)
    states = tuple(a.astype(dtype.numpy) for a in (p, m, rng.random(shape)))
    scalars = np.array(1e-2, dtype.numpy), np.array([step], np.int32)
    return ops.Sample(name, (*states, drawn.astype(g.numpy), *scalars), attrs)


def _samples() -> Iterable[ops.Sample]:
    yield _sample("first step of 1", (1,), 1)
    yield _sample("step 1000 of 5x33", (5, 33), 1000)
    yield _sample("longer than a block", (BLOCK + 17,), 7)
    yield _sample("AdamW", (3, 37), 3, weight_decay=0.1, b1=0.8, b2=0.95, eps=1e-6)
    yield _sample("no momentum, g of bf16", (3, 37), 2, g=bf16, b1=0.0)
    yield _sample("f64", (3, 37), 5, f64, f64)
    yield _sample("step 0 changes nothing", (3, 37), 0)


def _error_samples() -> Iterable[ops.ErrorSample]:
    p, lr, step = TensorSpec((3, 8), f32), TensorSpec((), f32), TensorSpec((1,), i32)
    yield ops.ErrorSample((p, p, p, p), {}, "wanted p, m, v and g")
    yield ops.ErrorSample((p, p, TensorSpec((24,), f32), p, lr, step), {}, r"wanted v of f32\[3, 8\]")
    yield ops.ErrorSample((p, p, p, step, lr, step), {}, "wanted g of f32, f16 or bf16")
    yield ops.ErrorSample((p, p, p, p, p, step), {}, "wanted lr, one f32")
    yield ops.ErrorSample((p, p, p, p, lr, lr), {}, "wanted step, one i32")
    yield ops.ErrorSample((p, p, p, p, lr, step), {"b2": 1.0}, "wanted b2 from 0 to below 1")
    yield ops.ErrorSample((p, p, p, p, lr, step), {"eps": -1.0}, "wanted eps, a finite number")


OP = ops.Op(
    name="adam_update",
    vjp=IN_PLACE,
    formula="m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; "
    "p -= lr (decay p + (m / c1) / (sqrt(v / c2) + eps)), c = 1 - b^step",
    parameters=Parameters(
        _NAMES, tuple(Attribute(name, "float", value) for name, value in _DEFAULTS.items()), results=0
    ),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_block_per_program", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-12, "f64": 1e-28},
    flops=lambda node: 16.0 * prod(node.inputs[0].bounds),
    nbytes=lambda node: 2.0 * sum(s.nbytes for s in node.inputs[:3]) + node.inputs[3].nbytes,
    updates=(0, 1, 2),
)
