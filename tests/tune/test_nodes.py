"""Tuning a node with planted faults: slow, wrong, hanging or crashing candidates are reported and never chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from camshaft import ops
from camshaft.backends.blas.library import openblas_path
from camshaft.dtypes import f32
from camshaft.ops.op import NodeSpec
from camshaft.ops.spec import Layout, TensorSpec
from camshaft.selection import select as selection
from camshaft.selection.measurements import measurements
from camshaft.selection.select import select
from camshaft.tune import nodes
from camshaft.tune.benchmark import Candidate
from camshaft.tune.rounds import BenchmarkConfig, Timing
from camshaft.validation.cases import VariantCase
from camshaft.validation.evidence import ValidationResult
from tests.tune.planted_tunables import (
    EXITS,
    HANGS,
    NODE,
    RAISES,
    REFUSED,
    RIGHT,
    SLEEPS,
    SLOW,
    SLOWER,
    TWIN,
    WRONG,
    WRONG_AT_16,
    op_with,
)

QUICK = BenchmarkConfig(runs=5, least_runs=3, budget_s=0.3, threads=1)
Race = list[list[str]]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, float]], Race]:
    """Times by what a label has in it (100 ns for others) instead of measured ones; gives who raced."""

    def play(times: dict[str, float]) -> Race:
        races: Race = []

        def race(kernels: Sequence[Candidate], args: object, config: BenchmarkConfig) -> list[Timing]:
            races.append([k.variant.label for k in kernels])
            ns = [next((t for word, t in times.items() if word in k.label), 100.0) for k in kernels]
            return [Timing(t, t, (t,) * 3, 1, 1) for t in ns]

        monkeypatch.setattr(nodes, "benchmark_round_robin", race)
        return races

    return play


def test_right_but_slow_is_never_chosen_once_measured(compiled_in_a_child: None) -> None:
    """Measured for real: the cost model's favourite sleeps; the search finds that the other's loop was for nothing."""
    op = op_with(SLEEPS, ways=(RIGHT,), passes=(1, SLOW))
    assert select(op, NODE).variant.name == "right_but_slow"
    tuned = nodes.tune_node(op, NODE, config=QUICK)
    assert tuned is not None
    assert (tuned.before, tuned.after) == ("right_but_slow (simd)", "loops passes=1 (simd)")
    assert tuned.gain > 10
    choice = select(op, NODE)
    assert choice.variant.label == "loops passes=1"
    assert choice.reason.startswith("measured")
    assert {x.variant for x in choice.losers} == {"loops", "right_but_slow"}


@pytest.mark.full
def test_one_that_hangs_while_it_compiles_is_reported(
    played: Callable[[dict[str, float]], Race], compiled_in_a_child: None
) -> None:
    races = played({"passes=1": 50.0})
    tuned = nodes.tune_node(op_with(ways=(RIGHT, HANGS), passes=(1, SLOW)), NODE, beam=1, timeout_s=1.0)
    assert tuned is not None
    assert tuned.after == "loops passes=1 (simd)"
    assert "hung: not compiled in 1 s" in {f.reason for f in tuned.failures}
    assert not [label for race in races for label in race if f"way={HANGS}" in label]


def test_what_does_not_compile_crashes_or_is_wrong_never_runs_here(
    played: Callable[[dict[str, float]], Race], compiled_in_a_child: None
) -> None:
    races = played({})
    for way, reason in ((RAISES, "out of registers"), (EXITS, "crashed its process: exit status 7"), (WRONG, "error ")):
        tuned = nodes.tune_node(op_with(ways=(RIGHT, way)), NODE)
        assert tuned is not None
        assert tuned.after == "loops (simd)"
        assert [f.candidate for f in tuned.failures] == [f"loops way={way} (simd)"]
        assert reason in tuned.failures[0].reason
    assert {label for race in races for label in race} == {"loops"}


def test_refused_values_are_not_tried(played: Callable[[dict[str, float]], Race]) -> None:
    played({})
    tuned = nodes.tune_node(op_with(ways=(RIGHT, REFUSED)), NODE)
    assert tuned is not None
    assert not tuned.failures
    assert tuned.n_tried == 1  # the reference against itself


def test_equal_code_is_not_timed_twice(played: Callable[[dict[str, float]], Race], compiled_in_a_child: None) -> None:
    races = played({"passes": 50.0})
    nodes.tune_node(op_with(ways=(RIGHT, TWIN), passes=(SLOW, SLOWER)), NODE)
    searched = [label for race in races[1:] for label in race]
    assert "loops passes=8192" in searched
    assert not [label for label in searched if "way=" in label]


def test_the_fastest_that_fails_its_proof_is_never_stored(played: Callable[[dict[str, float]], Race]) -> None:
    """It is right on the sample that candidates are tried on, and wrong on another."""
    played({f"way={WRONG_AT_16}": 10.0, "passes=8192": 50.0})
    op = op_with(ways=(RIGHT, WRONG_AT_16), passes=(SLOW, SLOWER))
    tuned = nodes.tune_node(op, NODE)
    assert tuned is not None
    assert f"way={WRONG_AT_16}" not in tuned.after
    assert any(f"way={WRONG_AT_16}" in f.candidate and "n=16" in f.reason for f in tuned.failures)
    assert not [m for m in measurements().at(op, NODE) if f"way={WRONG_AT_16}" in m.values]


def test_a_gain_under_the_noise_is_none(played: Callable[[dict[str, float]], Race]) -> None:
    played({"passes=8192": 99.0})
    tuned = nodes.tune_node(op_with(ways=(RIGHT,), passes=(SLOW, SLOWER)), NODE)
    assert tuned is not None
    assert (tuned.after, tuned.gain) == ("loops (simd)", 1.0)
    assert [m.values for m in measurements().at(op_with(ways=(RIGHT,)), NODE)] == [""]


def test_a_rival_that_is_no_faster_beyond_noise_does_not_win(played: Callable[[dict[str, float]], Race]) -> None:
    played({"right_but_slow": 100.0, "loops": 99.5})
    op = op_with(SLEEPS, ways=(RIGHT,))
    nodes.tune_node(op, NODE)
    assert select(op, NODE).variant.name == "right_but_slow"


def test_a_choice_without_an_override_finds_the_others_measured_too(
    played: Callable[[dict[str, float]], Race], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuned for blas alone, it would know blas's times only, and choose that whatever simd takes. All is proved by decree."""

    def prove(rows: Sequence[VariantCase], **_: object) -> dict[VariantCase, ValidationResult]:
        return {c: ValidationResult(c.op, c.variant, c.backend, "proved") for c in rows}

    for module in (nodes, selection):
        monkeypatch.setattr(module, "prove", prove)
    played({"(blas)": 300.0, "lanes": 200.0})
    matmul = ops.get("matmul")
    a = TensorSpec((33, 33), f32)
    node = NodeSpec((a, a), (a,), {})
    if openblas_path() is None:
        pytest.skip("scipy-openblas32 is not installed")
    tuned = nodes.tune_node(matmul, node, "blas")
    assert tuned is not None
    assert tuned.after == "blas (blas)"
    stored = {m.variant: m.ns for m in measurements().at(matmul, node)}
    assert stored == {"blas": 300.0, "numpy": 300.0, "lanes": 200.0, "tiled": 100.0, "blocked": 100.0}
    assert select(matmul, node).variant.name == "blocked"


def test_an_unknown_layout_is_reported_and_not_searched(played: Callable[[dict[str, float]], Race]) -> None:
    played({})
    odd = Layout("odd", lambda spec: (("data", f32, spec.bounds),))
    node = NodeSpec((TensorSpec((33,), f32, odd),), NODE.outputs, {})
    assert nodes.tune_node(op_with(ways=(RIGHT,), passes=(1, SLOW)), node) is None


def test_nothing_to_choose_is_nothing_to_tune() -> None:
    assert nodes.tune_node(op_with(SLEEPS, ways=()), NODE) is None
