"""camshaft.compile: what a plan runs and how often, what it refuses and what it tells."""

from __future__ import annotations

import re

import numpy as np
import pytest

import camshaft as cs
from camshaft.errors import BackendError, CamshaftError, PlanError, ShapeError
from camshaft.plan.buffers import Lifetime
from tests.plan.compiled.norm_block import DIM, RNG, TOKENS, X, block, wanted

pytestmark = pytest.mark.usefixtures("thunk_per_op")


@pytest.mark.parametrize("threads", [1, 2])
def test_an_extent_costs_what_is_active_and_gives_what_is_right(threads: int) -> None:
    with cs.compile(block(), threads=threads) as plan:
        thunks = plan.bound.schedule.thunks
        for n in (7, 512, 1, 33, 0, 512):
            results = plan.run(x=X[:n], view=True)
            assert results["y"].shape == (n, DIM)
            assert results["heads"].shape == (n, 4, DIM // 4)
            np.testing.assert_allclose(results["y"], wanted(X[:n]), atol=1e-4)
            assert np.shares_memory(results["heads"], results["y"]) or n == 0
        few, many = ([t.programs.count({TOKENS: n}) for t in thunks] for n in (7, 512))
        assert sum(few) * 8 < sum(many), "7 tokens of 512 run a fraction of the programs"
        by_row = [(a, b) for a, b, t in zip(few, many, thunks, strict=True) if t.op == "rms_norm"]
        assert by_row == [(7, 512)]


def test_rows_beyond_the_active_extent_stay_as_they_were() -> None:
    with cs.compile(block(), threads=1) as plan:
        plan.outputs["y"][:] = 7
        plan.run(x=X[:5])
        assert (plan.outputs["y"][5:] == 7).all()
        assert (plan.outputs["y"][:5] != 7).any()


def test_views_make_no_thunk() -> None:
    with cs.compile(block(), threads=1) as plan:
        ops = [t.op for t in plan.bound.schedule.thunks]
        assert [op for op, before in zip(ops, ["", *ops], strict=False) if op != before] == [
            "rms_norm",
            "matmul",
            "silu",
            "add",
        ]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_run_gives_the_same_bytes_for_any_number_of_threads(threads: int) -> None:
    with cs.compile(block(), threads=1) as one, cs.compile(block(), threads=threads) as plan:
        first = one.run(x=X[:100])["y"].tobytes()
        assert [plan.run(x=X[:100])["y"].tobytes() for _ in range(3)] == [first] * 3


@pytest.mark.parametrize("backend", ["scalar", "blas"])
def test_backends_agree(backend: str) -> None:
    if backend == "blas":
        pytest.importorskip("scipy_openblas32", reason="the extra blas is not installed")
    with cs.compile(block(), backend="simd", threads=1) as simd, cs.compile(block(), backend=backend) as other:
        assert {c.backend for c in simd.choices} == {"simd"}
        by_op = {c.op.name: c.backend for c in other.choices}
        assert by_op["matmul"] == backend
        assert by_op["silu"] == ("scalar" if backend == "scalar" else "simd")
        np.testing.assert_allclose(simd.run(x=X[:33])["y"], other.run(x=X[:33])["y"], atol=1e-5)


def test_an_override_holds_for_plans_made_under_it() -> None:
    with cs.backend("scalar"):
        plan = cs.compile(block(), threads=1)
    assert {c.backend for c in plan.choices} == {"scalar"}
    plan.close()
    for name in ("abacus", "cuda"):
        with pytest.raises(BackendError, match=name):
            cs.compile(block(), backend=name)


def test_wrong_inputs_are_refused_by_name_and_change_nothing() -> None:
    with cs.compile(block(), threads=1) as plan:
        before = plan.run(x=X[:9])["y"].tobytes()
        for given, words in (
            ({"z": X}, "no input 'z'; this plan has x"),
            ({"x": X[:9].astype(np.float64)}, r"'x' came as float64 \[9, 48\]; wanted f32\[tokens<=512, 48\]"),
            ({"x": X[:9, :-1]}, r"'x' came as float32 \[9, 47\]"),
            ({"x": np.zeros((513, DIM), np.float32)}, r"\[513, 48\]"),
            ({"x": X[0]}, r"'x' came as float32 \[48\]"),
            ({"x": [1.0, 2.0]}, "'x' came as float64"),
        ):
            with pytest.raises(PlanError, match=words):
                plan.run(**given)
        assert plan.bound.extent(TOKENS) == 9
        assert plan.run(keep=True)["y"].tobytes() == before


def test_inputs_that_disagree_on_an_extent_are_refused() -> None:
    graph = cs.Graph()
    x, y = graph.input("x", (TOKENS, DIM), "f32"), graph.input("y", (TOKENS, DIM), "f32")
    graph.output("sum", cs.add(x, y))
    with cs.compile(graph, threads=1) as plan:
        assert plan.run(x=X[:4], y=X[:4])["sum"].shape == (4, DIM)
        with pytest.raises(PlanError, match=r"'y' came as float32 \[5, 48\], but another input has 4 tokens"):
            plan.run(x=X[:4], y=X[:5])
        with pytest.raises(PlanError, match=r"'tokens' got 513; wanted 0 to 512"):
            plan.set_extent(TOKENS, 513)


def test_inputs_that_no_thunk_reads_and_results_that_none_writes_are_there() -> None:
    graph = cs.Graph()
    x, unused = graph.input("x", (2, 8), "f32"), graph.input("unused", (3,), "i32")
    constant = graph.constant("c", np.arange(4, dtype=np.float32))
    for name, tensor in (("same", x), ("again", x), ("c", constant), ("flat", graph.reshape(unused, (1, 3)))):
        graph.output(name, tensor)
    values = RNG.normal(size=(2, 8)).astype(np.float32)
    with cs.compile(graph, threads=1) as plan:
        results = plan.run(x=values, unused=np.array([1, 2, 3], np.int32))
        assert np.array_equal(results["same"], values)
        assert np.array_equal(results["again"], values)
        assert results["c"].tolist() == [0, 1, 2, 3]
        assert results["flat"].tolist() == [[1, 2, 3]]


def test_explain_tells_variants_losers_waits_and_the_arena() -> None:
    with cs.compile(block(), threads=2) as plan:
        text, schedule = plan.explain(), plan.bound.schedule
        lines = text.splitlines()
        n_thunks = len(schedule.thunks)
        assert lines[0].startswith(f"{n_thunks} thunks, {sum(schedule.waits)} waits, 2 threads; arena ")
        assert f"arena {plan.bound.memory_plan.arena_nbytes} bytes" in lines[0]
        for thunk, wait, line in zip(schedule.thunks, schedule.waits, lines[1:], strict=False):
            assert line.startswith("|") == wait
            assert f"{thunk.name}: {thunk.op}/{thunk.variant}, {thunk.programs.bound} programs; {thunk.reason}" in line
        chosen = {c.variant.name for c in plan.choices if c.op.name == "matmul"}
        lost = [line for line in lines[lines.index("not chosen:") :] if line.startswith("  matmul/")]
        assert lost
        assert not any(f"matmul/{name} (simd)" in line for line in lost for name in chosen)
        temporaries = [b for b in schedule.buffers if b.lifetime is Lifetime.TEMP]
        assert len(lines) - lines.index("arena:") - 1 == len(temporaries) > 0


def test_a_closed_plan_refuses_to_run() -> None:
    plan = cs.compile(block(), threads=1)
    plan.close()
    plan.close()
    with pytest.raises(PlanError, match="closed"):
        plan.run(x=X[:3])


def test_what_cannot_be_compiled_is_an_error_that_names_it() -> None:
    with pytest.raises(PlanError, match="activations 'f8'"):
        cs.compile(block(), activations="f8")
    with pytest.raises(CamshaftError, match="threads=0"):
        cs.compile(block(), threads=0)
    graph = cs.Graph()
    x = graph.input("x", (2, 8), "f32")
    with pytest.raises(ShapeError, match="rms_norm"):
        cs.rms_norm(x, np.ones(9, np.float32), eps=1e-5)


def test_a_plan_is_shown_in_one_line() -> None:
    with cs.compile(block(), threads=1) as plan:
        assert re.fullmatch(r"ExecutionPlan\(x -> .*y.*; \d+ thunks\)", repr(plan))
