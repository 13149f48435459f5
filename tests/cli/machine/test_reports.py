"""`plan`, `doctor`, `bench`, `models`: text and JSON output."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from camshaft.cli.command import plain, size
from camshaft.validation.evidence import BackendValidation, ValidationResult, summary


def test_plan_lists_thunks_and_memory(cli: Any, lm: Any, model_file: str) -> None:
    lines = cli("plan", model_file).stdout.splitlines()
    assert lines[2].split() == ["1", "wait", "blk.0.q", "quantized_matmul", "dot4", "fastest", "of", "3"]
    assert lines[-7:] == [
        "arena             1.0 kB, for temporaries of 3.0 kB in sum",
        "weights           98.0 MB",
        "of it, experts    90.0 MB mapped from files, the most used in up to 20.0 MB of memory",
        "KV cache          64 bytes a session, in f16",
        "of it, windows    40 bytes, 16 tokens for windows of 7",
        "recurrent states  2.0 kB a session",
        "copies            up to 4 of 2.5 kB a session, to go back to earlier tokens",
    ]


def test_plan_json(cli: Any, lm: Any, model_file: str) -> None:
    plan = json.loads(cli("plan", model_file, "--json").stdout)
    assert plan["waits"] == 1
    assert plan["thunks"][1] == {
        "name": "blk.0.q",
        "op": "quantized_matmul",
        "variant": "dot4",
        "reason": "fastest of 3",
        "wait": True,
    }
    assert plan["arena_nbytes"] < plan["temp_nbytes_sum"]


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One backend that failed half of an op, one that lacks another op, and one that is absent; a roof, and no tuning."""
    dispatch = importlib.import_module("camshaft.validation.proof")
    peak = importlib.import_module("camshaft.observe.machine_peak")
    results = (
        ValidationResult("copy", "rows", "simd", "proved"),
        ValidationResult("copy", "fast", "simd", "failed", "error 1 above 0"),
    )
    lacking = (ValidationResult("silu", "row_blocks", "c", "absent", "no loads"),)
    backends = {
        "simd": summary("simd", results, None),
        "c": summary("c", lacking, None),
        "cuda": summary("cuda", (), "no cuda here"),
    }

    def validate_backends(*, progress: Callable[[int, int], None]) -> dict[str, BackendValidation]:
        progress(0, 2)
        progress(2, 2)
        return backends

    monkeypatch.setattr(dispatch, "validate_backends", validate_backends, raising=False)
    monkeypatch.setattr(peak, "stored_peaks", lambda: (peak.MachinePeak(2, 47.1e9, 1e12, 5e11, 2e11),))


def test_doctor_json_has_whatever_dispatch_knows(cli: Any, lm: Any, proofs: None) -> None:
    result = cli("doctor", "--json")
    report = json.loads(result.stdout)
    assert report["machine"]["cores"] >= 1
    assert report["machine"]["features"] == sorted(report["machine"]["features"])
    assert report["backends"]["simd"]["results"][1]["reason"] == "error 1 above 0"
    assert report["families"]["copy"] == {"simd": {"proved": 1, "failed": 1, "absent": 0}}
    assert [a["reason"] for a in report["absences"]] == ["no cuda here", "no loads"]
    assert report["failures"][0]["variant"] == "fast"
    assert report["peaks"][0]["read_bytes_per_s"] == 47.1e9
    assert report["measurements"]["n_sites"] == 0
    assert Path(report["cache_dir"]).name == "cache"
    assert result.stderr == "camshaft: proving kernels (2 kernels)\ncamshaft: proving kernels: 2 of 2 kernels\n"


@pytest.mark.parametrize("columns", [80, 120])
def test_doctor_tabulates_what_was_proved(
    cli: Any, lm: Any, proofs: None, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = [line.rstrip() for line in cli("doctor").stdout.splitlines()]
    assert max(map(len, lines)) <= columns
    words = [line.split() for line in lines]
    at = words.index(["simd", "c"])
    assert words[at + 2 : at + 6] == [["copy", "1", "!1"], ["activation", "-1"], [], ["all", "1", "!1", "-1"]]
    for line in (
        ["copy", "fast", "on", "simd", "error", "1", "above", "0"],
        ["c", "no", "loads", "(1", "kernel:", "silu)"],
    ):
        assert line in words
    text = " ".join(word for line in words for word in line)
    assert "cuda no cuda here (" in text
    assert "peak, 2 threads reads 47.1 GB/s; int8 1000, bf16 500, f32 200 G operations/s" in text
    assert "measured nothing yet: a run of a model or camshaft tune" in text


def test_bench_reports_spreads(cli: Any, lm: Any, model_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("camshaft.generate.measures.benchmark")
    first = {"first_token_cold_s": module.Spread(4.0, 4.0, 4.0), "first_token_warm_s": module.Spread(0.5, 0.4, 0.6)}
    monkeypatch.setattr(module, "first_token", lambda *a, **k: first)
    result = cli("bench", model_file, "--prompt-tokens", "12", "--repeat", "2", "--json")
    report = json.loads(result.stdout)
    assert report["prompt_tokens_per_s"] == {"median": 100.0, "min": 100.0, "max": 100.0}
    assert report["first_token_warm_s"]["max"] == 0.6
    assert [len(prompt) for prompt, _ in lm.calls] == [12, 1] * 3
    assert "first token, warm, s     0.5" in cli("bench", model_file).stdout


def test_the_first_token_is_of_the_model_as_it_was_asked_for(
    cli: Any, lm: Any, model_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def first_byte(command: list[str], env: object) -> float:
        commands.append(command)
        return 0.5

    monkeypatch.setattr(importlib.import_module("camshaft.generate.measures.benchmark"), "_first_byte_s", first_byte)
    adapters = ["--adapter", "a.gguf", "--adapter", "b.gguf:0.5"]
    assert cli("bench", model_file, "--repeat", "1", "--threads", "1", *adapters).exit_code == 0
    assert [c[-6:] for c in commands] == [["--threads", "1", *adapters]] * 2
    assert lm.made["adapters"] == [("a.gguf", 1.0), ("b.gguf", 0.5)]


def test_bench_of_several_sequences_adds_their_rate(
    cli: Any, lm: Any, model_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("camshaft.generate.measures.benchmark")
    monkeypatch.setattr(module, "first_token", lambda *a, **k: {})
    report = json.loads(cli("bench", model_file, "--repeat", "1", "--sequences", "12", "--json").stdout)
    assert report["together_tokens_per_s"]["median"] == 240.0
    assert lm.made["sessions"] == 12


def test_models_says_how_to_get_one_when_there_is_none(cli: Any, lm: Any) -> None:
    result = cli("models")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "'camshaft pull' fetches smollm2" in result.stderr


def test_sizes_for_people() -> None:
    assert [size(n) for n in (0, 999, 1000, 98_362_432, 2_500_000_000)] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "98.4 MB",
        "2.5 GB",
    ]


def test_what_json_cannot_hold_is_an_error() -> None:
    with pytest.raises(TypeError, match="object"):
        plain({"a": object()})
