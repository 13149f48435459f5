"""The kernel of the routing ops: a program per token scores its experts, chooses the best, and weighs those.

A choice is by (score descending, index ascending), so that it does not depend on the lane count. Where a logit or a bias of a
token is NaN all its weights are: a router that is damaged would choose experts all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from camshaft.dtypes import f32, i32
from camshaft.lang import Array, Tracer, Value, greater, kernel

LOWEST, HIGHEST = -3.4028234663852886e38, 3.4028234663852886e38
TINY = 1e-20  # added to the sum of the chosen scores, as DeepSeek V3 does


@kernel
def route_row(
    k: Tracer,
    logits: Array,
    *arrays: Any,
    n: int,
    top_k: int,
    score: str,
    groups: int,
    top_groups: int,
    group_top: int,
    biased: bool,
    scaled: bool,
    normalize: bool,
    renormalize: bool,
    scale: float,
) -> None:
    # s = score(logits); experts = the top_k of s + bias in the best groups; w = s[experts], normalized and scaled
    given, (weights, experts) = arrays[: biased + scaled], arrays[biased + scaled :][:2]
    row, scores, choice = k.program(0), k.scratch(f32, n), k.scratch(f32, n)
    nans = _store_scores(k, logits, scores, choice, given[0] if biased else None, (n, score, groups > 1))
    k.barrier()
    is_allowed = _best_groups(k, choice, n, groups, top_groups, group_top) if groups > 1 else None
    chosen, total = k.scratch(f32, top_k), k.var(0.0)
    pick = _Picks(k, choice, n, is_allowed)
    for j in k.range(top_k):
        expert = pick.following()
        weight = scores[expert]
        experts[row, j] = expert
        if normalize and not renormalize:
            total.set(total.value + weight)
        if scaled:
            weight = weight * given[-1][expert]
        if renormalize:
            total.set(total.value + weight)
        chosen[j] = weight
    k.barrier()
    for j in k.lanes(top_k):
        share = chosen[j] / (total.value + TINY) if normalize or renormalize else chosen[j]
        weights[row, j] = k.select(nans > 0, float("nan"), share * scale)


def _store_scores(
    k: Tracer, logits: Array, scores: Array, choice: Array, bias: Array | None, form: tuple[int, str, bool]
) -> Value:
    """Stores each expert's score, and the number by which it is chosen, of NaN the lowest. Returns 1 for NaN anywhere, else 0."""
    (n, score, has_groups), row, nans = form, k.program(0), k.accumulator("max", i32)
    by_score = bias is not None or has_groups
    if score == "sigmoid":
        for c in k.lanes(n):
            scores[c] = 1.0 / (1.0 + k.exp(-_number(k, logits[row, c])))
    else:
        _store_softmax(k, logits, scores, n)
    for c in k.lanes(n):
        found = scores[c]
        wanted = found if by_score else logits[row, c]
        choice[c] = _number(k, wanted + bias[c] if bias is not None else wanted)
        for given in (logits[row, c], *([bias[c]] if bias is not None else [])):
            nans.combine(k.isnan(given).to(i32))
    return k.lanes_max(nans)


def _store_softmax(k: Tracer, logits: Array, scores: Array, n: int) -> None:
    peak, total, row = k.var(LOWEST), k.accumulator("sum"), k.program(0)
    for c in k.lanes(n):
        peak.set(greater(k, _number(k, logits[row, c]), peak.value))
    most = k.lanes_max(peak)
    for c in k.lanes(n):
        scores[c] = k.exp(_number(k, logits[row, c]) - most)
        total += scores[c]
    divisor = k.lanes_sum(total)
    for c in k.lanes(n):
        scores[c] = scores[c] / divisor


def _number(k: Tracer, x: Value) -> Value:
    """x between the lowest and the highest finite number; the lowest for NaN."""
    return k.select(x > LOWEST, k.select(x < HIGHEST, x, HIGHEST), LOWEST)


def _best_groups(
    k: Tracer, choice: Array, n: int, groups: int, top_groups: int, group_top: int
) -> Callable[[Value], Value]:
    """Returns whether an expert is in one of the best groups: those with the largest sums of their `group_top` best experts."""
    size, sums, allowed = n // groups, k.scratch(f32, groups), k.scratch(i32, groups)
    for g in k.lanes(groups):
        first = k.gather(choice, g * size)
        second = k.select(first > LOWEST, LOWEST, LOWEST)
        for i in range(1, size):
            value = k.gather(choice, g * size + i)
            second = greater(k, k.select(value < first, value, first), second)
            first = greater(k, value, first)
        sums[g] = _number(k, first + second if group_top == 2 else first)
        allowed[g] = 0
    k.barrier()
    pick = _Picks(k, sums, groups, None)
    for _ in k.range(top_groups):
        allowed[pick.following()] = 1
    k.barrier()
    return lambda c: k.gather(allowed, c // size) == 1


class _Picks:
    """The elements of a row in order, one per call: the largest first, of equal ones the one with the smaller index."""

    def __init__(self, k: Tracer, values: Array, n: int, is_allowed: Callable[[Value], Value] | None) -> None:
        self.k, self.values, self.n, self.is_allowed = k, values, n, is_allowed
        self.last, self.index = k.var(HIGHEST), k.var(-1, i32)

    def following(self) -> Value:
        """Returns the index of the next element. At most `n` calls, or as many as are allowed."""
        k, n = self.k, self.n
        best, where = k.var(LOWEST), k.var(n, i32)
        for c in k.lanes(n):
            value, index = self.values[c], c.to(i32)
            later = (value < self.last.value) | ((value == self.last.value) & (index > self.index.value))
            if self.is_allowed is not None:
                later = later & self.is_allowed(c)
            better = later & ((value > best.value) | (where.value == n))
            best.set(k.select(better, value, best.value))
            where.set(k.select(better, index, where.value))
        top = k.lanes_max(best)
        found = k.minimum(k.lanes_min(k.select(best.value == top, where.value, n)), n - 1)
        self.last.set(top)
        self.index.set(found)
        return found
