"""The order of nodes that a caller orders on random thunks: what is allowed gives the same bytes, what lacks is refused."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import check_bytes, thunk_lists

from camshaft.errors import CamshaftError
from camshaft.plan.lowering.sync import SYNCS, order_nodes
from camshaft.plan.memory.arena import make_schedule
from camshaft.plan.memory.hazards import hazards
from camshaft.plan.schedule import Thunk


def ordered(thunks: list[Thunk], keep: Callable[[int, int], bool]) -> list[set[int]]:
    """For each thunk as a node the earlier ones that it conflicts with, as far as `keep` has it."""
    after: list[set[int]] = [set() for _ in thunks]
    for hazard in hazards([thunk.uses for thunk in thunks]):
        if keep(hazard.first, hazard.second):
            after[hazard.second].add(hazard.first)
    return after


@given(thunk_lists(), st.sampled_from(SYNCS), st.integers(0, 2**32))
def test_any_order_that_the_strategy_allows_gives_the_same_bytes(thunks: list[Thunk], sync: str, seed: int) -> None:
    """The nodes come shuffled; their dependencies alone, or with bytes, bring back an order that gives program order's bytes."""
    after = ordered(thunks, lambda a, b: True)
    shuffled = list(range(len(thunks)))
    if sync == "explicit":
        random.Random(seed).shuffle(shuffled)
    place = {number: at for at, number in enumerate(shuffled)}
    names, asked = [thunks[i].name for i in shuffled], [{place[e] for e in after[i]} for i in shuffled]
    order = order_nodes(names, asked, [[thunks[i]] for i in shuffled], sync)
    line = [thunks[shuffled[number]] for number in order.numbers]
    schedule, memory = make_schedule(line, after=order.after, before=order.before)
    if order.before is not None:
        assert all(order.before[i] for i, wait in enumerate(schedule.waits) if wait), (
            "memory that is shared asks for no wait"
        )
    check_bytes(thunks, line, schedule, memory, seed)


@given(thunk_lists(), st.data())
def test_a_dependency_that_is_left_out_is_refused_where_no_other_way_orders_it(
    thunks: list[Thunk], data: st.DataObject
) -> None:
    pairs = [(a, b) for b, after in enumerate(ordered(thunks, lambda a, b: True)) for a in sorted(after)]
    if not pairs:
        return
    gone = data.draw(st.sampled_from(pairs))
    names, after = [thunk.name for thunk in thunks], ordered(thunks, lambda a, b: (a, b) != gone)
    reached, todo = set(), [gone[1]]
    while todo:
        for earlier in after[todo.pop()]:
            if earlier not in reached:
                reached.add(earlier)
                todo.append(earlier)
    items = [[thunk] for thunk in thunks]
    if gone[0] in reached:
        order_nodes(names, after, items, "explicit")
    else:
        first, second = (names[i] for i in gone)
        with pytest.raises(CamshaftError, match=f"'{second}' .*which '{first}' .*nothing orders them"):
            order_nodes(names, after, items, "explicit")
