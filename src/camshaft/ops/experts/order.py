"""Sorts the (token, slot) pairs of a batch by their experts, and gathers the pairs' rows in that order.

Pair p = t n_slots + s is slot s of token t. A pair whose expert is out of range belongs to group n_experts, after all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from camshaft.dtypes import DType, i32, i64
from camshaft.extent import Extent
from camshaft.lang import Array, Constant, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.spec import TensorSpec


def expert_of(k: Tracer, experts: Array, pair: Value, n_experts: int) -> Value:
    """Returns a pair's expert as i64; n_experts if it is out of range."""
    found = k.gather(experts, pair)
    return k.select((found >= 0) & (found < n_experts), found, n_experts).to(i64)


@kernel
def sort_pairs(
    k: Tracer, experts: Array, starts: Array, order: Array, *active: Value, n_experts: int, n_slots: int, bound: int
) -> None:
    # program e: starts[e] = the number of pairs of lesser groups; order[starts[e] ..] = the pairs of group e, in order
    group, lanes = k.program(0), k.lane_count()
    n = active[0] * n_slots if active else k.const(bound * n_slots, i64)
    less, equal = k.accumulator("sum", i32), k.accumulator("sum", i32)
    for pair in k.lanes(n):
        expert = expert_of(k, experts, pair, n_experts)
        less += (expert < group).to(i32)
        equal += (expert == group).to(i32)
    first, count = k.lanes_sum(less), k.lanes_sum(equal)
    starts[group] = first
    with k.when(group == n_experts):
        starts[group + 1] = first + count
    place = k.var(first, i32)
    for step in k.range((n + lanes - 1) // lanes):
        pair = step * lanes + k.lane()
        inside = pair < n
        expert = expert_of(k, experts, k.select(inside, pair, 0), n_experts)
        mine = inside & (expert == group)
        one = mine.to(i32)
        before = k.lanes_scan(one, exclusive=True)
        with k.when(mine):
            k.scatter(order, pair.to(i32), (place.value + before).to(i64))
        place.set(place.value + k.lanes_sum(one))


@kernel
def gather_rows(k: Tracer, *arrays: Any, n_parts: int, n_slots: int, per_token: bool) -> None:
    # out[i] = x[order[i]] of each part of x, or x[order[i] / n_slots] if it has a row per token
    order, sources, outs = arrays[0], arrays[1 : 1 + n_parts], arrays[1 + n_parts : 1 + 2 * n_parts]
    place = k.program(0) * n_slots + k.program(1)
    row = order[place].to(i64)
    row = row // n_slots if per_token else row
    for source, out in zip(sources, outs, strict=True):
        for c in k.lanes(source.shape[1]):
            out[place, c] = source[row, c]


def n_pairs(node: ops.NodeSpec) -> int:
    """Returns the bound of the number of (token, slot) pairs; the last input has the experts."""
    return prod(node.inputs[-1].bounds)


def experts_of(node: ops.NodeSpec) -> ops.Operand:
    """Returns the operand of the experts, an element per pair."""
    return ops.read(len(node.inputs) - 1, shape=(n_pairs(node),))


def out_of(node: ops.NodeSpec) -> ops.Operand:
    """Returns the operand of y, a row per pair."""
    return ops.write(0, shape=(n_pairs(node), node.outputs[0].bounds[-1]))


def per_token(node: ops.NodeSpec) -> bool:
    """Whether input 0 has a row per token, and not one per pair."""
    return len(node.inputs[0].shape) == 2


def by_slot(node: ops.NodeSpec) -> dict[str, Constant]:
    """Returns the constants by which a kernel finds a pair, and its row of x."""
    return {"n_slots": node.inputs[-1].bounds[1], "per_token": per_token(node)}


def part_shapes(node: ops.NodeSpec) -> list[tuple[int, int]]:
    """Returns the rows and columns of each part of x."""
    x = node.inputs[0]
    rows = prod(x.bounds[:-1])
    return [(rows, prod(part.shape) // rows) for part in x.parts]


def parts_of(node: ops.NodeSpec) -> list[ops.Operand]:
    """Returns the operands of the parts of x, as rows."""
    parts = zip(node.inputs[0].parts, part_shapes(node), strict=True)
    return [ops.read(0, part.name, shape) for part, shape in parts]


def scratch_of(node: ops.NodeSpec, rows: Iterable[tuple[int, DType]], spare: int) -> tuple[TensorSpec, ...]:
    """Returns the scratch of `sorting`: starts, order, and sorted rows of `columns` columns, `spare` more than pairs."""
    pairs, n_experts = n_pairs(node), node.inputs[1].bounds[0]
    made = (TensorSpec((pairs + spare, columns), dtype) for columns, dtype in rows)
    return TensorSpec((n_experts + 2,), i32), TensorSpec((pairs,), i32), *made


def rows_of(node: ops.NodeSpec) -> list[tuple[int, DType]]:
    """Returns the columns and the dtype of each part of x, for `scratch_of`."""
    parts = zip(node.inputs[0].parts, part_shapes(node), strict=True)
    return [(columns, part.dtype) for part, (_, columns) in parts]


def sorting(node: ops.NodeSpec, sources: Sequence[ops.Operand]) -> tuple[ops.Launch, ops.Launch]:
    """Returns the launches that fill the first scratch tensors; `sources` are the rows that they gather."""
    tokens, n_slots = node.inputs[-1].shape
    assert isinstance(n_slots, int)
    n_experts, pairs = node.inputs[1].bounds[0], n_pairs(node)
    extents = (tokens,) if isinstance(tokens, Extent) else ()
    arrays = experts_of(node), ops.scratch(0, "write"), ops.scratch(1, "write")
    sizes: dict[str, Constant] = {"n_experts": n_experts, "n_slots": n_slots, "bound": pairs // n_slots}
    sort = ops.Launch(sort_pairs, arrays, (ops.Cells(n_experts + 1),), sizes, extents)
    outs = [ops.scratch(2 + i, "write") for i in range(len(sources))]
    constants: dict[str, Constant] = {"n_parts": len(sources), **by_slot(node)}
    grid = ops.Cells(tokens), ops.Cells(n_slots)
    return sort, ops.Launch(gather_rows, (ops.scratch(1, "read"), *sources, *outs), grid, constants)
