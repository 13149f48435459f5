"""uniform: random numbers from 0 to 1, both excluded, from seeds: u = (h + 1/2) / 2^23 of the hash h of (seed, i).

The random bits of (seed, step, index), in kernels and in NumPy, serve sample and dropout too. Equal seeds give equal numbers on
every device. They are independent of those by which sample draws with the same seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from camshaft.dtypes import f32, u32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.gradient import FROM_INTEGERS
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

Word = TypeVar("Word", Value, np.ndarray[Any, Any])

PARAMETERS = Parameters("seed", (Attribute("n", "int", 1),))
# sample hashes the indexes of tokens, which are below it.
_FIRST = 1 << 31
# Half a step more fits the 24 bits of an f32.
_BITS = 23


@kernel
def row_of_numbers(k: Tracer, seed: Array, out: Array, *, n: int) -> None:
    # y[r, i] = (hash(seed[r], 2^31 + i) / 2^9 + 1/2) / 2^23
    row = k.program(0)
    first, second = keys(seed[row, 0], seed[row, 1], seed[row, 2])
    for i in k.lanes(n):
        out[row, i] = number(i, first, second)


def number(i: Value, first: Value, second: Value) -> Value:
    """Number i, f32, of the seed whose `keys` are given."""
    bits = noise(i.to(u32) + _FIRST, first, second) >> (32 - _BITS)
    return (bits.to(f32) + 0.5) * 2.0**-_BITS


def drawn(seed: ops.Array, n: int) -> ops.Array:
    """The numbers of one seed (low 32 bits, high 32 bits, step), in float64 NumPy."""
    low, high, step = (seed[i : i + 1].astype(np.uint32) for i in range(3))
    bits = noise(np.arange(n, dtype=np.uint32) + np.uint32(_FIRST), *keys(low, high, step)) >> (32 - _BITS)
    found: ops.Array = (bits.astype(np.float32) + np.float32(0.5)).astype(np.float64) * 2.0**-_BITS
    return found


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1 and set(attrs) <= {"n"}, "uniform", (*specs, *attrs), "seed [R, 3] and n")
    (seed,), n = specs, attrs.get("n", 1)
    fits = seed.is_plain and seed.dtype == u32 and len(seed.shape) == 2 and seed.shape[1] == 3 and 0 not in seed.bounds
    ops.expect(fits, "uniform", seed, "seed of u32 [R, 3]")
    fits = isinstance(n, int) and not isinstance(n, bool) and 1 <= n <= _FIRST
    ops.expect(fits, "uniform", f"n {n!r}", f"n from 1 to {_FIRST}")
    return (TensorSpec((seed.shape[0], n), f32),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    return (np.array([drawn(seed, attrs.get("n", 1)) for seed in inputs[0]]),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    (seed,), (out,) = node.inputs, node.outputs
    arrays = ops.read(0), ops.write(0)
    return ops.Build((ops.Launch(row_of_numbers, arrays, (ops.Cells(seed.shape[0]),), {"n": out.bounds[1]}),))


def _samples() -> Iterable[ops.Sample]:
    seeds = np.random.default_rng(7).integers(0, 2**32, (16, 3), np.uint32)
    yield ops.Sample("1 each", (seeds,))
    for n in (15, 33):
        yield ops.Sample(f"{n} each", (seeds[:3],), {"n": n})
    yield partly_active(ops.Sample("7 of 16", (seeds,), {"n": 2}), 7, extent="rows")


def _error_samples() -> Iterable[ops.ErrorSample]:
    yield ops.ErrorSample((TensorSpec((2, 2), u32),), {}, "wanted seed of u32")
    yield ops.ErrorSample((TensorSpec((2, 3), f32),), {}, "wanted seed of u32")
    yield ops.ErrorSample((TensorSpec((2, 3), u32),), {"n": 0}, "wanted n from 1")
    yield ops.ErrorSample((TensorSpec((2, 3), u32),), {"size": 3}, "wanted seed")


OP = ops.Op(
    name="uniform",
    vjp=FROM_INTEGERS,
    formula="y[r, i] = a random number between 0 and 1 from seed[r] and i",
    parameters=PARAMETERS,
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 0.0},
    flops=lambda node: 20.0 * np.prod(node.outputs[0].bounds),
)


def mix(x: Word) -> Word:
    """Hashes a 32-bit word bijectively (xorshift and multiply, constants of Wellons' Hash Prospector)."""
    x = x ^ (x >> 16)
    x = x * 0x21F0AAAD
    x = x ^ (x >> 15)
    x = x * 0x735A2D97
    y: Word = x ^ (x >> 15)
    return y


def keys(low: Word, high: Word, step: Word) -> tuple[Word, Word]:
    """Returns two 32-bit keys of (seed, step)."""
    return mix(mix(mix(low) ^ high) ^ step), mix(mix(mix(step ^ 0x9E3779B9) ^ low) ^ high)


def noise(index: Word, first: Word, second: Word) -> Word:
    """Returns 32 random bits for an index."""
    return mix(mix(index ^ first) + second)


def exponential(k: Tracer, bits: Value) -> Value:
    """-ln(1 - v) for v = (bits + 1/2) / 2^32, precise near 0: ln(u) v / (u - 1), u = 1 - v rounded (Goldberg's log1p)."""
    v = k.minimum((bits.to(f32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    u = 1.0 - v
    tiny = u == 1.0
    return k.select(tiny, v, k.log(u) * v / k.select(tiny, -1.0, u - 1.0))
