"""The memory of compiled plans: the caller's, the arena, weights that plans share, what runs leave behind, too much of it."""

from __future__ import annotations

import errno
import mmap
import sys
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from plan_kernels import align

import camshaft as cs
from camshaft.errors import PlanError, ShapeError
from camshaft.ops.spec import TensorSpec
from camshaft.plan.memory.weights import Weights
from tests.plan.compiled.norm_block import DIM, M, X, block, wanted

pytestmark = pytest.mark.usefixtures("thunk_per_op")


def test_the_callers_memory_is_used_for_what_it_names_and_for_temporaries() -> None:
    with cs.compile(block(), threads=1) as own:
        need = own.bound.memory_plan.arena_nbytes
    arena = align(np.zeros(need, np.uint8))
    x, y = align(np.zeros(X.size, np.float32)).reshape(X.shape), align(np.zeros(X.size, np.float32)).reshape(X.shape)
    with cs.compile(block(), threads=1, arena=arena, memory={"x": x, "y": y}) as plan:
        assert np.shares_memory(plan.bound.memory.arena, arena)
        x[:] = X
        plan.run()
        np.testing.assert_allclose(y, wanted(X), atol=1e-4)
        assert arena.any()
    for small in (arena[:-64], arena[1:]):
        with pytest.raises(PlanError, match="arena"):
            cs.compile(block(), arena=small)


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        ({"z": np.zeros(4, np.float32)}, "memory for z"),
        ({"x": np.zeros((4, DIM), np.float32)}, "memory for 'x' came as float32"),
        ({"x": None}, "memory for 'x' came as NoneType; wanted an array or a DeviceArray"),
        ({"x": np.zeros(X.shape, np.float64)}, "memory for 'x' came as float64"),
        ({"y": np.zeros((DIM, 512), np.float32).T}, "contiguous"),
    ],
)
def test_memory_that_does_not_fit_is_refused_by_name(memory: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        cs.compile(block(), memory=memory)


def test_state_survives_runs_and_is_the_callers() -> None:
    graph = cs.Graph()
    keys, values = (graph.state(n, TensorSpec(s, cs.Graph().input("x", (1,), "f32").spec.dtype)) for n, s in STATES)
    k, v = (graph.input(name, (1, 16), "f32") for name in "kv")
    positions, slots = (graph.input(name, (1,), "i32") for name in ("positions", "slots"))
    table = graph.constant("table", np.zeros((1, 1), np.int32))
    cs.kv_cache_update(keys, values, k, v, positions, slots, table, kv_heads=1, head_dim=16)
    graph.output("keys", keys)
    held = align(np.zeros(256, np.float32)).reshape(STATES[0][1])
    with cs.compile(graph, threads=1, memory={"keys": held}) as plan:
        for position in (0, 3):
            row = np.full((1, 16), position + 1, np.float32)
            at = np.array([position], np.int32)
            plan.run(k=row, v=row, positions=at, slots=np.zeros(1, np.int32))
        assert plan.states["keys"][0, 0, 0, :5].tolist() == [1, 0, 0, 4, 0]
        assert np.shares_memory(plan.states["keys"], held)


STATES = (("keys", (1, 1, 16, 16)), ("values", (1, 1, 16, 16)))


def test_the_arena_is_smaller_than_all_temporaries_together() -> None:
    graph = cs.Graph()
    x = graph.input("x", (64, DIM), "f32")
    for _ in range(12):
        x = cs.silu(x)
    graph.output("y", x)
    with cs.compile(graph, threads=1) as plan:
        memory = plan.bound.memory_plan
        assert memory.temp_nbytes_sum == 11 * 64 * DIM * 4
        assert memory.arena_nbytes == 2 * 64 * DIM * 4


def _growth_nbytes(run: Callable[[], object], times: int) -> int:
    """How much more Python holds after that many runs."""
    tracemalloc.start()
    try:
        run()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(times):
            run()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("threads", [1, 2])
def test_runs_allocate_nothing_that_stays(threads: int) -> None:
    x = X[:9].copy()
    with cs.compile(block(), threads=threads) as plan:
        for _ in range(3000):  # the interpreter's own free lists fill up first
            plan.run(x=x)
        assert _growth_nbytes(plan.bound.run, 200) < 1024
        blocks = sys.getallocatedblocks()
        for _ in range(200):
            plan.run(x=x)
        assert sys.getallocatedblocks() - blocks < 50


def test_plans_share_one_copy_of_a_weight() -> None:
    class Counted:
        asked = 0
        bytes = np.ascontiguousarray(M).reshape(-1).view(np.uint8)

        def data(self) -> np.ndarray:
            Counted.asked += 1
            return self.bytes

    weights, source = Weights(), Counted()
    plans = []
    for rows in (1, 8):
        graph = cs.Graph()
        m = graph.constant("m", source, TensorSpec(M.shape, graph.input("x", (rows, DIM), "f32").spec.dtype))
        graph.output("y", cs.matmul(graph.inputs["x"], m, transpose_b=True))
        plans.append(cs.compile(graph, threads=1, weights=weights))
    assert weights.nbytes == M.nbytes
    for plan, rows in zip(plans, (1, 8), strict=True):
        np.testing.assert_allclose(plan.run(x=X[:rows])["y"], X[:rows] @ M.T, atol=1e-4)
        plan.close()


def test_weights_do_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *advice: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("camshaft.plan.memory.allocate.mmap.mmap", Refusing)
    with cs.compile(block(), threads=1) as plan:
        assert np.isfinite(next(iter(plan.run(x=X[:3]).values()))).all()


def test_out_of_memory_says_how_much() -> None:
    graph = cs.Graph()
    x = graph.input("x", (1 << 58,), "f32")
    graph.custom(print, [x], [])
    with pytest.raises(PlanError, match=f"out of memory: x needs {4 << 58} bytes"):
        cs.compile(graph, threads=1)
    with pytest.raises(ShapeError, match=f"input 'y': got .* of {4 << 61} bytes"):
        graph.input("y", (1 << 61,), "f32")
