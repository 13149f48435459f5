"""Small thunks that every worker runs whole: which they are, that no wait is left where none is needed, and the same bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_kernels import align, buffer, thunk

import camshaft as cs
from camshaft.errors import PlanError
from camshaft.graph.graph import Graph, Tensor
from camshaft.plan.buffers import Lifetime
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.memory.arena import make_schedule
from camshaft.plan.memory.hazards import missing_wait
from camshaft.plan.runtime.execute import bind

RNG = np.random.default_rng(5)


def chain(dim: int, n: int = 6, rows: int = 1) -> Graph:
    """n norms of rows, one after the other, and a result."""
    graph = Graph()
    x = graph.input("x", (rows, dim), "f32")
    for _ in range(n):
        x = cs.rms_norm(x, np.linspace(0.5, 2, dim, dtype=np.float32), eps=1e-5)
    graph.output("y", cs.silu(x))
    return graph


def marked(plan: ExecutionPlan) -> list[bool]:
    return [t.replicated for t in plan.bound.schedule.thunks]


@pytest.mark.parametrize(("dim", "rows", "own"), [(64, 1, True), (2000, 1, True), (20000, 1, False), (512, 4, False)])
def test_what_follows_a_small_thunk_does_not_wait_for_it(dim: int, rows: int, own: bool) -> None:
    x, results = RNG.normal(size=(rows, dim)).astype(np.float32), []
    for threads in (1, 2, 5):
        with cs.compile(chain(dim, rows=rows), threads=threads, backend="simd") as plan:
            assert marked(plan) == [own and threads > 1] * 6 + [False]  # the last writes what the caller reads
            assert sum(plan.bound.schedule.waits) == (0 if own and threads > 1 else 6)
            results += [plan.run(x=x)["y"].copy() for _ in range(3)]
            for at in range(7):  # as validation runs it, one by one
                plan.bound.run(at, at + 1)
            results.append(plan.outputs["y"].copy())
    for result in results:
        np.testing.assert_array_equal(result, results[0])


def test_many_small_thunks_side_by_side_are_shared_out() -> None:
    graph = Graph()
    x = graph.input("x", (256,), "f32")
    products = [cs.multiply(x, np.full(256, i, np.float32)) for i in range(24)]
    rows = [cs.exp(product) for product in products]
    graph.output("y", cs.concat(*(graph.reshape(row, (1, 256)) for row in rows), axis=0))
    with cs.compile(graph, threads=2, backend="simd") as plan:
        assert not any(marked(plan))
        assert sum(plan.bound.schedule.waits[:24]) == 0


def test_what_callers_keep_or_compute_is_no_workers_own() -> None:
    graph = Graph()
    x = graph.input("x", (64,), "f32")
    (seen,) = graph.custom(lambda a, b: np.copyto(b, a), [cs.exp(x)], [x.spec])
    graph.output("y", seen)
    graph.output("z", cs.negate(x))
    with cs.compile(graph, threads=2, backend="simd") as plan:
        assert {t.op: t.replicated for t in plan.bound.schedule.thunks} == {
            "exp": True,
            "custom": False,
            "negate": False,
        }
        values = np.linspace(-1, 1, 64, dtype=np.float32)
        np.testing.assert_allclose(plan.run(x=values)["y"], np.exp(values), rtol=1e-6)


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Nodes as (op, first operand, second operand) over two small rows and two that are large."""
    n = draw(st.integers(2, 12))
    return [(draw(st.integers(0, 3)), draw(st.integers(0, 3 + i)), draw(st.integers(0, 3 + i))) for i in range(n)]


def _add(first: Tensor, second: Tensor) -> Tensor:
    return cs.add(first, second)


def _multiply(first: Tensor, second: Tensor) -> Tensor:
    return cs.multiply(second, first)


def _norm(first: Tensor, second: Tensor) -> Tensor:
    return cs.rms_norm(first, np.ones(first.spec.bounds[1], np.float32), eps=1e-3)


def _tanh(first: Tensor, second: Tensor) -> Tensor:
    return cs.tanh(second)


def built(nodes: list[tuple[int, int, int]]) -> Graph:
    """An operand of another size than the first is left out for the first."""
    graph = Graph()
    made: list[Tensor] = [graph.input(f"x{i}", (1, 64 if i < 2 else 8192), "f32") for i in range(4)]
    for op, a, b in nodes:
        first, second = made[a], made[b] if made[b].shape == made[a].shape else made[a]
        made.append((_add, _multiply, _norm, _tanh)[op](first, second))
    for i, tensor in enumerate(made[4:]):
        if i % 3 == 0 or i == len(nodes) - 1:
            graph.output(f"y{i}", tensor)
    return graph


@settings(max_examples=settings().max_examples // 5)
@given(nodes=graphs())
def test_any_mixture_gives_one_workers_bytes(nodes: list[tuple[int, int, int]]) -> None:
    given_ = {f"x{i}": RNG.normal(size=(1, 64 if i < 2 else 8192)).astype(np.float32) for i in range(4)}
    wanted: dict[str, np.ndarray] = {}
    for threads in (1, 2, 3):
        with cs.compile(built(nodes), threads=threads, backend="simd") as plan:
            schedule = plan.bound.schedule
            assert missing_wait(schedule.thunks, schedule.waits, plan.bound.memory_plan.offsets) is None
            for _ in range(3):
                found = {name: np.array(value) for name, value in plan.run(**given_).items()}
                wanted = wanted or found
                for name, value in wanted.items():
                    np.testing.assert_array_equal(found[name], value)


def test_a_plan_refuses_what_cannot_be_everywhere() -> None:
    own, result = buffer("own", 256), buffer("result", 256, Lifetime.IO)
    first = thunk("first", "count", (own.slice(),), writes=(own.slice(),))
    with pytest.raises(PlanError, match="'to a result' runs everywhere; wanted a kernel on the host that writes temp"):
        replace(thunk("to a result", "count", (result.slice(),), writes=(result.slice(),)), replicated=True)
    with pytest.raises(PlanError, match="'own' is written everywhere and by one worker"):
        make_schedule([first, replace(first, name="again", replicated=True)])
    schedule, memory = make_schedule([replace(first, replicated=True)], workers=2)
    assert memory.arena_nbytes == 2 * 256
    with pytest.raises(PlanError, match="arena is for 2 workers got 3"):
        bind(schedule, memory, threads=3)
    bind(schedule, memory, arena=align(np.zeros(64 * 2, np.int64)), threads=2).run()
