"""hadamard: the Walsh-Hadamard transform of rows, divided by sqrt(d): y = H x / sqrt(d), which is its own inverse.

H is Sylvester's matrix, H[i, j] = (-1)^(bits that i and j share): scipy.linalg.hadamard. With signs s [d], y = H (s x) / sqrt(d),
or y = s (H x) / sqrt(d) with `signs_after`, which undoes the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype, bf16, f16, f32
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE, in_f32, partly_active
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

NAME = "hadamard"
MOST = 1 << 15  # elements of a row: they fit a CPU's L2 cache
_NEAR = 16  # butterflies of this distance and more are contiguous vectors


def is_power_of_two(n: int) -> bool:
    """Whether n is 1, 2, 4, .."""
    return n > 0 and n & (n - 1) == 0


def transform(k: Tracer, x: Array, n: int) -> None:
    """Replaces scratch x [n] by H x, with a barrier after each step. The order of sums is that of the butterflies alone."""
    step = 1
    while step < n:
        if step < _NEAR:
            shift = step.bit_length()
            for pair in k.lanes(n // 2):
                i = ((pair >> (shift - 1)) << shift) | (pair & (step - 1))
                low, high = k.gather(x, i), k.gather(x, i + step)
                k.scatter(x, low + high, i)
                k.scatter(x, low - high, i + step)
        else:
            for base in k.range(0, n, 2 * step):
                for i in k.lanes(step):
                    low, high = x[base + i], x[base + step + i]
                    x[base + i] = low + high
                    x[base + step + i] = low - high
        k.barrier()
        step *= 2


@kernel
def one_row_per_program(k: Tracer, x: Array, *others: Array, dim: int, n_signs: int, signs_after: bool) -> None:
    # y = H (s x) / sqrt(d), or s (H x) / sqrt(d)
    row, signs, out = k.program(0), others[:n_signs], others[n_signs]
    buffer, scale = k.scratch(f32, dim), 1.0 / sqrt(dim)
    for c in k.lanes(dim):
        buffer[c] = x[row, c] * signs[0][c] if signs and not signs_after else x[row, c]
    k.barrier()
    transform(k, buffer, dim)
    for c in k.lanes(dim):
        out[row, c] = buffer[c] * scale * signs[0][c] if signs and signs_after else buffer[c] * scale


def rows_of(op: str, x: TensorSpec, name: str = "x") -> int:
    """Returns the length of rows. ShapeError unless x is a plain tensor of floats whose rows' length is a power of two."""
    good = x.is_plain and x.dtype in (f32, f16, bf16) and len(x.shape) >= 1 and 0 not in x.bounds
    good = good and not any(isinstance(n, Extent) for n in (*x.shape[1:], x.shape[-1]))
    wanted = (
        f"{name} of f32, f16 or bf16 [.., d] with no empty axis, d a power of two up to {MOST}, an Extent only first"
    )
    ops.expect(good, op, x, wanted)
    d = x.bounds[-1]
    ops.expect(is_power_of_two(d) and d <= MOST, op, x, wanted)
    return d


def check_signs(op: str, signs: Sequence[TensorSpec], d: int) -> None:
    """Raises ShapeError unless there are no signs, or f32 [d]."""
    good = len(signs) == 0 or (len(signs) == 1 and signs[0] == TensorSpec((d,), f32))
    ops.expect(good, op, tuple(signs), f"no signs, or signs of f32 [{d}]")


