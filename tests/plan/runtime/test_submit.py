"""plan.submit: runs that queue, are waited for, and fail where they are waited for."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import camshaft as cs
from camshaft.errors import PlanError
from tests.support.devices.fake_device import FakeDevice, Fakes

X = np.arange(8, dtype=np.float32).reshape(1, 8)


def doubled(place: str | None = None) -> cs.ExecutionPlan:
    graph = cs.Graph()
    x = graph.input("x", (1, 8), "f32")
    with graph.on(place):
        graph.output("y", cs.add(x, x))
    return cs.compile(graph, threads=1)


@pytest.mark.parametrize("place", [None, "fake:0"])
def test_each_submitted_run_has_its_own_inputs_and_outputs(place: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    Fakes(FakeDevice()).install(monkeypatch)
    given = X.copy()
    with doubled(place) as plan:
        runs = []
        for i in range(20):
            given[:] = X + i
            runs.append(plan.submit(x=given))
        results = [run.result(30)["y"] for run in runs]
    for i, y in enumerate(results):
        assert np.array_equal(y, 2 * (X + i))


def gated() -> tuple[cs.ExecutionPlan, threading.Event, threading.Event]:
    """A plan whose run says that it began and ends when it may."""
    begun, go = threading.Event(), threading.Event()

    def wait(x: np.ndarray, y: np.ndarray) -> None:
        begun.set()
        assert go.wait(30)
        if x[0, 0] < 0:
            raise ValueError("below zero")
        y[:] = x

    graph = cs.Graph()
    (y,) = graph.custom(wait, [graph.input("x", (1, 8), "f32")], [((1, 8), "f32")])
    graph.output("y", y)
    return cs.compile(graph, threads=1), begun, go


def test_done_wait_and_timeouts() -> None:
    plan, begun, go = gated()
    first, second = plan.submit(x=X), plan.submit(x=X + 1)
    assert begun.wait(30)
    assert not first.done()
    with pytest.raises(TimeoutError, match=r"has not ended after 0\.01 s"):
        first.wait(0.01)
    go.set()
    second.wait(30)
    assert first.done()
    assert np.array_equal(first.result()["y"], X)
    assert np.array_equal(second.result()["y"], X + 1)
    plan.close()


def test_what_a_run_raises_comes_out_where_it_is_waited_for() -> None:
    plan, _, go = gated()
    go.set()
    bad, good = plan.submit(x=-X - 1), plan.submit(x=X)
    for wait in (bad.wait, bad.result):
        with pytest.raises(ValueError, match="below zero"):
            wait(30)
    assert np.array_equal(good.result(30)["y"], X)
    with pytest.raises(PlanError, match="no input 'z'"):
        plan.submit(z=X).wait(30)
    plan.close()


def test_a_closed_plan_takes_no_runs_and_ends_those_in_its_queue() -> None:
    plan, begun, go = gated()
    running, queued = plan.submit(x=X), plan.submit(x=X)
    assert begun.wait(30)
    closing = threading.Thread(target=plan.close)
    closing.start()
    go.set()
    closing.join(30)
    assert np.array_equal(running.result(1)["y"], X)
    assert queued.done()
    with pytest.raises(PlanError, match="closed"):
        plan.submit(x=X).wait(30)


def test_callers_at_once_share_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, others, real = set(), [], ThreadPoolExecutor

    def late(*args: object) -> object:
        if not others:  # another caller comes between
            others.append(None)
            others.append(plan.submit(x=X))
        return real(*args)

    graph = cs.Graph()
    x = graph.input("x", (1, 8), "f32")
    graph.custom(lambda x: threads.add(threading.get_ident()), [x], [])
    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor", late)
    with cs.compile(graph, threads=1) as plan:
        plan.submit(x=X).wait(30)
        others[1].wait(30)
    assert len(threads) == 1


def test_a_host_thunk_does_not_wait_for_a_run_of_its_own_plan() -> None:
    graph = cs.Graph()
    x = graph.input("x", (1, 8), "f32")
    graph.custom(lambda x: plan.submit(keep=True).wait(), [x], [])
    with cs.compile(graph, threads=1) as plan, pytest.raises(PlanError, match="may need its own workers"):
        plan.run(x=X)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_submits_too() -> None:
    with doubled() as plan:
        plan.submit(x=X).wait(30)
        child = os.fork()
        if child == 0:
            ok = np.array_equal(plan.submit(x=X).result(20)["y"], 2 * X)
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_plan_that_runs_refuses_a_second_run_and_submits_wait_for_their_turn() -> None:
    plan, begun, go = gated()
    results: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: results.append(plan.run(x=X)["y"].copy()))
    thread.start()
    assert begun.wait(30)
    with pytest.raises(
        PlanError, match=r"run: the plan is running already; wanted one run at a time \(submit\(\) queues"
    ):
        plan.run(x=X + 1)
    queued = plan.submit(x=X + 2)
    go.set()
    thread.join(30)
    assert np.array_equal(results[0], X)  # the refused run's inputs never came in
    assert np.array_equal(queued.result(30)["y"], X + 2)
    assert np.array_equal(plan.run(x=X + 3)["y"], X + 3)
    plan.close()
