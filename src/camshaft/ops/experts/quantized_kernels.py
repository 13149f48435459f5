"""Kernels of quantized_matmul_grouped: y[p] = x[p] W[experts[p]]^T, with packed stacks of experts.

Few tokens: a program computes some rows of one pair's product, so that only the chosen experts are read. Many: pairs are sorted
by expert (order.py), and a program computes some rows of one expert for all of its pairs, so that they are read once.
"""

from __future__ import annotations

from math import prod
from typing import Any

from camshaft.dtypes import f32, i8, i64
from camshaft.lang import Constant, Tracer, Value, Variable, kernel
from camshaft.ops import op as ops
from camshaft.ops.experts import order
from camshaft.ops.kernels.launch import has_threads
from camshaft.ops.quantized import kernels, matmul
from camshaft.ops.quantized.operands import Rows, packed, weight_operands
from camshaft.ops.quantized.packing import BLOCK, ROWS

# Programs of one expert follow each other, because they read the same rows of x; but workers get contiguous programs, and
# experts have different numbers of pairs. So the parts are divided into shares of at least LEAST_PARTS, each over all experts.
MOST_SHARES, LEAST_PARTS = 16, 8


class ExpertRows(Rows):
    """Part `part` of the rows of one expert in a stack of n rows each, a multiple of 16."""

    def __init__(self, k: Tracer, count: int, n: int, part: Value, expert: Value) -> None:
        super().__init__(k, count, n, part)
        self.tile = expert * (n // ROWS) + self.tile


class Consecutive:
    """`columns` rows of x from row `first` on: the interface of Tokens that totals use."""

    def __init__(self, first: Value, columns: int) -> None:
        self.first, self.places = first, [first + c for c in range(columns)]

    def along(self, per_token: int, at: Value) -> list[Value]:
        """Indexes of element `at` of each row in a flat array with `per_token` elements per row."""
        start = self.first * per_token + at
        return [start + c * per_token for c in range(len(self.places))]


def _totals(x: Any, weights: Any, mine: Rows, rows: Consecutive, blocks: int, ahead: int) -> list[Variable]:
    return kernels.totals_of(x, weights, mine, rows, blocks, ahead)  # type: ignore[arg-type]


@kernel
def product_of_pair(
    k: Tracer, *arguments: Any, n: int, n_experts: int, n_slots: int, per_token: bool, blocks: int, rows: int, block: str,
    ahead: int,
) -> None:  # fmt: skip
    # y[p, rows] of one pair per program
    count = 1 if arguments[0].dtype == f32 else 3
    x, (codes, scales, extra, experts, out) = arguments[:count], arguments[count : count + 5]
    weights = packed(k, codes, scales, extra, block)
    token, part = k.program(0), k.program(2)
    pair = token * n_slots + k.program(1)
    expert = order.expert_of(k, experts, pair, n_experts)
    with k.when(expert < n_experts):
        mine = ExpertRows(k, rows, n, part, expert)
        row = Consecutive(token if per_token else pair, 1)
        (total,) = _totals(x, weights, mine, row, blocks, ahead)
        mine.store(out, total, pair)
    with k.when(expert == n_experts):
        any_rows = Rows(k, rows, n, part)
        any_rows.store(out, k.var(any_rows.spread(0.0)), pair)


@kernel
def product_of_expert(
    k: Tracer, *arguments: Any, n: int, n_experts: int, blocks: int, rows: int, columns: int, block: str, share: int
) -> None:
    # y[p, rows] of all pairs of one expert per program, `columns` pairs at a time; group n_experts gets zeros.
    # Programs: share of the parts, expert, part of the share
    count = 1 if arguments[0].dtype == f32 else 3
    x, (codes, scales, extra, starts, pairs, out) = arguments[:count], arguments[count : count + 6]
    weights = packed(k, codes, scales, extra, block)
    part, expert = k.program(0) * share + k.program(2), k.program(1)
    first, last = starts[expert].to(i64), starts[expert + 1].to(i64)
    there = part * rows < n
    with k.when(there & (expert < n_experts)):
        mine = ExpertRows(k, rows, n, part, expert)
        for step in k.range((last - first + (columns - 1)) // columns):
            some = Consecutive(first + step * columns, columns)
            for total, place in zip(_totals(x, weights, mine, some, blocks, 0), some.places, strict=True):
                with k.when(place < last):
                    mine.store(out, total, pairs[place].to(i64))
    with k.when(there & (expert == n_experts)):
        any_rows = Rows(k, rows, n, part)
        for place in k.range(first, last):
            any_rows.store(out, k.var(any_rows.spread(0.0)), pairs[place].to(i64))


@kernel
def product_row(
    k: Tracer, *arguments: Any, n: int, n_experts: int, n_slots: int, per_token: bool, blocks: int, block: str
) -> None:
    # y[p, r] per program, a block of 32 k per lane; for any lane width and any n
    count = 1 if arguments[0].dtype == f32 else 3
    x, (codes, scales, extra, experts, out) = arguments[:count], arguments[count : count + 5]
    weights = packed(k, codes, scales, extra, block)
    row, token, total = k.program(0), k.program(1), k.accumulator("sum")
    pair = token * n_slots + k.program(2)
    expert = order.expert_of(k, experts, pair, n_experts)
    inside = expert < n_experts
    place = k.select(inside, expert, 0) * n + row
    for b in k.lanes(blocks):
        for g in range(weights.form.groups):
            for term in kernels.terms_of(k, x, weights, (place, token if per_token else pair, b, g)):
                total += term
    out[pair, row] = k.select(inside, k.lanes_sum(total), 0.0)


def _flat(node: ops.NodeSpec) -> tuple[ops.Operand, ...]:
    return tuple(ops.read(0, part.name, (prod(part.shape),)) for part in node.inputs[0].parts)


def _out(node: ops.NodeSpec) -> ops.Operand:
    return ops.write(0, shape=(order.n_pairs(node), node.outputs[0].bounds[-1]))


def _experts(node: ops.NodeSpec) -> ops.Operand:
    return ops.read(2, shape=(order.n_pairs(node),))


def _sizes(node: ops.NodeSpec) -> dict[str, Constant]:
    n_experts, n, depth = node.inputs[1].bounds
    return {"n": n, "n_experts": n_experts, "blocks": depth // BLOCK, "block": node.inputs[1].dtype.name}


def is_packed(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why no variant takes weights as a file has them, or None for packed weights."""
    return kernels.packed_only(node, target)


def _whole_tiles(node: ops.NodeSpec, target: ops.Target) -> str | None:
    n = node.inputs[1].bounds[1]
    return is_packed(node, target) or (f"experts of {n} rows; wanted a multiple of {ROWS}" if n % ROWS else None)


def _rows(target: ops.Target, n: int) -> int:
    return matmul.THREADS if has_threads(target) and n % ROWS == 0 else ROWS


def _by_slot(node: ops.NodeSpec) -> dict[str, Constant]:
    return {"n_slots": node.inputs[2].bounds[1], "per_token": order.per_token(node)}


def _build_pairs(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    (tokens, n_slots), n = node.inputs[2].shape, node.inputs[1].bounds[1]
    rows = _rows(target, n)
    ahead = matmul.AHEAD if kernels.is_q8(node.inputs[0]) and rows == ROWS else 0
    constants = {**_sizes(node), **_by_slot(node), "rows": rows, "ahead": ahead}
    arrays = (*_flat(node), *weight_operands(node), _experts(node), _out(node))
    grid = ops.Cells(tokens), ops.Cells(n_slots), ops.Cells(n, rows)
    launch = ops.Launch(product_of_pair, arrays, grid, constants, lanes=rows if rows > ROWS else None)
    return ops.Build((launch,))


def _build_sorted(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    n_experts, n, _ = node.inputs[1].bounds
    rows, columns = values["rows"], values["tokens"]
    parts = -(-n // rows)
    shares = max(1, min(MOST_SHARES, parts // LEAST_PARTS))
    share = -(-parts // shares)
    constants = {**_sizes(node), "rows": rows, "columns": columns, "share": share}
    x = node.inputs[0]
    scratch = order.scratch_of(node, columns)
    sorted_x = [ops.scratch(2 + i, "read", (prod(scratch[2 + i].bounds),)) for i in range(len(x.parts))]
    places = ops.scratch(0, "read"), ops.scratch(1, "read")
    arrays = (*sorted_x, *weight_operands(node), *places, _out(node))
    grid = ops.Cells(parts, share), ops.Cells(n_experts + 1), ops.Cells(share)
    launch = ops.Launch(product_of_expert, arrays, grid, constants, lanes=rows if rows > ROWS else None)
    return ops.Build((*order.sorting(node), launch), scratch)


def _sorted_values(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    rows, tokens_of = matmul.tile_of(target)
    most = tokens_of["q8" if kernels.is_q8(node.inputs[0]) else "f32"]
    return {"rows": _rows(target, node.inputs[1].bounds[1]) if has_threads(target) else rows, "tokens": most}


def _build_row(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, (tokens, n_slots), n = node.inputs[0], node.inputs[2].shape, node.inputs[1].bounds[1]
    rows = prod(x.bounds[:-1])
    codes = ops.Operand("input", 0, "codes", (rows, x.bounds[-1]), "read", i8)
    shapes = dict(zip((part.name for part in x.parts), order.part_shapes(node), strict=True))
    others = tuple(ops.read(0, name, shape) for name, shape in shapes.items() if name != "codes")
    given = (codes, *others) if kernels.is_q8(x) else others
    arrays = (*given, *weight_operands(node), _experts(node), _out(node))
    grid = ops.Cells(n), ops.Cells(tokens), ops.Cells(n_slots)
    return ops.Build((ops.Launch(product_row, arrays, grid, {**_sizes(node), **_by_slot(node)}),))


def _weights_of_expert(node: ops.NodeSpec) -> float:
    return float(prod(node.inputs[1].bounds[1:]))


def _pairs_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    return 0.028 * order.n_pairs(node) * _weights_of_expert(node)


def _sorted_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """As tile_cost, once per expert, plus sorting and gathering."""
    pairs, n_experts = order.n_pairs(node), node.inputs[1].bounds[0]
    read = 0.028 * min(pairs, n_experts)
    gather = pairs * (0.1 * node.inputs[0].bounds[-1] + 0.1 * n_experts)
    return max(read, 0.0085 * pairs) * _weights_of_expert(node) + gather + 2000.0


def _row_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    return 0.5 * order.n_pairs(node) * _weights_of_expert(node)


_TUNABLES = ops.Tunables({"rows": (8, 16, 64), "tokens": (2, 4, 5, 6, 8, 12, 16)}, _sorted_values, _build_sorted)
VARIANTS = (
    ops.KernelVariant("pairs", ops.VECTORS, _build_pairs, _whole_tiles, _pairs_cost),
    ops.KernelVariant("sorted", ops.VECTORS, _TUNABLES.build_default, _whole_tiles, _sorted_cost, _TUNABLES),
    ops.KernelVariant("row", ops.EVERYWHERE, _build_row, is_packed, _row_cost),
)
