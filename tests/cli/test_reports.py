"""`plan`, `doctor`, `bench`, `models`: what they print, for people and as one JSON object."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from camshaft.cli.show import plain, size
from camshaft.dispatch.evidence import BackendValidation, Verdict, summary


def test_plan_lists_thunks_and_memory(cli: Any, lm: Any, model_file: str) -> None:
    lines = cli("plan", model_file).stdout.splitlines()
    assert lines[2].split() == ["1", "wait", "blk.0.q", "quantized_matmul", "dot4", "fastest", "of", "3"]
    assert lines[-3:] == [
        "arena     1.0 kB, for temporaries of 3.0 kB in sum",
        "weights   98.0 MB",
        "KV cache  64 bytes a session",
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


@dataclass(frozen=True)
class Machine:
    features: frozenset[str]
    cores: int
    cache_nbytes: dict[str, int]
    blas: tuple[Library, ...]


@dataclass(frozen=True)
class Library:
    name: str
    version: str | None
    path: str | None


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one backend that failed half of an op, and one that is absent."""
    dispatch = importlib.import_module("camshaft.dispatch")
    libraries = (Library("one", "1.0", None), Library("two", None, None))
    machine = Machine(frozenset({"avx2", "fma"} | {f"feature{i}" for i in range(30)}), 2, {"l1": 32768}, libraries)
    verdicts = (Verdict("copy", "rows", "simd", "proved"), Verdict("copy", "fast", "simd", "failed", "error 1 above 0"))
    backends = {"simd": summary("simd", verdicts, None), "cuda": summary("cuda", (), "no cuda here")}

    def validate_backends(*, progress: Callable[[int, int], None]) -> dict[str, BackendValidation]:
        progress(0, 2)
        progress(2, 2)
        return backends

    monkeypatch.setattr(dispatch, "capabilities", lambda: machine, raising=False)
    monkeypatch.setattr(dispatch, "validate_backends", validate_backends, raising=False)


def test_doctor_json_has_whatever_dispatch_knows(cli: Any, lm: Any, proofs: None) -> None:
    result = cli("doctor", "--json")
    report = json.loads(result.stdout)
    assert report["machine"]["features"][:2] == ["avx2", "feature0"]
    assert report["machine"]["cache_nbytes"] == {"l1": 32768}
    assert report["backends"]["simd"]["verdicts"][1]["reason"] == "error 1 above 0"
    assert Path(report["cache_dir"]).name == "cache"
    assert result.stderr == "camshaft: proving kernels\n"


def test_doctor_tabulates_what_was_proved(cli: Any, lm: Any, proofs: None) -> None:
    lines = cli("doctor").stdout.splitlines()
    assert "  cores     2" in lines
    assert max(len(line) for line in lines if "feature" in line) <= 80
    at = lines.index("  blas")
    assert [line.split() for line in lines[at + 1 : at + 4]] == [
        ["name", "version"],
        ["one", "1.0"],
        ["two", "unknown"],
    ]
    table = [line.split() for line in lines[lines.index("backends") + 1 :]]
    assert table == [
        ["status", "proved", "failed", "absent", "why"],
        ["simd", "failed", "1", "1", "0"],
        ["cuda", "absent", "0", "0", "0", "no", "cuda", "here"],
        ["ops"],
        ["simd"],
        ["copy", "1", "proved,", "1", "failed"],
        ["copy", "fast", "on", "simd", "failed:", "error", "1", "above", "0"],
    ]


def test_bench_reports_spreads(cli: Any, lm: Any, model_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("camshaft.generate.benchmark")
    first = {"first_token_cold_s": module.Spread(4.0, 4.0, 4.0), "first_token_warm_s": module.Spread(0.5, 0.4, 0.6)}
    monkeypatch.setattr(module, "first_token", lambda *a, **k: first)
    result = cli("bench", model_file, "--prompt-tokens", "12", "--repeat", "2", "--json")
    report = json.loads(result.stdout)
    assert report["prompt_tokens_per_s"] == {"median": 100.0, "min": 100.0, "max": 100.0}
    assert report["first_token_warm_s"]["max"] == 0.6
    assert [len(prompt) for prompt, _ in lm.calls] == [12, 1] * 3
    assert "first token, warm, s     0.5" in cli("bench", model_file).stdout


def test_bench_of_several_sequences_adds_their_rate(
    cli: Any, lm: Any, model_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("camshaft.generate.benchmark")
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
