"""matmul_grouped_weights: dw[e, n, k] = sum of dy[t, s, n] x[t, (s,) k] over the pairs (t, s) of expert e, the gradient of
matmul_grouped by its stack. An expert that no pair chooses gets zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import f32, i32, i64
from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE
from camshaft.ops.experts import order
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

NAME = "matmul_grouped_weights"
# Rows of dw and vectors of columns that a program computes: 12 sums in registers.
ROWS, WIDTH, VECTORS = 6, 16, 2
COLUMNS = WIDTH * VECTORS


@kernel
def tile_of_expert(
    k: Tracer, x: Array, dy: Array, starts: Array, pairs: Array, out: Array, *, n_slots: int, per_token: bool
) -> None:
    # dw[e, 6 rows, 32 columns] = sum over pairs of e of dy[p, rows] x[p, columns]
    expert, first, column = k.program(0), k.program(1) * ROWS, k.program(2) * COLUMNS
    n, size = out.shape[1:]
    rows = [k.minimum(first + r, n - 1) for r in range(min(ROWS, n))]
    at = [column + i * WIDTH for i in range(VECTORS)]
    counts = [None if size % COLUMNS == 0 else k.maximum(size - start, 0) for start in at]
    totals = [[k.var(k.splat(0.0, WIDTH)) for _ in at] for _ in rows]
    for place in k.range(starts[expert].to(i64), starts[expert + 1].to(i64)):
        pair = pairs[place].to(i64)
        source = pair // n_slots if per_token else pair
        values = [k.load_vector(x, source, i, width=WIDTH, count=c) for i, c in zip(at, counts, strict=True)]
        for row, sums in zip(rows, totals, strict=True):
            factor = k.splat(dy[pair, row], WIDTH)
            for value, total in zip(values, sums, strict=True):
                total.set(k.fma(factor, value, total.value))
    for row, sums in zip(rows, totals, strict=True):
        for i, c, total in zip(at, counts, sums, strict=True):
            k.store_vector(out, total.value, expert, row, i, count=c)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 3, NAME, specs, "x [T, k] or [T, S, k], dy [T, S, n] and experts [T, S]")
    (x, dy, experts), n_experts = specs, attrs.get("n_experts")
    good = type(n_experts) is int and n_experts > 0
    ops.expect(good, NAME, f"n_experts {n_experts!r}", "n_experts, an integer above 0")
    assert isinstance(n_experts, int)
    fits = experts.is_plain and experts.dtype == i32 and len(experts.shape) == 2 and 0 not in experts.bounds
    ops.expect(fits, NAME, experts, "experts of i32 [T, S], no axis empty")
    rows = ((experts.shape[0],), experts.shape)
    for spec, name, wanted in ((x, "x", rows), (dy, "dy", rows[1:])):
        fits = spec.is_plain and spec.dtype == f32 and spec.shape[:-1] in wanted and 0 not in spec.bounds
        fits = fits and all(isinstance(d, int) for d in spec.shape)
        ops.expect(fits, NAME, spec, f"{name} of f32, a row for each of {list(experts.bounds)}, of fixed sizes")
    return (TensorSpec((n_experts, dy.shape[-1], x.shape[-1]), f32),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, dy, experts = inputs
    made = np.zeros((attrs["n_experts"], dy.shape[-1], x.shape[-1]))
    for t, s in np.ndindex(*experts.shape):
        if 0 <= experts[t, s] < len(made):
            made[experts[t, s]] += np.outer(dy[t, s].astype(np.float64), x[t] if x.ndim == 2 else x[t, s])
    return (made,)


def _decompose(f: Any, x: Any, dy: Any, experts: Any, *, n_experts: int) -> Any:
    """A product with the rows of each expert's pairs, those of others at zero."""
    pairs, n, depth = prod(experts.shape), dy.shape[-1], x.shape[-1]
    if len(x.shape) == 2:
        x = x.reshape((x.shape[0], 1, depth)) * np.ones((1, experts.shape[1], 1), np.float32)
    own = f.equal(experts.reshape((1, pairs, 1)), np.arange(n_experts, dtype=np.int32).reshape(-1, 1, 1))
    rows = f.where(own, dy.reshape((1, pairs, n)), 0.0)
    return f.matmul(f.transpose(rows, axes=(0, 2, 1)), x.reshape((1, pairs, depth)))


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, _, experts = node.inputs
    n_experts, n, depth = node.outputs[0].bounds
    n_slots, pairs = experts.bounds[1], order.n_pairs(node)
    sizes = {"n_experts": n_experts, "n_slots": n_slots, "bound": pairs // n_slots}
    arrays = order.experts_of(node), ops.scratch(0, "write"), ops.scratch(1, "write")
    sort = ops.Launch(order.sort_pairs, arrays, (ops.Cells(n_experts + 1),), sizes)
    flat = ops.read(0, shape=(prod(x.bounds[:-1]), depth)), ops.read(1, shape=(pairs, n))
    places = ops.scratch(0, "read"), ops.scratch(1, "read")
    grid = ops.Cells(n_experts), ops.Cells(n, ROWS), ops.Cells(depth, COLUMNS)
    launch = ops.Launch(tile_of_expert, (*flat, *places, ops.write(0)), grid, order.by_slot(node))
    return ops.Build((sort, launch), (TensorSpec((n_experts + 2,), i32), TensorSpec((pairs,), i32)))


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(19)
    for tokens, slots, n, depth, n_experts, per_token in (
        (1, 2, 3, 33, 4, True),
        (19, 2, 17, 40, 3, False),
        (9, 3, 8, 16, 5, True),
    ):
        experts = np.array([rng.permutation(n_experts)[:slots] for _ in range(tokens)], np.int32)
        if tokens > 2:
            experts[1, 0], experts[2, -1] = -1, n_experts
        x = rng.normal(size=(tokens, depth) if per_token else (tokens, slots, depth)).astype(np.float32)
        dy = rng.normal(size=(tokens, slots, n)).astype(np.float32)
        yield ops.Sample(f"{tokens}x{slots}, {n}x{depth} of {n_experts}", (x, dy, experts), {"n_experts": n_experts})


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, dy, experts = TensorSpec((2, 8), f32), TensorSpec((2, 3, 4), f32), TensorSpec((2, 3), i32)
    yield ops.ErrorSample((x, dy), {"n_experts": 2}, "wanted x")
    yield ops.ErrorSample((x, dy, experts), {"n_experts": 0}, "wanted n_experts")
    yield ops.ErrorSample((TensorSpec((3, 8), f32), dy, experts), {"n_experts": 2}, "wanted x of f32")
    yield ops.ErrorSample((x, TensorSpec((2, 4), f32), experts), {"n_experts": 2}, "wanted dy of f32")
    yield ops.ErrorSample((x, dy, TensorSpec((2, 3), f32)), {"n_experts": 2}, "wanted experts of i32")


def _vjp(f: Any, dw: Any, y: Any, x: Any, dy: Any, experts: Any, n_experts: int) -> Any:
    def of_x() -> Any:
        found = f.matmul_grouped_transposed(dy, dw, experts)
        return f.sum(found, axes=1) if len(x.shape) == 2 else found

    return of_x, lambda: f.matmul_grouped(x, dw, experts), None


OP = ops.Op(
    name=NAME,
    formula="dw[e, n, k] = sum of dy[t, s, n] x[t, (s,) k] over the (t, s) with experts[t, s] = e",
    parameters=Parameters("x dy experts", (Attribute("n_experts", "int"),)),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("tiles", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance=TO_TOLERANCE | {"f32": 1e-12},
    flops=lambda node: 2.0 * order.n_pairs(node) * float(prod(node.outputs[0].bounds[1:])),
    decompose=_decompose,
    vjp=_vjp,
)
