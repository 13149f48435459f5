"""Each line of a batch gets one result, also where jobs lose some and do others twice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from camshaft.cluster.batch import run_jobs
from camshaft.cluster.connect import ClusterError, cause_of
from camshaft.cluster.rows import BLOCK_ROWS, Ledger
from camshaft.serve.batch.files import Line, Results, read_lines, result_line
from camshaft.serve.batch.run import Tally

MOST_NBYTES = 10_000
Row = dict[str, Any]


def _line(i: int, prompt: str) -> str:
    return json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": {"prompt": prompt}})


def _answer(line: Line, n_tokens: int = 0, **others: Any) -> Row:
    custom_id = json.loads(line.text or b"")["custom_id"]
    result = result_line(line.key, custom_id, {"status_code": 200, **others}, None)
    tokens = dict.fromkeys(("prompt_tokens", "cached_tokens", "generated_tokens"), n_tokens)
    return {"key": line.key, "result": result, "is_answer": True, **tokens}


class Job:
    """Does what it is told, one thing for each job; `asked` has the numbers of the lines of each block of each job."""

    def __init__(self, *told: str) -> None:
        self._told, self.asked = list(told), list[list[list[int]]]()

    def __call__(self, blocks: Iterable[list[Line]], is_strict: bool) -> Iterator[Row]:
        given, told = list(blocks), self._told.pop(0)
        self.asked.append([[line.number for line in block] for block in given])
        lines = [line for block in given for line in block]
        if told == "fails":
            assert is_strict
            raise ClusterError("no room")
        lost = {"loses a third": lines[::3], "loses all": lines}.get(told, [])
        for line in lines:
            if line not in lost:
                yield _answer(line, n_tokens=2)
                if told == "does them twice":
                    yield _answer(line, again=True)


def _run(folder: Path, job: Job) -> Tally:
    with Results(folder / "out") as results:
        tally = Tally(results.check_source(folder / "in", MOST_NBYTES), len(results.done))
        run_jobs(Ledger(results, tally), lambda: read_lines(folder / "in", MOST_NBYTES), job, lambda: None)
    return tally


def _results(folder: Path) -> list[Row]:
    return [json.loads(line) for line in (folder / "out").read_text("utf-8").splitlines()]


def test_jobs_that_lose_lines_are_followed_by_others_for_these(tmp_path: Path) -> None:
    n = 3 * BLOCK_ROWS + 5
    prompts = [f"{'abc'[i % 3]} {i}" for i in range(n)]
    (tmp_path / "in").write_text("\n".join([*map(_line, range(n), prompts), "{", _line(0, "again")]), "utf-8")
    job = Job("loses a third", "loses all", "does them twice")
    tally = _run(tmp_path, job)
    assert (tally.n_done, tally.n_answered, tally.n_failed, tally.prompt_tokens) == (n + 2, n, 2, 2 * n)
    rows = _results(tmp_path)
    assert sorted(row["custom_id"] or "" for row in rows) == sorted(["", "0", *map(str, range(n))])
    assert not any("again" in (row["response"] or {}) for row in rows)
    assert {row["error"]["code"] for row in rows if row["error"]} == {"invalid_json", "duplicate_custom_id"}
    first, second, third = job.asked
    assert [len(block) for block in first] == [BLOCK_ROWS] * 3 + [5]
    starts = [prompts[number - 1][0] for block in first for number in block]
    assert starts == sorted(starts)  # those that begin alike are beside each other
    assert second == third
    assert sum(map(len, second)) == len(range(0, n, 3))


def test_a_later_run_asks_for_the_lines_without_a_result(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("\n".join(_line(i, "a") for i in range(10)), "utf-8")
    with pytest.raises(ClusterError, match="no room"):
        _run(tmp_path, Job("loses a third", "loses all", "fails"))
    job = Job("answers all")
    assert _run(tmp_path, job).n_before == 6
    assert job.asked == [[[1, 4, 7, 10]]]
    assert _run(tmp_path, Job()).n_done == 10
    (tmp_path / "in").write_text((tmp_path / "in").read_text() + "\n" + _line(11, "a"), "utf-8")
    with pytest.raises(ClusterError, match="no results, and no error"):
        _run(tmp_path, Job("loses all", "loses all"))


def test_the_message_of_an_error_of_ray_is_that_of_the_error_within() -> None:
    said = "ray::_MapWorker() (pid=1)\n  File 'a.py', line 1\ncamshaft.errors.ModelError: no such file: a: b\n"
    assert cause_of(said) == "no such file: a: b"
    assert cause_of(ValueError()) == "ValueError"
