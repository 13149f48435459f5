"""The order of nodes that a caller orders: from `after=`, from the bytes they touch, checked."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from camshaft.errors import PlanError
from camshaft.plan.memory.hazards import Hazard, hazards
from camshaft.plan.schedule import BufferSlice, Order, Thunk

SYNCS = ("hazards", "each", "explicit")
_VERBS = {"read": "reads", "write": "writes"}


@dataclass(frozen=True)
class NodeOrder:
    """`numbers` are the nodes in the order of their thunks. `after` and `before` speak of the thunks so ordered: those that a
    caller wants ended before each, and, in 'explicit' mode only, all that then have, as bits."""

    numbers: tuple[int, ...]
    after: Order
    before: tuple[int, ...] | None


def order_nodes(
    names: Sequence[str], after: Sequence[Iterable[int]], thunks: Sequence[Sequence[Thunk]], sync: str
) -> NodeOrder:
    """Nodes, with the numbers of those that each comes after and the thunks of each, in an order that keeps what was asked for
    and otherwise the order given.

    PlanError for an order that goes in a circle, and in 'explicit' mode for two nodes in no order of which one writes bytes
    that the other touches.
    """
    asked = [set(earlier) for earlier in after]
    found = list(hazards([[use for thunk in item for use in thunk.uses] for item in thunks]))
    needs = [set(earlier) for earlier in asked]
    if sync != "explicit":
        for hazard in found:
            needs[hazard.second].add(hazard.first)
    numbers = _sorted(names, needs)
    ancestors = _ancestors(numbers, asked)
    if sync == "explicit":
        _refuse_unordered(names, found, ancestors)
    if sync == "each":
        for earlier, number in itertools.pairwise(numbers):
            asked[number].add(earlier)
    places = _places(numbers, thunks)
    before = _before(numbers, ancestors, places) if sync == "explicit" else None
    return NodeOrder(numbers, _after(numbers, asked, places), before)


def _sorted(names: Sequence[str], needs: Sequence[set[int]]) -> tuple[int, ...]:
    """Every node after what it needs, else in the order given."""
    left = [len(earlier) for earlier in needs]
    readers: list[list[int]] = [[] for _ in names]
    for number, earlier in enumerate(needs):
        for other in earlier:
            readers[other].append(number)
    ready = [number for number, count in enumerate(left) if not count]
    done: list[int] = []
    while ready:
        done.append(heapq.heappop(ready))
        for number in readers[done[-1]]:
            left[number] -= 1
            if not left[number]:
                heapq.heappush(ready, number)
    if len(done) < len(names):
        raise PlanError(f"compile: the order goes in a circle: {_circle(names, needs, set(done))}")
    return tuple(done)


def _circle(names: Sequence[str], needs: Sequence[set[int]], done: set[int]) -> str:
    """One circle among the nodes that are not done: each of those needs another of them."""
    path = [min(set(range(len(names))) - done)]
    while path[-1] not in path[:-1]:
        path.append(min(needs[path[-1]] - done))
    return " after ".join(repr(names[number]) for number in path[path.index(path[-1]) :])


def _ancestors(numbers: Iterable[int], asked: Sequence[set[int]]) -> list[int]:
    """For each node, as bits, those that it comes after, by way of others too."""
    found = [0] * len(asked)
    for number in numbers:
        for earlier in asked[number]:
            found[number] |= found[earlier] | 1 << earlier
    return found


def _refuse_unordered(names: Sequence[str], found: Iterable[Hazard], ancestors: Sequence[int]) -> None:
    for h in found:
        if not ancestors[h.second] >> h.first & 1 and not ancestors[h.first] >> h.second & 1:
            raise PlanError(
                f"compile: {names[h.second]!r} {_VERBS[h.second_access]} {_bytes(h.piece)}, which {names[h.first]!r} "
                f"{_VERBS[h.first_access]}, and nothing orders them; wanted one after the other"
            )


def _bytes(piece: BufferSlice) -> str:
    return f"bytes [{piece.offset}, {piece.end}) of {piece.buffer.name!r}"


def _places(numbers: Iterable[int], thunks: Sequence[Sequence[Thunk]]) -> dict[int, range]:
    """Where the thunks of each node are when they stand in order."""
    places, end = {}, 0
    for number in numbers:
        places[number] = range(end, end + len(thunks[number]))
        end = places[number].stop
    return places


def _after(numbers: Iterable[int], asked: Sequence[set[int]], places: dict[int, range]) -> Order:
    """For each thunk what it follows: a node's first thunk all those of the nodes that it comes after; the others follow it as
    far as their bytes ask for it, and no wait of theirs comes before its."""
    after: list[tuple[int, ...]] = []
    ends: dict[int, set[int]] = {}  # the thunks that stand for a node: its own, or of one without any, those it follows
    for number in numbers:
        follows = {thunk for earlier in asked[number] for thunk in ends[earlier]}
        ends[number] = set(places[number]) or follows
        after += [tuple(sorted(follows))] + [()] * (len(places[number]) - 1) if places[number] else []
    return tuple(after) if any(after) else ()


def _before(numbers: Iterable[int], ancestors: Sequence[int], places: dict[int, range]) -> tuple[int, ...]:
    bits = {number: sum(1 << thunk for thunk in place) for number, place in places.items()}
    found = []
    for number in numbers:
        earlier = sum(bits[other] for other in places if ancestors[number] >> other & 1)
        found += [earlier] * len(places[number])
    return tuple(found)
