"""The background process measures what plans used: the winner is taken by the next plan. Times are played; no clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import camshaft
from camshaft.dtypes import f32
from camshaft.eager.array_op import ArrayOp
from camshaft.generate.sampling.parameters import Sampling
from camshaft.generate.stored import plan_cache
from camshaft.generate.stored.plan_cache import store_state
from camshaft.observe.debug_output import refuted
from camshaft.ops.op import NodeSpec
from camshaft.ops.spec import TensorSpec
from camshaft.selection.measurements import measurements
from camshaft.selection.select import select
from camshaft.selection.sites import measurement
from camshaft.store.store import store
from camshaft.tune import jobs, measured_choice
from camshaft.tune.benchmark import Candidate
from camshaft.tune.graphs import Use, is_measured
from camshaft.tune.jobs import Used
from tests.support.fixtures import tiny_model
from tests.tune.played_times import MATMUL, Played, end_of_program, plan_of_product


def product(m: int = 64, k: int = 64, n: int = 64) -> NodeSpec:
    a, b = TensorSpec((m, k), f32), TensorSpec((k, n), f32)
    return NodeSpec((a, b), MATMUL.outputs((a, b), {}), {})


def rivals_of(choice: Any) -> tuple[str, str]:
    """The cost model's choice, and its nearest rival."""
    return choice.variant.name, min((x for x in choice.losers if x.ns), key=lambda x: x.ns).variant


@pytest.mark.full
def test_a_wrong_cost_is_refuted_and_the_next_plan_takes_the_winner(started: list[str]) -> None:
    with plan_of_product() as plan:
        guess, rival = rivals_of(plan.choices[0])
    assert started == []
    end_of_program()
    assert started == ["started"]
    (job,) = jobs.waiting()
    (measured,) = measured_choice.do_job(job, Played(**{guess: 180.0, rival: 100.0}))
    assert measured.is_refuted
    assert jobs.waiting() == []
    with plan_of_product() as plan:
        (choice,) = plan.choices
        assert choice.variant.name == rival
        assert choice.reason.startswith(f"measured 100 us, 1.8 times faster than {guess}, the fastest of")
        assert refuted(plan) == [f"matmul of f32[64, 64], f32[64, 64]: {choice.refuted}"]
        assert choice.refuted == f"{rival} measured 1.8 times faster than {guess}, the cost model's choice"
        a = np.ones((64, 64), np.float32)
        assert (plan.run(a=a, b=a)["y"] == 64).all()
    (gain,) = measurements().summary().gains
    assert (gain.op, gain.variant, gain.guess, round(gain.times, 1)) == ("matmul", rival, guess, 1.8)


def test_a_weight_is_measured_as_a_constant_and_that_decides_no_other_product(started: list[str]) -> None:
    graph = camshaft.Graph()
    a, b = graph.input("a", (64, 64), "f32"), graph.constant("b", np.ones((64, 64), np.float32))
    graph.output("y", camshaft.matmul(a, b))
    with camshaft.compile(graph, threads=1, backend="simd") as plan:
        guess, rival = rivals_of(plan.choices[0])
    end_of_program()
    (job,), played = jobs.waiting(), Played(**{guess: 180.0, rival: 100.0})
    measured_choice.do_job(job, played)
    assert played.packed == [(1,)]
    with camshaft.compile(graph, threads=1, backend="simd") as plan:
        assert plan.choices[0].variant.name == rival
    with plan_of_product() as plan:
        assert not plan.choices[0].measured


def test_a_right_cost_stays_and_is_not_measured_again(started: list[str]) -> None:
    with plan_of_product() as plan:
        guess, _ = rivals_of(plan.choices[0])
    end_of_program()
    (job,) = jobs.waiting()
    (measured,) = measured_choice.do_job(job, Played(**{guess: 99.0}))  # within noise of its rivals
    assert not measured.is_refuted
    jobs._record.used.clear()
    with plan_of_product() as plan:
        assert (plan.choices[0].variant.name, plan.choices[0].refuted) == (guess, "")
    assert jobs._record.used == {}


