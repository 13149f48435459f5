"""compile's sync: the bytes of the canonical plan on any devices under every strategy, and where each waits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from placed_graphs import M, Placer, W, X, branches, placed
from random_graphs import DIM, TOKENS, graph_of, programs

import camshaft as cs
from camshaft.backends import registry
from camshaft.dtypes import f32
from camshaft.ops.spec import TensorSpec
from camshaft.plan.lowering.sync import SYNCS
from tests.support.devices.fake_device import FakeDevice, Fakes
from tests.support.needs import require


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return Fakes(FakeDevice("fake:0"), FakeDevice("fake:1")).install(monkeypatch)


def canonical(n: int) -> bytes:
    graph = cs.Graph()
    x = graph.input("x", (TOKENS, DIM), "f32")
    h = cs.silu(cs.matmul(cs.rms_norm(x, W, eps=1e-5), M, transpose_b=True))
    graph.output("y", cs.add(h, x))
    with cs.compile(graph, backend="scalar", threads=1) as plan:
        return plan.run(x=X[:n])["y"].tobytes()


PLACES = [
    ("cpu:scalar",) * 4,
    ("fake:0",) * 4,
    ("fake:0", "cpu:scalar", "fake:1", "fake:0"),
    ("fake:1", "fake:0", "cpu:scalar", "fake:1"),
]


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("sync", SYNCS)
def test_every_strategy_and_place_gives_the_bytes_of_the_canonical_plan(places: tuple, sync: str) -> None:
    with cs.compile(placed(places), sync=sync, threads=2) as plan:
        for n in (40, 7, 0):
            assert plan.run(x=X[:n])["y"].tobytes() == canonical(n)
        assert plan.submit(x=X[:5]).result(30)["y"].tobytes() == canonical(5)


def test_a_graph_over_the_cpu_and_webgpu_agrees_with_the_cpu() -> None:
    reason = registry.backend_named("webgpu").absent()
    require(reason is None, f"webgpu: {reason}")
    wanted = np.frombuffer(canonical(7), np.float32).reshape(7, DIM)
    for sync in SYNCS:
        with cs.compile(placed(("webgpu", "cpu", "webgpu", "cpu")), sync=sync, threads=2) as plan:
            plan.run(x=-X)
            np.testing.assert_allclose(plan.run(x=X[:7])["y"], wanted, atol=1e-5)
            assert sum(t.kind == "copy" for t in plan.bound.schedule.thunks) == 4


@settings(max_examples=settings().max_examples // 5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(programs(), st.sampled_from(SYNCS), st.lists(st.booleans(), min_size=12, max_size=12))
def test_random_graphs_over_devices_give_the_bytes_of_the_canonical_plan(
    nodes: list[tuple[str, int, int, int]], sync: str, hops: list[bool]
) -> None:
    """Some values also go to the host and back to where they were, and are read there."""
    placer = Placer()
    values: list[cs.Tensor] = [placer.input("x"), placer.input("y")]
    for (op, a, b, number), hop in zip(nodes, hops, strict=False):
        device = ("cpu:scalar", "fake:0", "fake:1")[number]
        made = placer.node(op, device, *([values[a]] if op == "silu" else [values[a], values[b]]))
        if hop and number:
            down = placer.graph.copy(made, "cpu", after=[made])
            made = placer.graph.copy(down, device, after=[down])
            placer.homes[made] = device
        values.append(made)
    placer.graph.output("out0", placer.at(values[-1], "cpu"))
    with cs.compile(graph_of(nodes, 1, False), backend="scalar", threads=1) as plan:
        plan.run(x=X, y=X)
        wanted = plan.run(x=X[:9], y=X[9:18])["out0"].tobytes()
    with cs.compile(placer.graph, sync=sync, threads=1) as plan:
        plan.run(x=X, y=X)
        assert plan.run(x=X[:9], y=X[9:18])["out0"].tobytes() == wanted


def test_functions_of_ops_stand_beside_stated_nodes() -> None:
    graph = cs.Graph()
    x = graph.input("x", (TOKENS, DIM), "f32")
    with graph.on("fake:0"):
        h = cs.silu(graph.copy(x, "fake:0"))
    with graph.on("cpu:scalar"):
        graph.output("y", cs.add(graph.copy(h, "cpu"), x))
    with cs.compile(graph, sync="hazards", threads=1) as plan:
        assert [(t.name, t.device) for t in plan.bound.schedule.thunks] == [
            ("copy", "fake:0"), ("silu", "fake:0"), ("copy", "fake:0"), ("add", "host")
        ]  # fmt: skip
        assert "; on cpu:scalar: " in plan.explain()
        np.testing.assert_allclose(plan.run(x=X)["y"], X / (1 + np.exp(-X)) + X, atol=1e-5)


def waits(plan: cs.ExecutionPlan) -> dict[str, bool]:
    schedule = plan.bound.schedule
    return {thunk.name: wait for thunk, wait in zip(schedule.thunks, schedule.waits, strict=True)}


def test_strategies_wait_where_they_say() -> None:
    graph, _ = branches()
    for sync, wanted in {
        "hazards": {"a1": False, "a2": True, "b1": False, "b2": True, "sum": True},
        "each": {"a1": False, "a2": True, "b1": True, "b2": True, "sum": True},
        "explicit": {"a1": False, "a2": True, "b1": False, "b2": True, "sum": True},
    }.items():
        with cs.compile(graph, sync=sync, threads=1) as plan:
            assert waits(plan) == wanted, sync


def test_a_dependency_that_no_byte_asks_for_makes_a_wait_and_moves_a_node() -> None:
    graph = cs.Graph()
    x = graph.input("x", (4, DIM), "f32")
    late = graph.node("silu", x, name="late", after=["early"])
    early = graph.node("silu", x, name="early", on="cpu:scalar")
    for name, node in (("late", late), ("early", early)):
        graph.output(name, node)
    for sync in SYNCS:
        with cs.compile(graph, sync=sync, threads=1) as plan:
            assert waits(plan) == {"early": False, "late": True}
            assert "after early" in plan.explain()


@pytest.mark.parametrize("sync", SYNCS)
def test_a_dependency_between_devices_is_waited_for(sync: str) -> None:
    graph = cs.Graph()
    x = graph.input("x", (4, DIM), "f32")
    outs = {}
    before = ()
    for device in ("fake:0", "fake:1"):
        up = graph.copy(x, device, name=f"up {device}", after=before)
        made = graph.node("silu", up, on=device, name=f"silu {device}", after=[up])
        outs[device] = made
        before = (made,)
    for device, made in outs.items():
        graph.output(device, graph.copy(made, "cpu", name=f"down {device}", after=[made, *outs.values()]))
    with cs.compile(graph, sync=sync, threads=1) as plan:
        first, second, *_ = plan.bound.segments
        assert (first.device, second.device, second.after) == ("fake:0", "fake:1", (0,))
        y = plan.run(x=X[:4])
        assert y["fake:0"].tobytes() == y["fake:1"].tobytes() != X[:4].tobytes()


def test_halves_of_a_buffer_are_written_side_by_side_and_read_after_both() -> None:
    graph = cs.Graph()
    x = graph.input("x", (8, DIM), "f32")
    whole = graph.buffer("whole", (8, DIM), "f32")
    halves = [
        graph.node("silu", graph.rows(x, 4 * i, 4 * i + 4), into=[graph.rows(whole, 4 * i, 4 * i + 4)], name=f"half{i}")
        for i in range(2)
    ]
    sums = graph.node("add", whole, x, after=halves, name="sum")
    graph.output("y", sums)
    for sync, second in (("hazards", False), ("explicit", False), ("each", True)):
        with cs.compile(graph, sync=sync, threads=2) as plan:
            assert waits(plan) == {"half0": False, "half1": second, "sum": True}
            y = plan.run(x=X[:8])["y"]
    np.testing.assert_allclose(y, X[:8] / (1 + np.exp(-X[:8])) + X[:8], atol=1e-5)


def test_states_copies_into_them_and_custom_functions() -> None:
    def count(total: np.ndarray, x: np.ndarray) -> None:
        total += x

    graph = cs.Graph()
    x = graph.input("x", (4, DIM), "f32")
    total = graph.state("total", TensorSpec((4, DIM), f32))
    there = graph.state("there", TensorSpec((4, DIM), f32), on="fake:0")
    graph.custom(count, [total, x], [], updates=[0], name="count")
    kept = graph.copy(total, into=there, after=["count"])
    graph.output(
        "twice",
        graph.copy(graph.node("add", there, there, on="fake:0", after=[kept], name="sum"), "cpu", after=["sum"]),
    )
    for sync in SYNCS:
        with cs.compile(graph, sync=sync, threads=1) as plan:
            plan.run(x=X[:4])
            assert np.array_equal(plan.run(x=X[:4])["twice"], 4 * X[:4])
            assert np.array_equal(plan.states["there"].read(), 2 * X[:4])


def test_inputs_and_outputs_on_a_device_are_the_callers(fakes: Fakes) -> None:
    graph = cs.Graph()
    x = graph.input("x", (4, DIM), "f32", on="fake:0")
    graph.output("y", graph.node("silu", x, on="fake:0"))
    with cs.compile(graph, sync="hazards", threads=1) as plan:
        plan.away["x"].write(X[:4])
        assert plan.run() == {}
        np.testing.assert_allclose(plan.away["y"].read(), X[:4] / (1 + np.exp(-X[:4])), atol=1e-5)
        assert plan.bound.segments[0].device == "fake:0"


def test_the_host_reads_unified_memory_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    Fakes(FakeDevice("fake:0", {"alignment": 256, "unified": 1})).install(monkeypatch)
    graph = cs.Graph()
    x = graph.input("x", (TOKENS, DIM), "f32", on="fake:0")
    h = graph.node("silu", x, on="fake:0", name="there")
    graph.output("y", graph.node("add", h, x, on="cpu:scalar", after=[h], name="here"))
    for sync in SYNCS:
        with cs.compile(graph, sync=sync, threads=1) as plan:
            assert [(t.name, t.device) for t in plan.bound.schedule.thunks] == [("there", "fake:0"), ("here", "host")]
            np.testing.assert_allclose(plan.run(x=X)["y"], X / (1 + np.exp(-X)) + X, atol=1e-5)
