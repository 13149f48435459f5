"""dropout: y = x / (1 - p) with probability 1 - p, else 0 (Srivastava et al., 2014), by random numbers from a seed.

Element i of the flat x stays where number i of `uniform` with the same seed is at least p. So equal seeds drop the same elements
on every device and with any number of threads, and the gradient computes the mask again instead of storing it. As for `uniform`,
the seed is three numbers: the low 32 bits, the high 32 bits and a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, f32, f64, u32
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import FLOATS, expect_tensor, rounded, widened
from camshaft.ops.elementwise.frame import TOLERANCE
from camshaft.ops.kernels.blocks import BLOCK
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.sample.uniform import drawn, keys, number
from camshaft.ops.spec import TensorSpec

_MOST = 1 << 31  # elements: the numbers that uniform has for one seed


@kernel
def one_block_per_program(k: Tracer, x: Array, seed: Array, out: Array, *, n: int, block: int, p: float) -> None:
    # y[i] = x[i] / (1 - p) where u[i] >= p, else 0
    first = k.program(0) * block
    low, high = keys(seed[0], seed[1], seed[2])
    dtype = ir.arithmetic_dtype(x.dtype)
    for i in k.lanes(first, k.minimum(first + block, n)):
        stays = number(i, low, high) >= p
        out[i] = k.select(stays, x[i] * k.const(1 / (1 - p), dtype), k.const(0.0, dtype))


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2 and set(attrs) <= {"p"}, "dropout", (*specs, *attrs), "x, seed [3] and p")
    x, seed = specs
    expect_tensor("dropout", x, FLOATS)
    fits = not any(isinstance(d, Extent) for d in x.shape) and prod(x.bounds) <= _MOST
    ops.expect(fits, "dropout", x, f"at most {_MOST} elements and no Extent, as an element's place gives its number")
    ops.expect(seed == TensorSpec((3,), u32), "dropout", seed, "a seed of u32 [3]")
    p = attrs.get("p", 0.5)
    ops.expect(0 <= p < 1, "dropout", f"p {p!r}", "p from 0 to below 1")
    return (x,)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, seed = inputs
    p = attrs.get("p", 0.5)
    stays = drawn(seed, x.size).reshape(x.shape) >= np.float32(p)
    return (rounded(np.where(stays, widened(x) / (1 - p), 0), as_dtype(x.dtype)),)


def _decompose(f: Any, x: Any, seed: Any, p: float = 0.5) -> Any:
    numbers = f.uniform(seed.reshape((1, 3)), n=prod(x.shape)).reshape(x.shape)
    wide = x if x.dtype in (f32, f64) else f.cast(x, to="f32")
    y = f.where(f.greater_equal(numbers, p), wide * (1 / (1 - p)), 0)
    return y if y.dtype == x.dtype else f.cast(y, to=x.dtype.name)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    n = prod(node.inputs[0].bounds)
    arrays = ops.read(0, shape=(n,)), ops.read(1), ops.write(0, shape=(n,))
    constants = {"n": n, "block": BLOCK, "p": float(node.attrs.get("p", 0.5))}
    return ops.Build((ops.Launch(one_block_per_program, arrays, (ops.Cells(n, per=BLOCK),), constants, sizes=("n",)),))


def _sample(shape: tuple[int, ...], dtype: DType, p: float) -> ops.Sample:
    rng = np.random.default_rng(prod(shape))
    x, seed = rng.normal(size=shape).astype(dtype.numpy), rng.integers(0, 2**32, 3, np.uint32)
    return ops.Sample(f"{list(shape)} of {dtype.name}, {p}", (x, seed), {"p": p})


def _samples() -> Iterable[ops.Sample]:
    yield _sample((3, 5, 11), f32, 0.1)
    yield _sample((BLOCK + 17,), f32, 0.5)
    yield _sample((2, 9), bf16, 0.75)
    yield _sample((7,), f64, 0.25)
    yield _sample((1, 16), f32, 0.0)


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, seed = TensorSpec((3, 8), f32), TensorSpec((3,), u32)
    yield ops.ErrorSample((x,), {}, "wanted x, seed")
    yield ops.ErrorSample((x, seed), {"p": 1.0}, "wanted p from 0 to below 1")
    yield ops.ErrorSample((x, TensorSpec((1, 3), u32)), {}, "wanted a seed of u32")
    yield ops.ErrorSample((TensorSpec((Extent("n", 3), 8), f32), seed), {}, "no Extent")


OP = ops.Op(
    name="dropout",
    formula="y = x / (1 - p) where a random number from seed and the element's place is at least p, else 0",
    parameters=Parameters("x seed", (Attribute("p", "float", 0.5),)),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_block_per_program", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance=TOLERANCE,
    flops=lambda node: 20.0 * prod(node.outputs[0].bounds),
    decompose=_decompose,
    vjp=lambda f, dy, y, x, seed, p=0.5: (f.dropout(dy, seed, p=p), None),
)
