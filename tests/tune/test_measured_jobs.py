"""Jobs of the background process: their budget, and those that fail, kill it, are damaged or cannot be written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from camshaft.errors import StoreError
from camshaft.store.files import private_folder
from camshaft.store.store import store
from camshaft.tune import jobs, measured_choice
from camshaft.tune.rounds import Timing
from tests.tune.played_times import MATMUL, Played, end_of_program, plan_of_product


def test_the_budget_bounds_what_is_measured_and_the_rest_waits(started: list[str]) -> None:
    sizes = (64, 96, 128, 160)
    for size in sizes:
        plan_of_product(size).close()
    jobs.measure_later({str(i): [u] for i, u in enumerate(jobs._record.used.values())}, 1)
    (job,) = jobs.waiting()
    slow = Played(**dict.fromkeys([v.name for v in MATMUL.variants], 30_000.0))  # 0.12 s and more for each shape
    first = measured_choice.do_job(job, slow)
    assert 1 <= len(first) < len(sizes)
    (later,) = jobs.waiting()
    assert later.stem.endswith(".1")
    assert len(json.loads(later.read_text())["uses"]) == len(sizes) - len(first)
    fast = Played()
    assert len(measured_choice.do_job(later, fast)) == len(sizes) - len(first)
    assert jobs.waiting() == []
    assert all(raced[0] == raced[1] for raced in fast.raced)  # the reference twice, for its noise


def test_a_job_that_kills_its_process_is_tried_twice(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plan_of_product().close()
    end_of_program()

    def killed(*_: object) -> list[Timing]:
        raise KeyboardInterrupt

    for left in (1, 1, 0):
        (job,) = jobs.waiting()
        with pytest.raises(KeyboardInterrupt):
            measured_choice.do_job(job, killed)
        assert len(jobs.waiting()) == left


@pytest.mark.parametrize("text", ["", "{", "[]", '{"uses": 5}', '{"uses": [{"op": "x"}], "threads": 1, "saved": null}'])
def test_damaged_jobs_are_deleted(text: str, started: list[str]) -> None:
    private_folder(store().leases.folder)
    private_folder(jobs.folder())
    (jobs.folder() / "job.0.json").write_text(text)
    (jobs.folder() / "other").mkdir()
    (jobs.folder() / "link.0.json").symlink_to("/dev/zero")
    (job,) = jobs.waiting()
    assert measured_choice.do_job(job, Played()) == []
    assert jobs.waiting() == []


def test_a_store_that_cannot_be_written_is_one_warning(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("camshaft.store.store._warned", set())
    plan_of_product().close()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jobs, "_write", full)
    with pytest.warns(UserWarning, match="going on without the cache: kernels are not measured: .*no space left"):
        end_of_program()


def test_a_job_that_cannot_be_written_leaves_no_part_of_it(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    private_folder(store().leases.folder)
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StoreError):
        jobs._write({"uses": [], "threads": 1, "saved": None})
    assert list(jobs.folder().iterdir()) == []


def test_a_job_that_fails_leaves_the_others(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Path] = []

    def first_fails(path: Path) -> None:
        done.append(path)
        if len(done) == 1:
            raise PermissionError(13, "Permission denied")

    private_folder(store().leases.folder)
    for threads in (1, 2):
        jobs._write({"uses": [], "threads": threads, "saved": None})
    monkeypatch.setattr(measured_choice, "do_job", first_fails)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setattr("threading.Timer.start", lambda _: None)
    measured_choice.main()
    assert done == jobs.waiting()
    assert len(done) == 2
