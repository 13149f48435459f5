"""Kernels of quantized_matmul_grouped: y[p] = x[p] W[experts[p]]^T, with packed stacks of experts.

Few tokens: a program computes some rows of one pair's product, so that only the chosen experts are read. Many: pairs are sorted
by expert (order.py), and a program computes some rows of one expert for all of its pairs, so that they are read once.
"""

from __future__ import annotations

from typing import Any

from camshaft.dtypes import f32, i64
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops.experts import order
from camshaft.ops.quantized.operands import Consecutive, Rows
from camshaft.ops.quantized.packed.packing import ROWS
from camshaft.ops.quantized.packed.weights import Packed, packed
from camshaft.ops.quantized.products import gemv, kernels


class ExpertRows(Rows):
    """Part `part` of the rows of one expert in a stack of n rows each, a multiple of 16."""

    def __init__(self, k: Tracer, count: int, n: int, part: Value, expert: Value) -> None:
        super().__init__(k, count, n, part)
        self.tile = expert * (n // ROWS) + self.tile


class ExpertPart:
    """The rows of one expert that a program computes, and the places of its pairs: `first` to `last`, sorted by expert.

    Programs: share of the parts, expert or the group of pairs of none, part of the share."""

    def __init__(self, k: Tracer, starts: Array, n: int, rows: int, share: int) -> None:
        self.k, self.n, self.rows = k, n, rows
        self.part, self.expert = k.program(0) * share + k.program(2), k.program(1)
        self.first, self.last = starts[self.expert].to(i64), starts[self.expert + 1].to(i64)
        self.is_there = self.part * rows < n

    def expert_rows(self) -> ExpertRows:
        """The rows among those of all experts."""
        return ExpertRows(self.k, self.rows, self.n, self.part, self.expert)

    def store_zeros(self, out: Array, pairs: Array, n_experts: int) -> None:
        """Stores zeros for the pairs that are of no expert."""
        with self.k.when(self.is_there & (self.expert == n_experts)):
            rows = Rows(self.k, self.rows, self.n, self.part)
            for place in self.k.range(self.first, self.last):
                rows.store(out, self.k.var(rows.spread(0.0)), pairs[place].to(i64))


def taken(k: Tracer, arguments: tuple[Array, ...], block: str) -> tuple[tuple[Array, ...], Packed, tuple[Array, ...]]:
    """A kernel's arguments as the parts of x, one in f32 or three of quantized activations, the weights, and what is left."""
    count = 1 if arguments[0].dtype == f32 else 3
    codes, scales, extra = arguments[count : count + 3]
    return arguments[:count], packed(k, codes, scales, extra, block), arguments[count + 3 :]


@kernel
def product_of_pairs(
    k: Tracer, *arguments: Any, n: int, n_experts: int, n_slots: int, per_token: bool, blocks: int, rows: int, block: str,
    ahead: int, streams: int, step: int, int16: bool,
) -> None:  # fmt: skip
    # y[p, rows] of `streams` slots of a token per program, `step` blocks of each at a time if there are several
    x, weights, (experts, out, *_) = taken(k, arguments, block)
    token, part, first = k.program(0), k.program(2), k.program(1) * streams
    pairs = [token * n_slots + first + i for i in range(streams)]
    chosen = [order.expert_of(k, experts, pair, n_experts) for pair in pairs]
    given = [Consecutive(token if per_token else pair, 1) for pair in pairs]
    if streams > 1:
        mine = [ExpertRows(k, rows, n, part, k.minimum(expert, n_experts - 1)) for expert in chosen]
        totals = gemv.totals_of(x, weights, mine, given, blocks, step, int16)
        for own, total, expert, pair in zip(mine, totals, chosen, pairs, strict=True):
            with k.when(expert < n_experts):
                own.store(out, total, pair)
    else:
        with k.when(chosen[0] < n_experts):
            own = ExpertRows(k, rows, n, part, chosen[0])
            own.store(out, kernels.totals_of(x, weights, own, given[0], blocks, ahead)[0], pairs[0])
    for expert, pair in zip(chosen, pairs, strict=True):
        with k.when(expert == n_experts):
            any_rows = Rows(k, rows, n, part)
            any_rows.store(out, k.var(any_rows.spread(0.0)), pair)


@kernel
def product_of_expert(
    k: Tracer, *arguments: Any, n: int, n_experts: int, blocks: int, rows: int, columns: int, block: str, share: int,
    ahead: int,
) -> None:  # fmt: skip
    # y[p, rows] of all pairs of one expert per program, `columns` pairs at a time
    x, weights, (starts, pairs, out, *_) = taken(k, arguments, block)
    own = ExpertPart(k, starts, n, rows, share)
    first, last = own.first, own.last
    with k.when(own.is_there & (own.expert < n_experts)):
        mine = own.expert_rows()
        for step in k.range((last - first + (columns - 1)) // columns):
            some = Consecutive(first + step * columns, columns)
            for total, place in zip(kernels.totals_of(x, weights, mine, some, blocks, ahead), some.places, strict=True):
                with k.when(place < last):
                    mine.store(out, total, pairs[place].to(i64))
    own.store_zeros(out, pairs, n_experts)


@kernel
def product_row(
    k: Tracer, *arguments: Any, n: int, n_experts: int, n_slots: int, per_token: bool, blocks: int, block: str
) -> None:
    # y[p, r] per program, a block of 32 k per lane; for any lane width and any n
    x, weights, (experts, out, *_) = taken(k, arguments, block)
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
