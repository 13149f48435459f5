"""matmul_grouped: y[t, s] = x[t] W[experts[t, s]]^T, one matrix of a plain stack [n_experts, n, k] per (token, slot).

As quantized_matmul_grouped (grouped.py), for stacks of f32, f16 and bf16. Sums are in f32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype, bf16, f16, f32, i32, i64
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, Value, Variable, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.experts import grouped, order
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec

NAME = "matmul_grouped"
FLOATS = (f32, f16, bf16)
# Rows of W and pairs of a program: 16 sums of a vector each, from 8 loads. For one pair 8 rows are 8 chains of sums.
ROWS, PAIRS, ROWS_OF_PAIR = 4, 4, 8


@kernel
def plain_of_pair(
    k: Tracer, x: Array, w: Array, experts: Array, out: Array, *, n: int, n_slots: int, per_token: bool, rows: int
) -> None:
    # y[p, rows] of one pair per program, the lanes along k
    n_experts, _, depth = w.shape
    token, first = k.program(0), k.program(2) * rows
    pair = token * n_slots + k.program(1)
    expert = order.expert_of(k, experts, pair, n_experts)
    inside = expert < n_experts
    matrix, given = k.select(inside, expert, 0), token if per_token else pair
    sums = _sums(k, x, [given], w, matrix, _rows(k, first, rows, n), depth)
    for r, (total,) in enumerate(sums):
        _store(k, out, k.select(inside, k.lanes_sum(total), 0.0), pair, first + r, n if n % rows else None)


@kernel
def plain_of_expert(
    k: Tracer, x: Array, w: Array, starts: Array, pairs: Array, out: Array, *, n: int, rows: int, columns: int
) -> None:
    # y[p, rows] of all pairs of one expert per program, `columns` pairs at a time; group n_experts gets zeros
    n_experts, _, depth = w.shape
    first, expert = k.program(0) * rows, k.program(1)
    begin, end = starts[expert].to(i64), starts[expert + 1].to(i64)
    inside, matrix = expert < n_experts, k.minimum(expert, n_experts - 1)
    for step in k.range((end - begin + (columns - 1)) // columns):
        places = [begin + step * columns + c for c in range(columns)]
        sums = _sums(k, x, places, w, matrix, _rows(k, first, rows, n), depth)
        for c, place in enumerate(places):
            totals = [k.select(inside, k.lanes_sum(row[c]), 0.0) for row in sums]
            with k.when(place < end):
                for r, total in enumerate(totals):
                    _store(k, out, total, pairs[place].to(i64), first + r, n if n % rows else None)


def _rows(k: Tracer, first: Value, count: int, n: int) -> list[Value]:
    return [k.minimum(first + r, n - 1) if n % count else first + r for r in range(count)]


def _sums(
    k: Tracer, x: Array, given: Sequence[Value], w: Array, expert: Value, rows: Sequence[Value], depth: int
) -> list[list[Variable]]:
    """Returns each row's sums per lane for the rows `given` of x."""
    sums = [[k.accumulator("sum") for _ in given] for _ in rows]
    for c in k.lanes(depth):
        values = [x[place, c] for place in given]
        for row, totals in zip(rows, sums, strict=True):
            weight = w[expert, row, c]
            for value, total in zip(values, totals, strict=True):
                total.set(k.fma(weight, value, total.value))
    return sums


def _store(k: Tracer, out: Array, total: Value, pair: Value, row: Value, limit: int | None) -> None:
    if limit is None:
        out[pair, row] = total
        return
    with k.when(row < limit):
        out[pair, row] = total


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    y = grouped.check(NAME, specs, FLOATS)
    x, w, _ = specs
    ops.expect(x.is_plain, NAME, x, "a plain x")
    ops.expect(w.is_plain and w.dtype in FLOATS, NAME, w, "w of f32, f16 or bf16")
    ops.expect(x.dtype in (f32, w.dtype), NAME, specs[:2], "x of f32, or of w's dtype")
    return (y,)