def transformed(x: ops.Array) -> ops.Array:
    """Returns H x / sqrt(d) of the last axis in float64."""
    y = x.astype(np.float64)
    d, step = y.shape[-1], 1
    while step < d:
        pairs = y.reshape(*y.shape[:-1], d // (2 * step), 2, step)
        y = np.stack([pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]], -2).reshape(y.shape)
        step *= 2
    return y / sqrt(d)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) in (1, 2), NAME, specs, "x, or x and signs")
    check_signs(NAME, specs[1:], rows_of(NAME, specs[0]))
    after = attrs.get("signs_after", False)
    ops.expect(isinstance(after, bool), NAME, f"signs_after {after!r}", "signs_after True or False")
    return (specs[0],)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, signs = inputs[0].astype(np.float64), inputs[1].astype(np.float64) if len(inputs) > 1 else 1.0
    return (transformed(x) * signs if attrs.get("signs_after") else transformed(x * signs),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x = node.inputs[0]
    rows, dim = x.shape[:-1], x.bounds[-1]
    inner = prod(x.bounds[1:-1])
    flat = prod(x.bounds[:-1]), dim
    first = rows[0] if rows and isinstance(rows[0], Extent) and inner == 1 else flat[0]
    arrays = ops.read(0, shape=flat), *(ops.read(1) for _ in node.inputs[1:]), ops.write(0, shape=flat)
    constants = {"dim": dim, "n_signs": len(node.inputs) - 1, "signs_after": bool(node.attrs.get("signs_after", False))}
    return ops.Build((ops.Launch(one_row_per_program, arrays, (ops.Cells(first),), constants),))


@in_f32
def _in_f32(f: Any, x: Any) -> Any:
    """H x / sqrt(d) by its butterflies."""
    *outer, d = x.shape
    step = 1
    while step < d:
        pairs = x.reshape((*outer, d // (2 * step), 2, step))
        low, high = pairs[..., 0:1, :], pairs[..., 1:2, :]
        x = f.concat(low + high, low - high, axis=len(outer) + 1)
        step *= 2
    return x.reshape((*outer, d)) * (1 / sqrt(d))


def _decompose(f: Any, x: Any, *signs: Any, signs_after: bool = False) -> Any:
    if not signs:
        return _in_f32(f, x)
    dtype = as_dtype(x.dtype)
    wide = f.cast(x, to="f32") if dtype != f32 else x
    y = _in_f32(f, wide) * signs[0] if signs_after else _in_f32(f, wide * signs[0])
    return f.cast(y, to=dtype.name) if dtype != f32 else y


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(41)

    def drawn(*shape: int) -> ops.Array:
        return rng.normal(size=shape).astype(np.float32)

    def signs(d: int) -> ops.Array:
        return rng.choice(np.array([-1, 1], np.float32), d)

    yield ops.Sample("rows of 64, signs", (drawn(2, 3, 64), signs(64)))
    yield ops.Sample("rows of 64, signs after", (drawn(3, 64), signs(64)), {"signs_after": True})
    yield ops.Sample("rows of 1", (drawn(3, 1),))
    yield ops.Sample("one row of 8, f16", (drawn(8).astype(f16.numpy),))
    yield ops.Sample("rows of 32, bf16", (drawn(2, 32).astype(bf16.numpy), signs(32)))
    yield partly_active(ops.Sample("3 of 5", (drawn(5, 64),)), 3)


def _error_samples() -> Iterable[ops.ErrorSample]:
    yield ops.ErrorSample((TensorSpec((2, 12), f32),), {}, "d a power of two")
    yield ops.ErrorSample((TensorSpec((2, 2 * MOST), f32),), {}, "d a power of two")
    yield ops.ErrorSample((TensorSpec((2, 16), f32), TensorSpec((8,), f32)), {}, "wanted no signs")
    yield ops.ErrorSample((), {}, "wanted x")


OP = ops.Op(
    name=NAME,
    formula="y = H x / sqrt(d), H the Walsh-Hadamard matrix; signs multiply before, or after with `signs_after`",
    parameters=Parameters("x *signs", (Attribute("signs_after", "bool", False),)),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={**TO_TOLERANCE, "f32": 1e-12},
    flops=lambda node: float(prod(node.inputs[0].bounds) * node.inputs[0].bounds[-1].bit_length()),
    decompose=_decompose,
)
