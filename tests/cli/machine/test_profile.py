"""`camshaft profile` on a tiny model: tables, JSON, HTML page, trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from camshaft.observe.machine_peak import MachinePeak
from tests.support.fixtures import tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model("llama", tmp_path_factory.mktemp("tiny")))


@pytest.fixture(autouse=True)
def known_peak(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A roof that nobody has to measure; and whether each call asked to measure again."""
    asked: list[bool] = []

    def peak(threads: int, *, remeasure: bool = False) -> MachinePeak:
        asked.append(remeasure)
        return MachinePeak(threads, 1e10, 4e11, 5e10, 1e11)

    monkeypatch.setattr("camshaft.observe.machine_peak.machine_peak", peak)
    monkeypatch.setattr("camshaft.observe.profile.machine_peak", peak)
    return asked


SHORT = ("--prompt-tokens", "5", "--runs", "2", "--threads", "2")


def test_tables_by_op_and_part_are_printed_and_others_on_request(cli: Any, tiny: str) -> None:
    shown = cli("profile", tiny, *SHORT).stdout
    assert f"{tiny}, backend simd, threads 2" in shown
    assert "prompt of 5 tokens: " in shown
    assert "the token after 5: " in shown
    assert shown.count("peak with 2 threads: 10.0 GB/s, int8 400, bf16 50, f32 100 Gop/s") == 2
    heads = [line.split()[0] for line in shown.splitlines() if line.split()[1:2] == ["thunks"]]
    assert heads == ["op", "part"] * 2
    more = cli("profile", tiny, *SHORT, "--phase", "generate", "--layers", "--thunks").stdout
    heads = [line.split()[0] for line in more.splitlines() if line.split()[1:2] == ["thunks"]]
    assert heads == ["op", "part", "layer", "thunk"]
    assert "blk.1.attn_q" in more


def test_one_object_holds_all_of_it(cli: Any, tiny: str, known_peak: list[bool]) -> None:
    report = json.loads(cli("profile", tiny, *SHORT, "--json", "--peak").stdout)
    assert (report["model"], report["threads"]) == (tiny, 2)
    assert set(report["profiles"]) == {"prompt of 5 tokens", "the token after 5"}
    prompt = report["profiles"]["prompt of 5 tokens"]
    assert prompt["runs"] == 2
    assert prompt["extents"]["tokens"] == 5
    assert len(prompt["thunks"]) == sum(row["n_thunks"] for row in prompt["ops"])
    assert known_peak[0] is True, "--peak measures again"
    assert not any(known_peak[1:])


def test_a_page_and_a_trace_are_written(cli: Any, tiny: str, tmp_path: Path) -> None:
    html, trace = tmp_path / "page.html", tmp_path / "trace.json"
    result = cli("profile", tiny, *SHORT, "--html", str(html), "--trace", str(trace))
    assert result.exit_code == 0
    assert "<h1>llama" in html.read_text("utf-8")
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        "prompt of 5 tokens",
        "the token after 5",
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--phase", "all"), "--phase=all: wanted prompt, generate, both"),
        (
            ("--html", "/not/there/page.html"),
            "/not/there/page.html: not writable: it is a folder, or its folder does not exist",
        ),
        (("--runs", "0"), "0; wanted 1 or more"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments: tuple[str, ...], said: str, cli: Any, tiny: str) -> None:
    result = cli("profile", tiny, *SHORT, *arguments)
    assert result.exit_code == 2
    (line,) = [text for text in result.stderr.splitlines() if said in text]
    assert line.startswith("camshaft")
