"""What the load generator sends and reports: prompts and times of a seed, addresses, figures of records, the chart."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from camshaft.errors import SettingError
from camshaft.serve.load.chart import chart
from camshaft.serve.load.report import Limits, Percentiles, report_of
from camshaft.serve.load.run import Record
from camshaft.serve.load.stream import AnswerError, target_of
from camshaft.serve.load.workload import WORDS, Workload


def test_prompts_and_times_follow_from_the_seed() -> None:
    workload = Workload(4000, None, 5.0, prompt_tokens=20, shared_tokens=15, chat=False, ignore_eos=False)
    first, second = (workload.prompt(i).split() for i in (0, 1))
    assert (len(first), first[:15], first[15:] != second[15:]) == (20, second[:15], True)
    assert set(first) <= set(WORDS)
    arrivals = workload.arrivals()
    assert arrivals == workload.arrivals() == sorted(arrivals)
    assert arrivals != Workload(4000, None, 5.0, seed=1).arrivals()
    assert arrivals[-1] == pytest.approx(4000 / 5, rel=0.05)
    assert workload.path == "/completions"
    assert workload.body(3, "m")["prompt"] == workload.prompt(3)
    assert "ignore_eos" not in workload.body(3, "m")
    assert workload.warm_up().prompt(0) != workload.prompt(0)
    wrong: list[dict[str, Any]] = [
        {"requests": 0}, {"clients": 0}, {"clients": None}, {"rate": 1.0}, {"clients": None, "rate": -1.0},
        {"clients": None, "rate": float("nan")}, {"prompt_tokens": 0}, {"shared_tokens": 300}, {"shared_tokens": -1},
        {"answer_tokens": 0},
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(SettingError, match="wanted"):
            Workload(**({"requests": 1} | given))


def test_addresses() -> None:
    for url in ("http://h:80", "http://h:80/", "http://h:80/v1", "http://h:80/v1/"):
        assert target_of(url).url == "http://h:80/v1"
    assert b"POST /api/v1/x HTTP/1.1\r\nHost: h:80\r\n" in target_of("http://h:80/api/v1").head("POST", "/x", 0)
    for url in (
        "",
        "h:80",
        "ftp://h",
        "http://",
        "http://h:x",
        "http://h:0",
        "http://[::1",
        "http://h/\r\nA: b",
        "http://ü",
    ):
        with pytest.raises(SettingError, match="the address"):
            target_of(url)
    with pytest.raises(SettingError, match="the address"):
        target_of("http://h", "a\r\nX: y")
    assert "secret" not in repr(target_of("http://h", "secret"))


def record(sent: float, first: float, n: int, gap: float, error: str | None = None) -> Record:
    pieces = [sent + first + i * gap for i in range(n)]
    return Record(sent, pieces, (pieces or [sent])[-1], error, prompt_tokens=10, cached_tokens=3, answer_tokens=n)


def test_the_figures_of_records() -> None:
    records = [
        record(0, 1, 5, 0.25),
        record(2, 3, 3, 0.25),
        record(1, 0.5, 2, 0.5),
        record(0, 1, 0, 0, "status 500: x"),
    ]
    report = report_of(Workload(4), records, Limits(1.0, 0.25))
    assert (report.seconds, report.failed, report.errors) == (5.5, 1, {"status 500: x": 1})
    assert (report.prompt_tokens, report.cached_tokens, report.answer_tokens) == (30, 9, 10)
    assert (report.tokens_per_s, report.answers_per_s, report.goodput_per_s) == (10 / 5.5, 3 / 5.5, 1 / 5.5)
    assert (report.first_token_s.p50, report.first_token_s.p95, report.between_tokens_s.max) == (1, 3, 0.5)
    assert "times" not in report.json
    assert Percentiles.of([float(i) for i in range(100, 0, -1)]) == Percentiles(50, 95, 99, 50.5, 100)
    assert Percentiles.of([2.0]) == Percentiles(2, 2, 2, 2, 2)
    with pytest.raises(AnswerError, match=r"no answer to 2 requests: status 500: x \(2 times\)"):
        report_of(Workload(2), [records[3]] * 2, Limits())


def test_the_chart_is_one_svg_file_without_outside_resources() -> None:
    times = {"first_token_s": [0.5, 2.0], "between_tokens_s": [0.0], "answer_s": [i / 100 for i in range(1000)]}
    text = chart("a <b> & c", {"1 client": times, "4 <clients>": times})
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert text.count("<path") == 6
    assert "500 ms, 2 s, 2 s" in text
    assert text.count("http") == 1  # the namespace
    assert "nan" not in text
