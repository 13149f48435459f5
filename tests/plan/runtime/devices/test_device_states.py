"""States, inputs and results that live on devices: where they are updated, who shares them, what is copied."""

from __future__ import annotations

import numpy as np
import pytest
from random_graphs import DIM, TOKENS

import camshaft as cs
from camshaft.dtypes import f32, i32
from camshaft.errors import PlanError
from camshaft.ops.spec import TensorSpec
from camshaft.plan.memory.allocate import aligned_bytes
from camshaft.plan.memory.device_memory import DeviceArray
from tests.plan.runtime.devices.device_blocks import X, Y, block, run_block
from tests.support.devices.fake_device import Fakes

pytestmark = pytest.mark.usefixtures("thunk_per_op")


def test_a_state_is_copied_whole_whatever_is_active(fakes: Fakes) -> None:
    device, graph = fakes.by_name["fake:0"], cs.Graph()
    x, kept = graph.input("x", (TOKENS, DIM), "f32"), graph.state("kept", TensorSpec((TOKENS, DIM), f32))
    with graph.on("fake:0"):
        graph.output("y", cs.add(x, kept))
    with cs.compile(graph, threads=1) as plan:
        plan.states["kept"][:] = Y
        before = device.counts["copied_nbytes"]
        assert np.array_equal(plan.run(x=X[:3])["y"], X[:3] + Y[:3])
        assert device.counts["copied_nbytes"] - before == 4 * DIM * (3 + 40 + 3)


def cache_graph(place: str | None) -> cs.Graph:
    """Keys and values put into a cache by a node on `place`, and read back by one that the plan places."""
    graph = cs.Graph()
    specs = TensorSpec((1, 1, 16, 16), f32)
    keys, values = graph.state("keys", specs), graph.state("values", specs)
    k, v = (graph.input(name, (1, 16), "f32") for name in "kv")
    positions, slots = (graph.input(name, (1,), "i32") for name in ("positions", "slots"))
    table = graph.state("table", TensorSpec((1, 1), i32))
    with graph.on(place):
        cs.kv_cache_update(keys, values, k, v, positions, slots, table, kv_heads=1, head_dim=16)
    graph.output("twice", cs.add(graph.reshape(keys, (16, 16)), graph.reshape(keys, (16, 16))))
    return graph


def put(plan: cs.ExecutionPlan, position: int) -> np.ndarray:
    row, at = np.full((1, 16), position + 1, np.float32), np.array([position], np.int32)
    return plan.run(k=row, v=row, positions=at, slots=np.zeros(1, np.int32))["twice"].copy()


@pytest.mark.parametrize("backend", ["fake:0", "fake:1", "scalar"])
def test_a_state_lives_where_it_is_updated_and_survives_runs(fakes: Fakes, backend: str) -> None:
    with cs.compile(cache_graph("fake:0"), backend=backend, threads=1) as plan:
        put(plan, 0)
        twice = put(plan, 3)
        state = plan.states["keys"]
        assert isinstance(state, DeviceArray)
        assert state.device.name == "fake:0"
        assert state.read()[0, 0, 0, :5].tolist() == [1, 0, 0, 4, 0]
        assert twice[0, :5].tolist() == [2, 0, 0, 8, 0]
        assert isinstance(plan.states["table"], np.ndarray), "nothing but the caller writes it: copied in each run"
        copies = {t.name for t in plan.bound.schedule.thunks if t.kind == "copy"}
        assert "table → fake:0" in copies
        assert ("keys → host" in copies) == (backend != "fake:0")
        state.write(np.zeros(state.shape, np.float32))
        assert put(plan, 5)[0, :6].tolist() == [0, 0, 0, 0, 0, 12]


def test_plans_share_a_state_on_a_device(fakes: Fakes) -> None:
    device = fakes.by_name["fake:0"]
    keys = DeviceArray.zeros(device, TensorSpec((1, 1, 16, 16), f32))
    plans = [
        cs.compile(cache_graph("fake:0"), backend=b, memory={"keys": keys}, threads=1) for b in ("fake:0", "scalar")
    ]
    put(plans[0], 0)
    assert put(plans[1], 2)[0, :4].tolist() == [2, 0, 6, 0]
    for plan in plans:
        plan.close()
    assert keys.read()[0, 0, 0, :3].tolist() == [1, 0, 3], "the plans close their own memory, not the caller's"
    with pytest.raises(PlanError, match="same memory, and one of them is written"):
        cs.compile(cache_graph("fake:0"), backend="fake:0", memory={"keys": keys, "values": keys}, threads=1)


def test_a_state_of_the_hosts_is_copied_there_and_back(fakes: Fakes) -> None:
    held = aligned_bytes(1024, 64).view(np.float32).reshape(1, 1, 16, 16)
    with cs.compile(cache_graph("fake:0"), backend="scalar", memory={"keys": held}, threads=1) as plan:
        put(plan, 0)
        put(plan, 1)
        assert held[0, 0, 0, :3].tolist() == [1, 2, 0]


def test_inputs_and_outputs_may_stay_on_the_device(fakes: Fakes) -> None:
    device = fakes.by_name["fake:0"]
    graph = block()
    y = DeviceArray.zeros(device, graph.outputs["y"].spec)
    second = cs.Graph()
    second.output("z", cs.silu(second.input("h", (TOKENS, DIM), "f32")))
    with (
        cs.compile(graph, backend="fake:0", memory={"y": y}, threads=1) as first,
        cs.compile(second, backend="fake:0", memory={"h": y}, threads=1) as then,
    ):
        assert first.run(x=X) == {}
        assert [t.name for t in then.bound.schedule.thunks] == ["silu", "silu → host"]
        wanted = run_block((None,) * 4, 40)
        assert y.read().tobytes() == wanted.tobytes()
        with pytest.raises(
            PlanError, match=r"input 'h' is on fake:0; wanted its bytes there \(plan.away\['h'\].write\)"
        ):
            then.run(h=wanted)
        assert first.away["y"].read(3).tobytes() == wanted[:3].tobytes()
        np.testing.assert_allclose(then.run()["z"], wanted / (1 + np.exp(-wanted)), atol=1e-5)


def test_inputs_and_states_lie_where_the_graph_places_them(fakes: Fakes) -> None:
    graph = cs.Graph()
    x = graph.input("x", (TOKENS, DIM), "f32", on="fake:0")
    kept = graph.state("kept", TensorSpec((TOKENS, DIM), f32), on="fake:1")
    graph.output("y", cs.add(x, kept))
    with cs.compile(graph, backend="scalar", threads=1) as plan:
        plan.away["x"].write(X)
        plan.states["kept"].write(Y)
        assert np.array_equal(plan.run()["y"], X + Y)
        assert [t.name for t in plan.bound.schedule.thunks] == ["x → host", "kept → host", "add"]
