"""Kernels of the transposed grouped products: y[p] = x[p] W[experts[p]].

On CPUs pairs are sorted by expert (order.py). A program computes 32 columns of one expert for all of its pairs; packed weights of
these columns it unpacks first, once. Elsewhere, and for few pairs, a program computes some columns of one pair.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from camshaft.dtypes import as_dtype, f32, i64
from camshaft.formats.blocks import BlockFormat
from camshaft.lang import Array, Constant, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.experts import order
from camshaft.ops.experts.quantized_variants import whole_tiles
from camshaft.ops.quantized.packed.formats import BLOCK
from camshaft.ops.quantized.packed.packing import ROWS
from camshaft.ops.quantized.packed.weights import packed, weight_operands
from camshaft.ops.quantized.products.kernels import minimum_of, packed_only
from camshaft.ops.quantized.products.unpacked_kernels import unpacked_block

WIDTH, VECTORS = 16, 2
COLUMNS = WIDTH * VECTORS  # of a program: a block of packed weights
PAIRS = 6  # of a pass: 12 sums in registers
CPUS = frozenset({"simd", "c"})
# Reads the weights of columns at .. of row r as two vectors.
Weights = Callable[[Value], list[Value]]


def _for_pairs(
    k: Tracer, x: Array, out: Array, places: tuple[Array, Array], expert: Value, n: int, of: Weights
) -> None:
    """Stores the sums of x's rows with the weights of a program's columns, for all pairs of the expert."""
    starts, pairs = places
    first, last = starts[expert].to(i64), starts[expert + 1].to(i64)
    column = k.program(0) * COLUMNS
    for step in k.range((last - first + (PAIRS - 1)) // PAIRS):
        own = [first + step * PAIRS + i for i in range(PAIRS)]
        sums = [[k.var(k.splat(0.0, WIDTH)) for _ in range(VECTORS)] for _ in own]
        for r in k.range(n):
            weights = of(r)
            for place, totals in zip(own, sums, strict=True):
                value = k.splat(x[place, r], WIDTH)
                for weight, total in zip(weights, totals, strict=True):
                    total.set(k.fma(value, weight, total.value))
        for place, totals in zip(own, sums, strict=True):
            with k.when(place < last):
                _store(k, out, [t.value for t in totals], pairs[place].to(i64), column)


def _store(k: Tracer, out: Array, vectors: list[Value], pair: Value, column: Value) -> None:
    size = out.shape[1]
    for i, vector in enumerate(vectors):
        at = column + i * WIDTH
        count = None if size % COLUMNS == 0 else k.maximum(size - at, 0)
        k.store_vector(out, vector, pair, at, count=count)


def _zeros(k: Tracer, out: Array, places: tuple[Array, Array], expert: Value) -> None:
    """Zeros for the pairs whose expert is out of range."""
    starts, pairs = places
    zeros = [k.splat(0.0, WIDTH) for _ in range(VECTORS)]
    for place in k.range(starts[expert].to(i64), starts[expert + 1].to(i64)):
        _store(k, out, zeros, pairs[place].to(i64), k.program(0) * COLUMNS)


def _columns(k: Tracer, w: Array, expert: Value, column: Value) -> Weights:
    """Reads the 32 columns from `column` on of a plain matrix."""
    size = w.shape[2]

    def weights(r: Value) -> list[Value]:
        found = []
        for i in range(VECTORS):
            at = column + i * WIDTH
            count = None if size % COLUMNS == 0 else k.maximum(size - at, 0)
            found.append(k.load_vector(w, expert, r, at, width=WIDTH, count=count))
        return found

    return weights


@kernel
def plain_of_expert(k: Tracer, x: Array, w: Array, starts: Array, pairs: Array, out: Array, *, n_experts: int) -> None:
    # y[p, 32 columns] = sum_n x[p, n] w[e, n] of all pairs of expert e
    expert = k.program(1)
    with k.when(expert < n_experts):
        weights = _columns(k, w, expert, k.program(0) * COLUMNS)
        _for_pairs(k, x, out, (starts, pairs), expert, w.shape[1], weights)
    with k.when(expert == n_experts):
        _zeros(k, out, (starts, pairs), expert)


@kernel
def packed_of_expert(
    k: Tracer, x: Array, codes: Array, scales: Array, extra: Array, starts: Array, pairs: Array, out: Array,
    *, n: int, n_experts: int, block: str,
) -> None:  # fmt: skip
    # y[p, 32 columns] = sum_n x[p, n] w[e, n] of all pairs of expert e
    expert, b, weights = k.program(1), k.program(0), packed(k, codes, scales, extra, block)
    turned, panel = k.scratch(f32, BLOCK, ROWS), k.scratch(f32, n, COLUMNS)
    with k.when((expert < n_experts) & (starts[expert] < starts[expert + 1])):
        for tile in k.range(n // ROWS):

            def load(array: Array, *at: Any, tile: Value = tile) -> Value:
                return k.load_vector(array, expert * (n // ROWS) + tile, *at, 0, width=ROWS)

            for i, values in enumerate(unpacked_block(weights, load, b)):
                k.store_vector(turned, values, i, 0)
            for r in k.range(ROWS):
                for i in range(BLOCK):
                    panel[tile * ROWS + r, i] = turned[i, r]

        def of(r: Value) -> list[Value]:
            return [k.load_vector(panel, r, i * WIDTH, width=WIDTH) for i in range(VECTORS)]

        _for_pairs(k, x, out, (starts, pairs), expert, n, of)
    with k.when(expert == n_experts):
        _zeros(k, out, (starts, pairs), expert)


@kernel
def plain_of_pair(k: Tracer, x: Array, w: Array, experts: Array, out: Array, *, n_experts: int, n_slots: int) -> None:
    # y[p, 32 columns] = sum_n x[p, n] w[e, n]
    pair, column = k.program(0) * n_slots + k.program(1), k.program(2) * COLUMNS
    expert = order.expert_of(k, experts, pair, n_experts)
    totals = [k.var(k.splat(0.0, WIDTH)) for _ in range(VECTORS)]
    with k.when(expert < n_experts):
        weights = _columns(k, w, expert, column)
        for r in k.range(w.shape[1]):
            value = k.splat(x[pair, r], WIDTH)
            for weight, total in zip(weights(r), totals, strict=True):
                total.set(k.fma(value, weight, total.value))
    _store(k, out, [total.value for total in totals], pair, column)


@kernel
def packed_column(
    k: Tracer, x: Array, codes: Array, scales: Array, extra: Array, experts: Array, out: Array,
    *, n: int, n_experts: int, n_slots: int, block: str,
) -> None:  # fmt: skip
    # y[p, c] = sum_n x[p, n] w[e, n, c] of one column and pair, the lanes along n
    weights, c = packed(k, codes, scales, extra, block), k.program(0)
    pair, total = k.program(1) * n_slots + k.program(2), k.accumulator("sum")
    expert = order.expert_of(k, experts, pair, n_experts)
    inside = expert < n_experts
    first, b, j = k.select(inside, expert, 0) * n, c // BLOCK, c % BLOCK
    size = BLOCK // weights.form.groups
    for row in k.lanes(n):
        scale, low = weights.scale_at(first + row, b, j // size)
        code = weights.code_at(first + row, b, j).to(f32)
        total += k.fma(code, scale, minimum_of(weights, scale, low)) * x[pair, row]
    out[pair, c] = k.select(inside, k.lanes_sum(total), 0.0)


def _sizes(node: ops.NodeSpec) -> tuple[int, int, int]:
    """The number of experts, their rows and columns."""
    n_experts, n, columns = node.inputs[1].bounds
    return n_experts, n, columns


def _weights(node: ops.NodeSpec) -> tuple[ops.Operand, ...]:
    return weight_operands(node) if isinstance(node.inputs[1].dtype, BlockFormat) else (ops.read(1),)


def _build_sorted(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    n_experts, n, columns = _sizes(node)
    scratch = order.scratch_of(node, order.rows_of(node), PAIRS)
    arrays = (
        ops.scratch(2, "read"), *_weights(node), ops.scratch(0, "read"), ops.scratch(1, "read"), order.out_of(node)
    )  # fmt: skip
    constants: dict[str, Constant] = {"n_experts": n_experts}
    is_packed = isinstance(node.inputs[1].dtype, BlockFormat)
    if is_packed:
        constants |= {"n": n, "block": node.inputs[1].dtype.name}
    grid = ops.Cells(columns, COLUMNS), ops.Cells(n_experts + 1)
    launch = ops.Launch(packed_of_expert if is_packed else plain_of_expert, arrays, grid, constants)
    return ops.Build((*order.sorting(node, order.parts_of(node)), launch), scratch)


def _build_pairs(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    (tokens, n_slots), (n_experts, _, columns) = node.inputs[-1].shape, _sizes(node)
    arrays = (*order.parts_of(node), ops.read(1), order.experts_of(node), order.out_of(node))
    grid = ops.Cells(tokens), ops.Cells(n_slots), ops.Cells(columns, COLUMNS)
    constants = {"n_experts": n_experts, "n_slots": node.inputs[-1].bounds[1]}
    return ops.Build((ops.Launch(plain_of_pair, arrays, grid, constants),))


def _build_column(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    (tokens, n_slots), (n_experts, n, columns) = node.inputs[-1].shape, _sizes(node)
    arrays = (*order.parts_of(node), *weight_operands(node), order.experts_of(node), order.out_of(node))
    grid = ops.Cells(columns), ops.Cells(tokens), ops.Cells(n_slots)
    constants: dict[str, Constant] = {"n": n, "n_experts": n_experts, "n_slots": node.inputs[-1].bounds[1]}
    launch = ops.Launch(packed_column, arrays, grid, {**constants, "block": node.inputs[1].dtype.name})
    return ops.Build((launch,))


def _matrix(node: ops.NodeSpec) -> float:
    return float(prod(node.inputs[1].bounds[1:]))


def _sorted_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Of one Emerald Rapids core: a pass of 6 pairs in 0.1 ns a weight, 0.5 ns to unpack and turn one."""
    pairs, n_experts = order.n_pairs(node), node.inputs[1].bounds[0]
    chosen = min(pairs, n_experts)
    passes = max(chosen, pairs / PAIRS + 0.5 * chosen)
    unpacked = 0.5 * chosen if isinstance(node.inputs[1].dtype, BlockFormat) else 0.0
    return (0.1 * passes + unpacked) * _matrix(node) + 0.3 * pairs * node.inputs[0].bounds[-1] + 2000.0


def _pairs_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    return 0.05 * order.n_pairs(node) * _matrix(node) * as_dtype(node.inputs[1].dtype).nbytes


def _column_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    return 0.5 * order.n_pairs(node) * _matrix(node)


PLAIN_VARIANTS = (
    ops.KernelVariant("sorted", CPUS, _build_sorted, cost=_sorted_cost),
    ops.KernelVariant("pairs", ops.EVERYWHERE, _build_pairs, cost=_pairs_cost),
)
PACKED_VARIANTS = (
    ops.KernelVariant("sorted", CPUS, _build_sorted, whole_tiles, _sorted_cost),
    ops.KernelVariant("column", ops.EVERYWHERE, _build_column, packed_only, _column_cost),
)