def _build_pairs(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    (tokens, n_slots), n = node.inputs[-1].shape, node.inputs[1].bounds[1]
    arrays = *order.parts_of(node), ops.read(1), order.experts_of(node), order.out_of(node)
    grid = ops.Cells(tokens), ops.Cells(n_slots), ops.Cells(n, ROWS_OF_PAIR)
    constants = {"n": n, **order.by_slot(node), "rows": ROWS_OF_PAIR}
    return ops.Build((ops.Launch(plain_of_pair, arrays, grid, constants),))


def _build_sorted(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    n_experts, n, _ = node.inputs[1].bounds
    arrays = ops.scratch(2, "read"), ops.read(1), ops.scratch(0, "read"), ops.scratch(1, "read"), order.out_of(node)
    grid = ops.Cells(n, ROWS), ops.Cells(n_experts + 1)
    launch = ops.Launch(plain_of_expert, arrays, grid, {"n": n, "rows": ROWS, "columns": PAIRS})
    scratch = order.scratch_of(node, order.rows_of(node), PAIRS)
    return ops.Build((*order.sorting(node, order.parts_of(node)), launch), scratch)


def _products(node: ops.NodeSpec) -> tuple[float, float]:
    """Returns the weights of a matrix in bytes, and the multiply-adds."""
    w = node.inputs[1]
    weights = float(prod(w.bounds[1:]))
    return weights * as_dtype(w.dtype).nbytes, weights * order.n_pairs(node)


def _pairs_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Reads of 20 GB/s."""
    return 0.05 * order.n_pairs(node) * _products(node)[0]


def _sorted_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    nbytes, products = _products(node)
    pairs, n_experts = order.n_pairs(node), node.inputs[1].bounds[0]
    gather = pairs * (0.2 * node.inputs[0].bounds[-1] + 0.1 * n_experts)
    return max(0.05 * min(pairs, n_experts) * nbytes, 0.03 * products) + gather + 2000.0


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(8)
    for dtype, x_shape, stack, slots in (
        (f32, (1, 33), (4, 9, 33), 2),
        (f32, (9, 2, 64), (3, 16, 64), 2),
        (f16, (5, 35), (3, 17, 35), 3),
        (bf16, (5, 1, 35), (3, 17, 35), 1),
    ):
        tokens = x_shape[0]
        experts = np.array([rng.permutation(stack[0])[:slots] for _ in range(tokens)], np.int32)
        if tokens > 2:
            experts[1, 0], experts[2, -1] = -1, stack[0]
        x = rng.normal(size=x_shape).astype(f32.numpy if dtype is bf16 else dtype.numpy)
        w = rng.normal(size=stack).astype(dtype.numpy)
        sample = ops.Sample(f"{dtype.name} {x_shape} of {stack}", (x, w, experts))
        yield sample
        if tokens == 9:
            yield partly_active(sample, 7, fixed=(1,))


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, w, experts = TensorSpec((2, 64), f32), TensorSpec((4, 16, 64), f16), TensorSpec((2, 3), i32)
    yield ops.ErrorSample((x, w), {}, "wanted x")
    yield ops.ErrorSample((x, TensorSpec((4, 16, 64), i32), experts), {}, "wanted w of f32, f16 or bf16")
    yield ops.ErrorSample((TensorSpec((2, 64), bf16), w, experts), {}, "wanted x of f32, or of w's dtype")
    yield ops.ErrorSample((x, TensorSpec((4, Extent("n", 16), 64), f16), experts), {}, "wanted w")


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    return (grouped.grouped(*inputs),)


def _decompose(f: Any, x: Any, w: Any, experts: Any) -> Any:
    return grouped.products(f, x, w, experts)


def _vjp(f: Any, dy: Any, y: Any, x: Any, w: Any, experts: Any) -> Any:
    """dx = dy W of each pair, summed over a token's slots where x has a row per token; dw of each expert over its pairs."""

    def of_x() -> Any:
        made = f.matmul_grouped_transposed(dy, w, experts)
        return f.cast(f.sum(made, axes=1) if len(x.shape) == 2 else made, to=x.dtype.name)

    def of_w() -> Any:
        made = f.matmul_grouped_weights(f.cast(x, to="f32"), dy, experts, n_experts=w.shape[0])
        return f.cast(made, to=w.dtype.name)

    return of_x, of_w, None


OP = ops.Op(
    name=NAME,
    formula="y[t, s, n] = sum_k x[t, (s,) k] w[experts[t, s], n, k]",
    parameters=Parameters("x w experts"),
    infer=_infer,
    reference=_reference,
    variants=(
        ops.KernelVariant("pairs", ops.EVERYWHERE, _build_pairs, cost=_pairs_cost),
        ops.KernelVariant("sorted", ops.EVERYWHERE, _build_sorted, cost=_sorted_cost),
    ),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-12},
    flops=grouped.flops,
    nbytes=grouped.nbytes,
    workload=grouped.workload,
    decompose=_decompose,
    vjp=_vjp,
)
