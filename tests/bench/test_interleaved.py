"""Interleaved rounds with fake peers: the order of measurements, warm-up, failing peers, interrupts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from bench.compare import interleaved
from bench.compare.interleaved import Limits, Measured
from bench.compare.process import PeerError
from bench.compare.suites.suite import OURS, Peer, Suite, Task

WARM = {"warm": True}


class Played:
    """A peer that answers from a list and writes down what it was asked."""

    def __init__(self, name: str, log: list[tuple[str, Any]], answers: list[Any]) -> None:
        self.name, self.log, self.answers = name, log, answers
        self.about = {"version": f"{name} 1"}
        self.check: float | None = None

    def seconds(self, order: Mapping[str, Any]) -> float:
        self.log.append((self.name, dict(order)))
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, tuple):
            answer, self.check = answer
        return float(answer)

    def close(self) -> None:
        self.log.append((self.name, "closed"))


def suite(*tasks: Task) -> Suite:
    return Suite("fake", 1, (Peer("peer", "x:X"), Peer(OURS, "x:X", peer_python=False)), tasks, pause_s=0)


def task(name: str, **more: Any) -> Task:
    return Task(name, {"do": name}, "s", 1, **more)


def play(
    held: Suite, answers: dict[str, list[Any]], known: dict[str, Measured] | None = None, **limits: Any
) -> tuple[list[tuple[str, Any]], dict[str, Measured]]:
    """What was asked, and what is known of each task afterwards."""
    log: list[tuple[str, Any]] = []
    found = known or {each.name: Measured() for each in held.tasks}

    def start(peer: Peer) -> Played:
        if peer.name not in answers:
            raise PeerError("no such library")
        return Played(peer.name, log, answers[peer.name])

    interleaved.run(held, found, Limits(**limits), start, lambda *kept: None)
    return log, found


def test_peers_alternate_on_every_task_and_the_first_round_does_not_count() -> None:
    log, found = play(
        suite(task("a"), task("b", warm=WARM)), {"peer": [9, 9, 1, 2, 3, 4], OURS: [9, 9, 5, 6, 7, 8]}, rounds=2
    )
    a, b = {"do": "a"}, {"do": "b"}
    assert [order for name, order in log if name == "peer"] == [a, WARM, a, b, a, b, "closed"]
    assert [name for name, order in log if order != "closed"] == ["peer", OURS] * 6
    assert found["a"].answers == {"peer": [1, 3], OURS: [5, 7]}
    assert found["b"].answers == {"peer": [2, 4], OURS: [6, 8]}
    assert found["a"].about["peer"] == {"version": "peer 1"}


def test_a_library_that_is_not_there_is_absent_by_name() -> None:
    _, found = play(suite(task("a")), {OURS: [0, 1, 2]}, rounds=2)
    assert found["a"].absent == {"peer": "no such library"}
    assert found["a"].answers == {OURS: [1, 2]}


def test_a_peer_that_fails_at_a_task_is_absent_from_that_task_alone() -> None:
    answers = {"peer": [9, 9, PeerError("too large"), 2, 4], OURS: [9, 9, 5, 6, 7, 8]}
    _, found = play(suite(task("a"), task("b")), answers, rounds=2)
    assert found["a"].absent == {"peer": "too large"}
    assert found["a"].answers == {OURS: [5, 7]}
    assert found["b"].answers == {"peer": [2, 4], OURS: [6, 8]}


def test_a_peer_that_computes_something_else_is_absent_and_says_what() -> None:
    played = {"peer": [(9, 1.01), (1, 1.01), (2, 1.5)], OURS: [(9, 1.0), (3, 1.0), (4, 1.0)]}
    _, found = play(suite(task("a")), played, rounds=2)
    assert found["a"].absent == {"peer": "computes another result: mean 1.5, camshaft 1"}
    assert found["a"].answers == {OURS: [3, 4]}


def test_a_task_that_only_some_can_do_is_asked_of_those() -> None:
    log, found = play(suite(task("a", peers=(OURS,))), {"peer": [], OURS: [0, 1]}, rounds=1)
    assert {name for name, _ in log} == {OURS}
    assert found["a"].absent == {}


def test_rounds_that_are_known_are_gone_on_with() -> None:
    known = {"a": Measured({"peer": [1, 1], OURS: [2, 2]}), "b": Measured({"peer": [1, 1, 1], OURS: [2, 2, 2]})}
    log, found = play(suite(task("a"), task("b")), {"peer": [9, 3], OURS: [9, 4]}, known, rounds=3)
    assert found["a"].answers == {"peer": [1, 1, 3], OURS: [2, 2, 4]}
    assert all(order in ({"do": "a"}, "closed") for _, order in log)


def test_nothing_starts_where_nothing_is_missing_or_time_is_over() -> None:
    known = {"a": Measured({"peer": [1], OURS: [2]})}
    assert play(suite(task("a")), {}, known, rounds=1)[0] == []
    assert play(suite(task("a")), {}, until=time.monotonic() - 1)[0] == []


def test_an_interruption_keeps_whole_rounds_and_closes_the_peers() -> None:
    log: list[tuple[str, Any]] = []
    found = {"a": Measured()}
    played = {"peer": [9, 1, KeyboardInterrupt()], OURS: [9, 2]}
    with pytest.raises(KeyboardInterrupt):
        interleaved.run(
            suite(task("a")), found, Limits(3), lambda s: Played(s.name, log, played[s.name]), lambda *kept: None
        )
    assert found["a"].answers == {"peer": [1], OURS: [2]}
    assert [name for name, order in log if order == "closed"] == [OURS, "peer"]


def test_a_row_whose_rounds_are_far_apart_gets_more_and_the_others_do_not() -> None:
    mixed = [9, 9, 1.0, 2.0, 1.1, 4.0, 2.0, 9.0]
    _, found = play(suite(task("a"), task("b")), {"peer": mixed, OURS: [1.0] * 8}, rounds=2, more=2)
    assert found["a"].answers["peer"] == [1.0, 1.1]
    assert found["b"].answers["peer"] == [2.0, 4.0, 2.0, 9.0]
    _, alone = play(suite(task("a")), {"peer": [9, 2.0, 4.0, 2.0], OURS: [1.0] * 4}, rounds=3)
    assert alone["a"].rounds == 3, "none unless asked for"


def test_the_first_rounds_decide_how_many_there_are() -> None:
    limits = Limits(2, more=3)
    assert limits.wanted(Measured({"a": [1.0], OURS: [9.0]})) == 2
    assert limits.wanted(Measured({"a": [1.0, 1.2, 9.0], OURS: [1.0, 1.0, 1.0]})) == 2
    assert limits.wanted(Measured({"a": [1.0, 1.3, 1.0], OURS: [1.0, 1.0, 1.0]})) == 5
