"""Graphs are tuned once per shape; the ladder gives every shape between a neighbour."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import camshaft
from camshaft import ops
from camshaft.cli.main import app
from camshaft.dtypes import f32
from camshaft.graph.graph import Graph
from camshaft.graph.passes.rewrite import prepare
from camshaft.ops.op import NodeSpec
from camshaft.ops.spec import TensorSpec
from camshaft.selection.measurements import measurements
from camshaft.selection.sites import measurement
from camshaft.tune import graphs, nodes
from camshaft.tune.graphs import Use, is_measured, ladder, uses_of
from camshaft.tune.rounds import BenchmarkConfig, Timing
from camshaft.validation.cases import case_of
from tests.support.fixtures import tiny_model


def two_norms(rows: int = 7, dim: int = 64) -> Graph:
    graph = Graph()
    x, w = graph.input("x", (rows, dim), "f32"), graph.constant("w", np.ones(dim, np.float32))
    for _ in range(2):
        x = camshaft.rms_norm(x, w, eps=1e-5)
    graph.output("y", graph.custom(lambda a, b: np.copyto(b, a), [x], [x.spec])[0])
    return graph


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Played times, 1 us for every candidate; gives the ops that raced."""
    raced: list[str] = []

    def race(kernels: list[nodes.Candidate], args: object, config: BenchmarkConfig) -> list[Timing]:
        raced.append(kernels[0].op.name)
        return [Timing(1000.0, 1000.0, (1000.0,) * 3, 1, 1) for _ in kernels]

    monkeypatch.setattr(nodes, "benchmark_round_robin", race)
    return raced


def test_each_distinct_use_counts_once_and_callers_functions_are_none() -> None:
    uses = uses_of([two_norms(), two_norms(rows=8), two_norms()], None)
    assert [(use.op.name, use.node.inputs[0].bounds) for use in uses] == [("rms_norm", (7, 64)), ("rms_norm", (8, 64))]
    assert not any(use.cold for use in uses)


def test_weights_that_no_cache_holds_come_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph()
    weights = graph.constant("w", np.ones((512, 512), np.float32))
    for rows in (1, 512):
        x = graph.input(f"x{rows}", (rows, 512), "f32")
        graph.output(f"y{rows}", camshaft.matmul(camshaft.silu(x), weights, transpose_b=True))
    monkeypatch.setattr(graphs, "last_cache_nbytes", lambda: 1 << 30)
    assert not any(use.cold for use in uses_of([graph], None))
    monkeypatch.setattr(graphs, "last_cache_nbytes", lambda: 1 << 18)
    cold = {(use.op.name, use.node.inputs[0].bounds[0]) for use in uses_of([graph], None) if use.cold}
    assert cold == {("matmul", 1)}  # 512 rows compute more than they read


def test_a_graph_computed_as_written_measures_its_shapes_too(times: list[str]) -> None:
    graph = Graph()
    x = graph.input("x", (7, 64), "f32")
    normed = graph.node("rms_norm", x, np.ones(64, np.float32), eps=1e-5)
    graph.output("y", graph.copy(graph.copy(normed, "cpu"), "cpu"))
    camshaft.compile(graph, sync="hazards", threads=1).close()
    assert times == []
    camshaft.compile(graph, sync="hazards", threads=1, tune=True).close()
    assert set(times) == {"rms_norm"}  # and no copy
    times.clear()
    camshaft.compile(graph, sync="hazards", threads=1, tune=True).close()
    assert times == []


def test_a_plan_measures_its_shapes_when_it_is_asked_to_and_once(
    times: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    camshaft.compile(two_norms(), threads=1).close()
    assert times == []
    with camshaft.compile(two_norms(), threads=1, tune=True) as plan:
        assert plan.run(x=np.ones((7, 64), np.float32))["y"].shape == (7, 64)
    assert set(times) == {"rms_norm"}
    (use,) = uses_of([two_norms()], None)
    assert [m.ns for m in measurements().at(use.op, use.node)] == [1000.0]
    times.clear()
    monkeypatch.setenv("CAMSHAFT_TUNE", "1")
    camshaft.compile(two_norms(), threads=1).close()
    assert times == []
    camshaft.compile(two_norms(rows=9), threads=1).close()
    assert times != []
    times.clear()
    camshaft.compile(two_norms(rows=10), threads=1, tune=False).close()
    assert times == []


def test_a_changed_kernel_is_measured_anew(times: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (use,) = uses_of([two_norms()], None)
    assert not is_measured(use)
    graphs.tune_uses([use], BenchmarkConfig(threads=1))
    assert is_measured(use)
    monkeypatch.setattr("camshaft.validation.cases._source_digest", lambda module, sources: "changed")
    assert not is_measured(use)


def test_what_is_fused_is_tuned_as_it_is_run() -> None:
    graph = Graph()
    a, b = (graph.input(name, (4, 64), "f32") for name in "ab")
    graph.output("y", camshaft.rms_norm(camshaft.add(a, b), graph.constant("w", np.ones(64, np.float32)), eps=1e-5))
    (use,) = uses_of([prepare(graph, "f32")], "simd")
    assert (use.op.name, use.override) == ("residual_norm", "simd")


@pytest.mark.full
def test_progress_is_told(times: list[str]) -> None:
    told: list[tuple[int, int]] = []
    uses = uses_of([two_norms(), two_norms(rows=8)], None)
    found = graphs.tune_uses(uses, BenchmarkConfig(threads=1), lambda done, total: told.append((done, total)))
    assert told == [(0, 2), (1, 2), (2, 2)]
    assert [t.op for t in found] == ["rms_norm", "rms_norm"]


def test_every_square_product_has_a_neighbour_on_the_ladder() -> None:
    uses = ladder(only="matmul")
    op = ops.get("matmul")
    simd = next(v for v in op.variants if v.name == "lanes")
    measurements().add(measurement(op, simd, "simd", use.node, 1.0, 1) for use in uses)
    for n in (16, 17, 63, 65, 200, 500, 1000, 2048, 4096):
        a = TensorSpec((n, n), f32)
        node = NodeSpec((a, a), (a,), {})
        assert measurements().ns(op, case_of(op, simd, "simd", node), node) is not None, n


def test_the_ladder_has_the_product_that_everybody_measures_and_no_shape_twice() -> None:
    uses: list[Use] = ladder("simd")
    a = TensorSpec((1024, 1024), f32)
    assert any(use.op.name == "matmul" and use.node.inputs == (a, a) and not use.node.attrs for use in uses)
    assert len({use.key for use in uses}) == len(uses)
    assert {use.override for use in uses} == {"simd"}
    assert {use.op.name for use in ladder(only="norm")} == {"rms_norm", "residual_norm"}


@pytest.mark.full
def test_a_model_is_tuned_for_real_and_its_plan_uses_it(tmp_path: Path) -> None:
    """One op of a tiny model, measured in its plans' shapes, by the command."""
    model = tiny_model("llama", tmp_path)
    runner = CliRunner()
    result = runner.invoke(app, ["tune", str(model), "--only", "rms_norm", "--threads", "2", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["shapes"] == len(report["tuned"]) == 2  # a prompt, and one token as its row of logits is
    assert all(t["after_ns"] > 0 and t["gain"] >= 1 for t in report["tuned"])
    with camshaft.LanguageModel(model, threads=2) as lm:
        norms = [n.spec for n in lm.plans.single.graph.nodes if n.op.name == "rms_norm"]
        assert norms
        assert all(measurements().at(ops.get("rms_norm"), node) for node in norms)
