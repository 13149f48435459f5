"""`python -m bench.compare` on the command line: groups, threads, files, interrupts. No peer is started."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bench.compare import compare, interleaved
from bench.compare.__main__ import app, threads_of
from bench.compare.interleaved import Measured
from bench.compare.model_files import Watch
from bench.compare.suites import groups
from bench.compare.suites.suite import OURS, Peer, Suite, Target, Task
from camshaft.errors import SettingError
from camshaft.observe.machine_peak import MachinePeak


def made_up(threads: int, watch: Watch) -> Iterator[Suite]:
    peers = Peer("peer", "x:X"), Peer(OURS, "x:X", peer_python=False)
    yield Suite("made-up", threads, peers, (Task("a row", {}, "ns", 1, Target(ratio=2.0)),))


def again(threads: int, watch: Watch) -> Iterator[Suite]:
    for suite in made_up(threads, watch):
        yield replace(suite, group="again")


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """One group, whose rounds take 1 second for camshaft and 3 for its peer; the peak is not measured."""

    def run(suite: Suite, known: dict[str, Measured], limits: interleaved.Limits, start: object, keep: object) -> None:
        for task in suite.tasks:
            found = known[task.name]
            found.answers = {"peer": [3.0] * limits.rounds, OURS: [1.0] * limits.rounds}
            keep(task, found)  # type: ignore[operator]
            if suite.threads == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(groups, "GROUPS", {"made-up": made_up})
    monkeypatch.setattr(interleaved, "run", run)
    monkeypatch.setattr(
        importlib.import_module("camshaft.observe.machine_peak"),
        "measure",
        lambda n: MachinePeak(n, 1e9, 1e9, 1e9, 1e9),
    )


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_rows_are_printed_and_written(tmp_path: Path) -> None:
    rows, text = tmp_path / "rows.json", tmp_path / "table.md"
    result = bench("--threads", "1,2", "--quick", "--results", str(rows), "--markdown", str(text))
    assert result.exit_code == 0
    document = json.loads(rows.read_text())
    assert [(row["threads"], row["rounds"], row["ratio"], row["met"]) for row in document["rows"]] == [
        (1, 2, 3.0, {"ratio": True}),
        (2, 2, 3.0, {"ratio": True}),
    ]
    assert text.read_text() in result.stdout
    assert "**made-up**" in result.stdout


def test_json_instead_and_five_rounds() -> None:
    (row,) = json.loads(bench("--json", "--threads", "4").stdout)["rows"]
    assert row["rounds"] == 5


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    result = bench("--threads", "2,3,4", "--results", str(rows))
    assert result.exit_code == 130
    assert [row["threads"] for row in json.loads(rows.read_text())["rows"]] == [2, 3]
    assert "**made-up**" in result.stdout


def test_a_group_that_is_none_is_refused_in_a_line() -> None:
    result = bench("--only", "everything")
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize("text", ["0", "x", "1,,2", "", "-1"])
def test_threads_that_are_none(text: str) -> None:
    if text == "":
        assert threads_of(text) == (1, 2)
        return
    with pytest.raises(SettingError, match="wanted numbers from 1 up"):
        threads_of(text)


def test_groups_of_the_table_are_run_in_its_order() -> None:
    assert compare.QUICK_ROUNDS < interleaved.ROUNDS
    assert list(groups.chosen("made-up")) == ["made-up"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "1,5000"], "threads=5000: wanted 1 to 1024"),
        (["--resume"], "--resume: wanted together with --results FILE"),
        (["--results", "nowhere/rows.json"], "--results nowhere/rows.json: its folder does not exist"),
        (["--markdown", "."], "--markdown .: is a folder"),
    ],
)
def test_what_a_form_of_the_command_would_not_read_is_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert message in result.stderr


def test_a_file_that_is_no_text_is_not_gone_on_with(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    rows.write_bytes(b"\xff\xfe")
    result = bench("--resume", "--results", str(rows))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "is not a results file of this command" in result.stderr


def test_the_peak_is_measured_for_each_group_and_the_best_one_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[int] = []

    def measure(threads: int) -> MachinePeak:
        seen.append(threads)
        return MachinePeak(threads, *([1e9 / len(seen)] * 4))

    monkeypatch.setattr(importlib.import_module("camshaft.observe.machine_peak"), "measure", measure)
    monkeypatch.setattr(groups, "GROUPS", {"made-up": made_up, "again": again})
    document = json.loads(bench("--json", "--threads", "1").stdout)
    assert seen == [1, 1]
    assert [peak["read_bytes_per_s"] for peak in document["peaks"]] == [1e9]