def test_nothing_is_measured_where_it_is_off_or_tuned(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MEASURE", "0"), ("VALIDATE", "1")):
        with monkeypatch.context() as patch:
            patch.setenv(f"CAMSHAFT_{name}", value)
            plan_of_product().close()
            end_of_program()
    assert jobs._record.used == {}
    assert started == []
    assert jobs.waiting() == []


def test_what_is_tuned_is_not_measured_beside_it(started: list[str]) -> None:
    with jobs.paused():
        plan_of_product().close()
    assert jobs._record.used == {}
    plan_of_product().close()
    assert len(jobs._record.used) == 1


def test_an_eager_product_is_measured_when_its_process_ends(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = np.ones((48, 48), np.float32)
    op = ArrayOp(MATMUL, None)
    op.run(a, a)
    ((name, _, override),) = jobs._record.used
    assert (name, override) == ("matmul", None)
    jobs._record.process = -1  # as in a forked child
    jobs.measure_at_exit([], 1)
    assert jobs._record.used == {}


def test_the_heaviest_nodes_with_a_near_rival_are_measured() -> None:
    node = product()
    choice = select(MATMUL, node, "simd")
    heavy, light = Used(MATMUL, node, choice, None, count=95), Used(MATMUL, node, choice, None, count=5)
    assert jobs.heaviest([light, heavy]) == [heavy]
    far = [x.ns for x in choice.losers if x.ns is not None]
    lonely = Used(MATMUL, node, type(choice)(**{**vars(choice), "ns": min(far) / 5}), None)
    assert jobs.heaviest([lonely]) == []


def test_a_quick_measurement_leaves_small_neighbours_and_tuning_alone() -> None:
    variant = next(v for v in MATMUL.variants if v.name == "tiled")
    node = product(8, 1024, 1024)
    measurements().add([measurement(MATMUL, variant, "simd", node, 1000.0, 1, quick=True)])

    def measured(other: NodeSpec) -> bool:
        case = Candidate(MATMUL, other, variant, "simd").case
        return measurements().ns(MATMUL, case, other) is not None

    assert measured(node)
    assert measured(product(8, 2048, 512))
    assert not measured(product(16, 1024, 1024))
    assert not is_measured(Use(MATMUL, node, "simd"))


def test_a_large_product_is_measured_at_a_smaller_size() -> None:
    use = measured_choice._smaller(Use(MATMUL, product(4096, 4096, 4096), "simd"))
    assert {d for spec in use.node.inputs for d in spec.bounds} <= {2048, 1024}
    assert measured_choice._smaller(Use(MATMUL, product(), "simd")).node.key == product().key


def test_cached_plans_that_stay_the_same_are_saved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("prompt", "single"):
        store().schedules.put(plan_cache._plan_key(name, "facts", store_state()), name.encode())
    saved = plan_cache.SavedPlans(("prompt", "single", "lost"), "facts", store_state())
    variant = MATMUL.variants[0]
    measurements().add([measurement(MATMUL, variant, "simd", product(), 1.0, 1)])
    assert store_state() != saved.state
    now = plan_cache.carry_over(saved, {"single"})
    assert (now.state, now.names) == (store_state(), ("prompt", "lost"))
    again = {
        name: store().schedules.get(plan_cache._plan_key(name, "facts", now.state), "a plan") for name in saved.names
    }
    assert again == {"prompt": b"prompt", "single": None, "lost": None}


@pytest.mark.full
def test_a_models_plans_are_measured_once_it_is_closed_and_stay_cached(
    started: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        jobs, "SHARE", 1.0
    )  # on some CPUs attention, without a rival, is nearly all of the estimated time
    model = tiny_model("llama", tmp_path)

    def run() -> tuple[list[int], set[str]]:
        with camshaft.LanguageModel(model, threads=1) as lm:
            text = list(lm.tokenize("".join(lm.generate([1, 2, 3], max_tokens=3, sampling=Sampling(greedy=True)))))
            return text, set(lm.plans.origins.values())

    first, _ = run()
    assert started == ["started"]
    (job,) = jobs.waiting()
    before = store_state()
    found = measured_choice.do_job(job, Played())
    assert found
    assert not any(measured.is_refuted for measured in found)
    assert store_state() != before
    assert run() == (first, {"cached"})
    assert started == ["started"]
