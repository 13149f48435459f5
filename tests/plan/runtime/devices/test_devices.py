"""Plans across fake devices: copies where values cross, hazards over spaces, memory given back, errors told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import DIM, TOKENS, graph_of, programs

import camshaft as cs
from camshaft.backends import registry
from camshaft.dtypes import f32
from camshaft.errors import BackendError, PlanError
from camshaft.ops.spec import TensorSpec
from camshaft.plan.lowering.spaces import leading_extent
from camshaft.plan.memory.weights import Weights
from tests.plan.runtime.devices.device_blocks import M, W, X, Y, block, run_block
from tests.support.devices.fake_device import FakeDevice, Fakes
from tests.support.needs import require

pytestmark = pytest.mark.usefixtures("thunk_per_op")


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
