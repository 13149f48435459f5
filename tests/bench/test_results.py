"""Rows as JSON and Markdown: units, ratios, shares, targets; files that can and cannot be resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.compare.interleaved import Measured
from bench.compare.report import markdown_of
from bench.compare.results import Results, ResultsError, load, means, row_of
from bench.compare.suites.suite import OURS, UNITS, Suite, Target, Task
from camshaft.observe.machine_peak import MachinePeak

PEAK = MachinePeak(1, 1e9, 4e9, 2e9, 1e9)
SUITE = Suite("fake", 1, (), ())
FACTS = {
    "cpu": "a CPU",
    "llvm_cpu": "cpu",
    "usable_cores": 2,
    "cores": 2,
    "memory_nbytes": 1 << 30,
    "virtual": False,
    "features": ["avx2"],
    "governor": "unknown",
    "load_average": 0.1,
    "system": "Linux",
    "python": "3.11",
    "llvm": "20",
}


def task(**more: Any) -> Task:
    return Task("read", {}, "tokens/s", 100, **more)


def found(ours: list[float] | None = None, **peers: list[float]) -> Measured:
    return Measured(
        {**peers, **({OURS: ours} if ours else {})}, {"torch": "ModuleNotFoundError: No module named 'torch'"}
    )


def results(path: Path | None = None, **more: Any) -> Results:
    return Results(path, dict(FACTS), "abc", {1: PEAK}, **more)


def test_a_row_tells_ratio_spread_share_and_what_is_met() -> None:
    wanted = Target(ratio=4.0, floor=2.0, share=0.5, figure=60.0)
    row = row_of(
        SUITE, task(target=wanted, nbytes=1e9), found([1.0, 2.0, 4.0], a=[6.0, 6.0, 6.0], b=[9.0, 9.0, 9.0]), PEAK
    )
    assert row["best_peer"] == "a"
    assert (row["ratio"], row["ratio_min"], row["ratio_max"]) == (3.0, 1.5, 6.0)
    assert row["sides"][OURS]["tokens/s"] == {"median": 50.0, "min": 25.0, "max": 100.0}
    assert row["peak_share"] == 0.5
    assert row["met"] == {"ratio": False, "floor": True, "share": True, "figure": False}
    assert row["rounds"] == 3


def test_certain_peers_may_have_targets_of_their_own() -> None:
    wanted = Target(against={"a": 1.0, "b": 1.5, "c": 9.0})
    row = row_of(SUITE, task(target=wanted), found([2.0], a=[3.0], b=[2.5]), None)
    assert row["ratios"] == {"a": 1.5, "b": 1.25}
    assert row["met"] == {"a": True, "b": False}
    assert row["target"] == {"against": {"a": 1.0, "b": 1.5, "c": 9.0}}


def test_a_figure_that_is_a_time_is_met_from_below() -> None:
    row = row_of(SUITE, Task("add", {}, "ns", 100, Target(figure=15.0)), found([1.4e-6]), None)
    assert row["sides"][OURS]["ns"]["median"] == 14.0
    assert row["met"] == {"figure": True}


def test_without_a_peer_there_is_no_ratio_and_without_camshaft_no_verdict() -> None:
    alone = row_of(SUITE, task(target=Target(ratio=2.0)), found([1.0]), PEAK)
    assert "ratio" not in alone
    assert alone["met"] == {}
    assert row_of(SUITE, task(target=Target(ratio=2.0)), found(a=[1.0]), PEAK)["met"] == {}


@pytest.mark.parametrize(("unit", "shown"), [("GB/s", 2.0), ("us", 2.5e5), ("tokens/s", 2e9), ("x file", 0.25)])
def test_units(unit: str, shown: float) -> None:
    answer, amount = (0.5, 2.0) if unit == "x file" else (0.5, 1e9) if UNITS[unit].rate else (0.5, 2.0)
    assert UNITS[unit].of(answer, amount) == shown


def test_families_have_geometric_means() -> None:
    rows = [{"group": "g", "family": "f", "threads": 1, "ratio": r} for r in (0.5, 2.0)]
    rows += [{"group": "g", "family": "", "threads": 1, "ratio": 9.0}, {"group": "g", "family": "f", "threads": 2}]
    (mean,) = means(rows, {"f": 1.0})
    assert (mean["ratio"], mean["n"], mean["ratio_min"], mean["target"], mean["met"]) == (1.0, 2, 0.5, 1.0, True)


def test_the_file_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, wanted = tmp_path / "rows.json", task(target=Target(ratio=1.0), nbytes=1.0)
    first = results(path)
    first.store(SUITE, wanted, found([0.123456, 2.0], a=[3.0, 3.0]))
    monkeypatch.setattr("bench.compare.results.source_version", lambda: "abc")
    monkeypatch.setattr("bench.compare.results.machine", lambda: FACTS | {"load_average": 9.0})
    again = load(path)
    assert again.peaks == {1: PEAK}
    assert again.measured("fake", "read", 1).answers == {"a": [3.0, 3.0], OURS: [0.123456, 2.0]}
    assert again.measured("fake", "read", 2).answers == {}
    assert again.document()["rows"] == first.document()["rows"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"source": "def"}, "another source (def, here abc)"),
        ({"machine": FACTS | {"cpu": "another"}}, "another machine (cpu)"),
        ({"schema": 0}, "schema 0; wanted 1"),
        ({"rows": [{}]}, "is not a results file of this command"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, said: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(results().document() | change))
    monkeypatch.setattr("bench.compare.results.source_version", lambda: "abc")
    monkeypatch.setattr("bench.compare.results.machine", lambda: FACTS)
    with pytest.raises(ResultsError) as refusal:
        load(path)
    assert said in str(refusal.value)


def test_the_table_says_all_of_it() -> None:
    made = results(wanted={"f": 2.0})
    wanted = Target(ratio=2.0, floor=1.2, share=0.4)
    made.store(SUITE, task(target=wanted, nbytes=1e9, family="f"), found([2.0, 2.0], a=[3.0, 3.0]))
    text = markdown_of(made.document())
    lines = text.splitlines()
    assert "camshaft abc; a CPU (cpu), 2 of 2 cores, avx2;" in lines[0]
    assert "| 1 | 1 | 4 | 2 | 1 |" in lines
    assert "**fake**" in lines
    row = "| 1 | read | 50 (50 to 50) tokens/s | a 33.33 (33.33 to 33.33); torch: absent | 1.50 (1.50 to 1.50) "
    assert row + "| 2, never under 1.2 | 50% | 40% | no: ratio |" in lines
    assert "| 1 | 1 f | 1.50 (1.50 to 1.50) | 2.0 | no |" in lines
    assert "- torch, in 1 row: ModuleNotFoundError: No module named 'torch'" in lines
    assert {
        len(line.split("|")) for line in lines if "read |" in line or "times the best peer | wanted | of" in line
    } == {11}


def test_the_best_peak_counts_for_every_row() -> None:
    made, wanted = results(), task(target=Target(share=0.6), nbytes=1e9, ops={"f32": 1.0})
    made.peaks.clear()
    assert not made.has_peak(SUITE)
    made.add_peak(SUITE, MachinePeak(1, 5e8, 1e9, 1e9, 9e9))
    made.store(SUITE, wanted, found([2.0]))
    assert (made.rows["fake", "read", 1]["peak_share"], made.rows["fake", "read", 1]["met"]) == (1.0, {"share": True})
    made.add_peak(SUITE, MachinePeak(1, 1e9, 1e8, 1e8, 1e9))
    assert made.peaks[1] == MachinePeak(1, 1e9, 1e9, 1e9, 9e9)
    assert (made.rows["fake", "read", 1]["peak_share"], made.rows["fake", "read", 1]["met"]) == (0.5, {"share": False})
    made.add_peak(SUITE, MachinePeak(1, 1e6, 1e6, 1e6, 1e6))
    assert made.rows["fake", "read", 1]["peak_share"] == 0.5, "a disturbed one changes nothing"


def test_a_row_of_more_rounds_says_so() -> None:
    made = results(rounds=1)
    made.store(SUITE, task(), found([1.0], a=[1.0]))
    made.store(SUITE, Task("more", {}, "s", 1), found([1.0, 2.0, 1.0], a=[1.0, 1.0, 1.0]))
    text = markdown_of(made.document())
    assert "| 1 | read | " in text
    assert "| 1 | more (3 rounds) | 1 (1 to 2) s |" in text
