"""triangular_inverse: T = (I + A)^-1, A strictly lower.

Both by forward substitution: row i of the result is row i of B less L[i, j] times row j, for j < i. What A and L have on
and above the diagonal is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec

WIDTH = 16


@kernel
def substitute(k: Tracer, lower: Array, *rest: Array, n: int, columns: int) -> None:
    # X[i] = B[i] - sum_{j < i} L[i, j] X[j] for 16 columns; B is I where none is given
    given, out = rest[0] if len(rest) > 1 else None, rest[-1]
    matrix, start = k.program(0) * n, k.program(1) * WIDTH
    count = None if columns % WIDTH == 0 else columns - start
    for i in k.range(n):
        if given is None:
            first = k.select(k.iota(WIDTH) + start == i, k.splat(1.0, WIDTH), k.splat(0.0, WIDTH))
        else:
            first = k.load_vector(given, matrix + i, start, width=WIDTH, count=count)
        total = k.var(first)
        for j in k.range(i):
            row = k.load_vector(out, matrix + j, start, width=WIDTH, count=count)
            total.set(k.fma(k.splat(-lower[matrix + i, j], WIDTH), row, total.value))
        k.store_vector(out, total.value, matrix + i, start, count=count)


def _infer(name: str, specs: tuple[TensorSpec, ...], n_inputs: int) -> tuple[TensorSpec, ...]:
    wanted = "a of f32 [..., n, n]" if n_inputs == 1 else "l of f32 [..., n, n] and b of f32 [..., n, m]"
    ops.expect(len(specs) == n_inputs, name, specs, wanted)
    for spec in specs:
        fits = spec.is_plain and spec.dtype == f32 and len(spec.shape) >= 2
        fits = fits and all(isinstance(d, int) and d > 0 for d in spec.shape)
        ops.expect(fits, name, spec, f"{wanted}, of fixed sizes above 0")
    lower, last = specs[0].shape, specs[-1].shape
    ops.expect(lower[-1] == lower[-2], name, specs[0], wanted)
    ops.expect(last[:-1] == lower[:-1], name, specs[-1], f"b of f32 [{', '.join(map(str, lower[:-1]))}, m]")
    return (specs[-1],)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    shape, columns = node.inputs[0].bounds, node.outputs[0].bounds[-1]
    n, matrices = shape[-1], prod(shape[:-2])
    arrays = [ops.read(i, shape=(matrices * n, s.bounds[-1])) for i, s in enumerate(node.inputs)]
    arrays.append(ops.write(0, shape=(matrices * n, columns)))
    grid = ops.Cells(matrices), ops.Cells(columns, WIDTH)
    return ops.Build((ops.Launch(substitute, tuple(arrays), grid, {"n": n, "columns": columns}),))


def _lower(a: ops.Array) -> ops.Array:
    return np.asarray(np.tril(a.astype(np.float64), -1) + np.eye(a.shape[-1]))


def _inverse(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    return (np.linalg.inv(_lower(inputs[0])),)


def inverse_of(f: Any, a: Any) -> Any:
    """(I - N)^-1 = (I + N)(I + N^2)(I + N^4)... with N = -A, whose power n is 0."""
    n = a.shape[-1]
    eye = np.eye(n, dtype=np.float32)
    power = f.where(np.tril(np.ones((n, n), bool), -1), -a, 0.0)
    made, done = power + eye, 2
    while done < n:
        power = f.matmul(power, power)
        made, done = f.matmul(made, power + eye), done * 2
    return made


def _matrices(rng: np.random.Generator, shape: tuple[int, ...]) -> ops.Array:
    """Matrices whose inverse is of their size."""
    return np.asarray(rng.normal(size=shape) / shape[-1], np.float32)


def _samples(n_inputs: int) -> Iterable[ops.Sample]:
    rng = np.random.default_rng(3)
    for shape, columns in (((1, 1), 1), ((2, 17, 17), 33), ((16, 16), 5), ((2, 1, 64, 64), 16)):
        given: tuple[ops.Array, ...] = (_matrices(rng, shape),)
        if n_inputs == 2:
            given = (*given, rng.normal(size=(*shape[:-1], columns)).astype(np.float32))
        yield ops.Sample("x".join(map(str, (*shape, columns)[: None if n_inputs == 2 else -1])), given)


def _error_samples(n_inputs: int) -> Iterable[ops.ErrorSample]:
    square, others = TensorSpec((4, 4), f32), (TensorSpec((4, 3), f32),) * (n_inputs - 1)
    yield ops.ErrorSample((TensorSpec((4, 4), i32), *others), {}, "wanted . of f32")
    yield ops.ErrorSample((TensorSpec((4, 3), f32), *others), {}, "wanted . of f32")
    yield ops.ErrorSample((square, square, square), {}, "wanted . of f32")
    if n_inputs == 2:
        yield ops.ErrorSample((square, TensorSpec((5, 3), f32)), {}, "wanted b of f32")


def _op(name: str, tensors: str, formula: str, reference: Callable[..., Any], decompose: Callable[..., Any]) -> ops.Op:
    count = len(tensors.split())
    return ops.Op(
        name=name,
        formula=formula,
        parameters=Parameters(tensors),
        infer=lambda specs, attrs: _infer(name, specs, count),
        reference=reference,
        variants=(ops.KernelVariant("substitute", ops.EVERYWHERE, _build),),
        samples=lambda: _samples(count),
        error_samples=lambda: _error_samples(count),
        tolerance={"f32": 1e-12},
        flops=lambda node: float(node.inputs[0].bounds[-1] * prod(node.outputs[0].bounds)),
        decompose=decompose,
    )


OP = _op("triangular_inverse", "a", "T = (I + A)^-1, A strictly lower", _inverse, inverse_of)
