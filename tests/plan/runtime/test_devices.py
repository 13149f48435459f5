"""Plans across devices, by fake ones: copies where values cross, hazards over spaces, memory given back, errors told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placed_graphs import norm_block
from random_graphs import DIM, TOKENS, graph_of, programs

import camshaft as cs
from camshaft.backends import registry
from camshaft.dtypes import f32, i32
from camshaft.errors import BackendError, PlanError
from camshaft.ops.spec import TensorSpec
from camshaft.plan.lowering.spaces import leading_extent
from camshaft.plan.memory.allocate import aligned_bytes
from camshaft.plan.memory.device_memory import DeviceArray
from camshaft.plan.memory.weights import Weights
from camshaft.validation.cases import VariantCase
from camshaft.validation.evidence import ValidationResult
from tests.support.devices.fake_device import FakeDevice, Fakes, pass_for_null
from tests.support.needs import require

pytestmark = pytest.mark.usefixtures("thunk_per_op")

RNG = np.random.default_rng(11)
W = RNG.normal(size=DIM).astype(np.float32)
M = RNG.normal(size=(DIM, DIM)).astype(np.float32)
X = RNG.normal(size=(TOKENS.bound, DIM)).astype(np.float32)
Y = RNG.normal(size=(TOKENS.bound, DIM)).astype(np.float32)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return Fakes(FakeDevice("fake:0"), FakeDevice("fake:1")).install(monkeypatch)


def block(places: tuple[str | None, ...] = (None, None, None, None)) -> cs.Graph:
    return norm_block(places, TOKENS, W, M)


def run_block(places: tuple[str | None, ...], n: int = 7) -> np.ndarray:
    with cs.compile(block(places), backend="scalar", threads=1) as plan:
        plan.run(x=Y[:n])
        return plan.run(x=X[:n])["y"].copy()


@pytest.mark.parametrize("places", [
    ("fake:0",) * 4,
    ("fake:0", "fake:0", None, "fake:0"),
    (None, "fake:0", "fake:1", None),
    ("fake:1", "fake:0", "fake:1", "fake:0"),
    (None, "fake:0", None, "fake:1"),
])  # fmt: skip
@pytest.mark.parametrize("n", [0, 7, 40])
def test_a_plan_over_devices_gives_the_bytes_of_one(fakes: Fakes, places: tuple[str | None, ...], n: int) -> None:
    assert run_block(places, n).tobytes() == run_block((None,) * 4, n).tobytes()


def test_one_device_takes_one_submit_and_copies_only_what_crosses(fakes: Fakes) -> None:
    device = fakes.by_name["fake:0"]
    with cs.compile(block(), backend="fake:0", threads=1) as plan:
        assert [t.kind for t in plan.bound.schedule.thunks].count("copy") == 2
        assert device.counts["binds"] == 1
        before = device.counts.copy()
        plan.run(x=X[:5])
        plan.run(x=X[:6])
        spent = device.counts - before
        copied = 2 * (5 + 6) * 4 * DIM  # the active rows in and out, not the 40 of the bound
        assert spent == {"submits": 2, "waits": 2, "copies": 4, "copied_nbytes": copied, "launches": 8}


def test_only_a_leading_extent_spreads_the_bytes_of_a_tensor() -> None:
    wide = cs.Extent("wide", 8)
    shapes = {(TOKENS, DIM): TOKENS, (1, 1, TOKENS): TOKENS, (1, wide, 4): wide, (4, wide): None, (wide, TOKENS): wide}
    for shape, extent in {**shapes, (4, 8): None, (): None, (1,): None}.items():
        assert leading_extent(TensorSpec(shape, f32)) is extent, shape


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


def test_explain_shows_copies_devices_and_arenas(fakes: Fakes) -> None:
    with cs.compile(block(("fake:0", None, "fake:1", "fake:0")), threads=1) as plan:
        text = plan.explain()
        assert "x → fake:0: copy/fake:0 (copy) on fake:0" in text
        assert "rms_norm → host: copy/fake:0 (copy) on fake:0" in text
        assert "matmul → fake:1: copy/fake:1 (copy) on fake:1" in text
        assert "arena on fake:1," in text
        assert "x is in host, wanted in fake:0" in text
        copies = [t.name for t in plan.bound.schedule.thunks if t.kind == "copy"]
        assert len(copies) == len(set(copies)), "each version of a value is copied once"


def test_explain_names_the_backend_of_the_cpu_that_a_node_was_placed_on() -> None:
    graph = cs.Graph()
    x = graph.input("x", (4, 8), "f32")
    with graph.on("cpu:scalar"):
        h = cs.silu(x)
    with graph.on("cpu"):
        graph.output("y", cs.add(h, x))
    with cs.compile(graph, threads=1) as plan:
        silu, add = plan.explain().splitlines()[1:3]
    assert "; on cpu:scalar: " in silu
    assert " on " not in add


def test_between_two_devices_a_value_goes_through_the_host(fakes: Fakes) -> None:
    with cs.compile(block(("fake:0", "fake:1", "fake:1", "fake:1")), threads=1) as plan:
        names = [t.name for t in plan.bound.schedule.thunks if t.kind == "copy"]
        assert names == ["x → fake:0", "rms_norm → host", "rms_norm → fake:1", "x → fake:1", "add → host"]


def test_closing_gives_device_memory_back(fakes: Fakes) -> None:
    device = fakes.by_name["fake:0"]
    weights, graph = Weights(), block()
    for _ in range(3):
        with cs.compile(graph, backend="fake:0", weights=weights, threads=1) as plan:
            plan.run(x=X)
        with pytest.raises(PlanError, match="closed"):
            plan.run(x=X)
    held = W.nbytes + M.nbytes
    assert device.live_nbytes == held == weights.nbytes, "constants are uploaded once for all plans"
    weights.clear()
    del plan
    assert device.live_nbytes == 0


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


def test_out_of_device_memory_says_how_much(fakes: Fakes) -> None:
    fakes.by_name["fake:0"].limits = {"alignment": 256, "memory": 1000}
    with pytest.raises(BackendError, match="fake:0 has no memory for"):
        cs.compile(block(), backend="fake:0", threads=1)


def test_what_a_device_reports_comes_out_of_run(fakes: Fakes) -> None:
    device = fakes.by_name["fake:0"]
    with cs.compile(block(("fake:0", None, "fake:0", None)), threads=1) as plan:
        device.lost = "the device was lost"
        with pytest.raises(BackendError, match="was lost"):
            plan.run(x=X)
        device.lost = None
        wanted = run_block((None,) * 4, 40)
        np.testing.assert_allclose(plan.run(x=X)["y"], wanted, atol=1e-5)


def test_ranges_of_thunks_add_up_to_the_whole(fakes: Fakes) -> None:
    with cs.compile(block(("fake:0", None, "fake:1", "fake:0")), backend="scalar", threads=1) as plan:
        wanted = plan.run(x=X)["y"].copy()
        n = len(plan.bound.schedule.thunks)
        for step in (1, 3):
            plan.outputs["y"][:] = 0
            for first in range(0, n, step):
                plan.bound.run(first, min(first + step, n))
            assert plan.outputs["y"].tobytes() == wanted.tobytes()


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


@settings(max_examples=settings().max_examples // 5)
@given(programs(), st.integers(1, 3), st.booleans())
def test_random_graphs_split_over_devices_give_the_bytes_of_one(
    nodes: list[tuple[str, int, int, int]], n_outputs: int, unified: bool
) -> None:
    patch = pytest.MonkeyPatch()
    limits = {"alignment": 256, "unified": int(unified)}
    Fakes(FakeDevice("fake:0", limits), FakeDevice("fake:1")).install(patch)
    try:
        found = []
        for place in (False, True):
            with cs.compile(graph_of(nodes, n_outputs, place), backend="scalar", threads=1) as plan:
                plan.run(x=Y, y=X)
                found.append({name: array.tobytes() for name, array in plan.run(x=X[:9], y=Y[:9]).items()})
        assert found[0] == found[1]
    finally:
        patch.undo()


def test_unified_memory_is_never_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice("fake:0", {"alignment": 256, "unified": 1})
    Fakes(device).install(monkeypatch)
    with cs.compile(block(("fake:0", None, "fake:0", None)), backend="scalar", threads=1) as plan:
        assert not [t for t in plan.bound.schedule.thunks if t.kind == "copy"]
        assert plan.run(x=X)["y"].tobytes() == run_block((None,) * 4, 40).tobytes()


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """A device 'null' that every op claims and nothing is proved on, which has no kernel for silu."""
    device = FakeDevice("null", backend="null", without=frozenset(_silu_kernels()))
    return pass_for_null(device, monkeypatch)


def _silu_kernels() -> set[str]:
    with cs.compile(block(), backend="scalar", threads=1) as plan:
        return {t.entry.name for t in plan.bound.schedule.thunks if t.op == "silu"}


def test_an_op_without_a_kernel_on_its_device_runs_on_the_cpu_in_sight(weak: FakeDevice) -> None:
    with cs.compile(block(), backend="null", threads=1) as plan:
        thunks = plan.bound.schedule.thunks
        on = {(t.op, t.device) for t in thunks if t.kind == "kernel"}
        assert on == {("rms_norm", "null"), ("matmul", "null"), ("silu", "host"), ("add", "null")}
        assert [t.name for t in thunks if t.kind == "copy"] == [
            "x → null",
            "matmul → host",
            "silu → null",
            "add → host",
        ]
        line = next(line for line in plan.explain().splitlines() if " silu: silu/" in line)
        assert "no kernel on null: " in line
        assert "null has no " in line
        assert "; on cpu: " in line
        np.testing.assert_allclose(plan.run(x=X)["y"], run_block((None,) * 4, 40), atol=1e-4)


def test_an_op_without_a_proved_kernel_on_scalar_runs_on_simd_in_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    def prove(variant_cases: list[VariantCase], **_: object) -> dict[VariantCase, ValidationResult]:
        bad = ("silu", "scalar")
        return {c: ValidationResult(c.op, c.variant, c.backend, "failed" if (c.op, c.backend) == bad else "proved", "planted")
                for c in variant_cases}  # fmt: skip

    monkeypatch.setattr("camshaft.selection.select.prove", prove)
    with cs.compile(block(), backend="scalar", threads=1) as plan:
        (line,) = (line for line in plan.explain().splitlines() if "no kernel on" in line)
        assert " silu: silu/" in line
        assert "no kernel on scalar: row_blocks (scalar): failed: planted; on cpu: " in line
        wanted = [("rms_norm", "scalar"), ("matmul", "scalar"), ("silu", "simd"), ("add", "scalar")]
        assert [(c.op.name, c.backend) for c in plan.choices] == wanted
        np.testing.assert_allclose(plan.run(x=X)["y"], run_block((None,) * 4, 40), atol=1e-5)
    with pytest.raises(BackendError, match=r"silu of f32.*no kernel can do it: row_blocks \(scalar\): failed: planted"):
        cs.compile(block(), backend="scalar", strict=True)


def test_strict_refuses_an_op_without_a_kernel_on_its_device(weak: FakeDevice) -> None:
    with pytest.raises(BackendError, match=r"silu of f32.*no kernel can do it: .*null has no "):
        cs.compile(block(), backend="null", strict=True)


CROSSINGS = {
    ("webgpu",) * 4: ["x → webgpu", "add → host"],
    ("webgpu", "cpu", "webgpu", "webgpu"): ["x → webgpu", "rms_norm → host", "matmul → webgpu", "add → host"],
    ("cpu", "webgpu", "cpu", "cpu"): ["rms_norm → webgpu", "matmul → host"],
}


@pytest.mark.parametrize("places", CROSSINGS)
def test_a_plan_over_the_cpu_and_webgpu_agrees_with_the_cpu(places: tuple[str, ...]) -> None:
    reason = registry.backend_named("webgpu").absent()
    require(reason is None, f"webgpu: {reason}")
    with cs.compile(block(), backend="simd", threads=1) as plan:
        wanted = plan.run(x=X[:7])["y"].copy()
    with cs.compile(block(places), backend="webgpu", strict=True, threads=2) as plan:
        plan.run(x=Y)
        np.testing.assert_allclose(plan.run(x=X[:7])["y"], wanted, atol=1e-5)
        copies = [t.name for t in plan.bound.schedule.thunks if t.kind == "copy"]
        assert copies == CROSSINGS[places]
        assert all(name in plan.explain() for name in copies)
