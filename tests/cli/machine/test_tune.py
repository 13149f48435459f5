"""`camshaft tune` with fake measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from camshaft.cli import options
from camshaft.errors import ModelError
from camshaft.generate.language_model import LanguageModel
from camshaft.selection.measurements import measurements
from camshaft.selection.sites import measurement
from camshaft.tune import graphs
from camshaft.tune.graphs import Use, uses_of
from camshaft.tune.nodes import Failure, Tuned
from tests.support.fixtures import tiny_model


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Use]:
    """Every use comes out 1.25 times as fast, and its first variant's time is stored; gives the uses."""
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path))
    uses: list[Use] = []

    def tune_node(op: Any, node: Any, override: str | None, config: Any) -> Tuned:
        uses.append(Use(op, node, override, config.cold))
        made = [measurement(op, v, "simd", node, 800.0, 1) for v in op.variants]
        measurements().add([*made, *(measurement(op, v, "blas", node, 800.0, 1) for v in op.variants)])
        shape, failed = str(node.inputs[0]), (Failure("rows lanes=64 (simd)", "hung: not compiled in 30 s"),)
        return Tuned(
            op.name, shape, False, 1, "rows (simd)", 1000.0, "rows lanes=32 (simd)", 800.0, 1.25, 0.02, 9, failed
        )

    monkeypatch.setattr(graphs, "tune_node", tune_node)
    return uses


def test_without_a_model_a_ladder_is_tuned(cli: Any, tuned: list[Use]) -> None:
    result = cli("tune", "--only", "softmax", "--backend", "simd")
    assert result.exit_code == 0
    assert {(use.op.name, use.override) for use in tuned} == {("softmax", "simd")}
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["op", "shape", "before", "us", "after", "us", "times", "as", "fast"]
    assert lines[1].split()[-5:] == ["rows", "lanes=32", "(simd)", "0.8", "1.25"]
    assert lines[-1] == "4 shapes tuned, 4 improved"
    assert "rows lanes=64 (simd) was rejected: hung: not compiled in 30 s" in result.stdout


def test_what_was_measured_is_not_measured_again_unless_asked_for(cli: Any, tuned: list[Use]) -> None:
    cli("tune", "--only", "softmax")
    tuned.clear()
    again = cli("tune", "--only", "softmax")
    assert tuned == []
    assert "4 shapes were measured before" in again.stdout
    cli("tune", "--only", "softmax", "--again")
    assert len(tuned) == 4


def test_one_json_object(cli: Any, tuned: list[Use]) -> None:
    report = json.loads(cli("tune", "--only", "softmax", "--json").stdout)
    assert (report["model"], report["shapes"], report["measured_before"]) == (None, 4, 0)
    assert report["tuned"][0]["op"] == "softmax"
    assert report["tuned"][0]["gain"] == 1.25
    assert report["tuned"][0]["failures"][0]["reason"].startswith("hung")


def test_a_backend_that_is_absent_is_one_line(cli: Any, tuned: list[Use]) -> None:
    result = cli("tune", "--backend", "abacus")
    assert result.exit_code == 2
    assert "no backend or device 'abacus'" in result.stderr
    assert tuned == []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Use]:
    """What would be tuned; nothing is measured or stored."""
    uses: list[Use] = []
    monkeypatch.setattr(graphs, "tune_node", lambda op, node, override, config: uses.append(Use(op, node, override)))
    return uses


@pytest.mark.full
def test_a_models_shapes_are_those_of_commands_and_of_the_library(cli: Any, asked: list[Use], tmp_path: Path) -> None:
    model = str(tiny_model("llama", tmp_path))
    shown = cli("tune", model, "--context", "96", "--only", "attention", "--again")
    assert shown.exit_code == 0
    run = set()
    for sessions in ({"sessions": 1}, {}):
        with LanguageModel(model, context=96, **sessions) as lm:
            uses = uses_of([lm.plans.prompt.graph, lm.plans.single.graph], None)
            run |= {use.key for use in uses if "attention" in use.op.name}
    assert {use.key for use in asked} == run
    assert len(run) == 4, "of prompts and of single tokens, with one session and with as many as the library has"


def test_sessions_and_the_cache_may_be_named(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[int, str | None]] = []

    def open_model(running: options.ModelOptions, model: str, context: int, sessions: int) -> None:
        opened.append((sessions, running.kv_cache))
        raise ModelError(f"{model}: nothing is opened here")

    monkeypatch.setattr(options.ModelOptions, "open", open_model)
    assert cli("tune", "m.gguf", "--sessions", "3", "--kv-cache", "q8_0").exit_code == 2
    assert opened == [(3, "q8_0")]
