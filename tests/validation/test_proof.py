"""Planted faults are detected whatever they do to the child process, which ends with its parent."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from camshaft.errors import StoreError
from camshaft.validation import evidence, proof
from camshaft.validation.cases import VariantCase
from camshaft.validation.child_process import ChildProcess
from camshaft.validation.evidence import ValidationResult
from tests.support.quick import full
from tests.validation import planted_faults
from tests.validation.planted_cases import planted, results

ELSEWHERE = ("killed", "crashes_once", "allocates_far_too_much", "disk_is_full")


AGAIN = "in sample 'n=16, run again on NaN-filled, unaligned memory'"
# What is said of each fault, and of what is none.
SAID = {
    "right": "",
    "native": "",
    "right_but_slow": "",
    "refuses": "wants a machine that nobody has built",
    "wrong_in_last_ragged_element": "(?s)^(?=.*error).*sample 'n=1'",
    "writes_past_its_output": "wrote outside of its tensor",
    **dict.fromkeys(("adds_to_what_lay_there", "right_on_cache_lines_only", "wrong_every_second_time"), f"{AGAIN}$"),
    "raises": "^ValueError: out of patience$",
}
# Of the full run: each takes two processes, or 2 s of one.
SAID_OF_CRASHES = {
    "hangs": "^hung: silent for 2 s in sample 'n=16'$",
    "crashes": "^twice crashed its process: ",
    "exits": "^twice crashed its process: exit status 7 in sample 'n=16'$",
}


@pytest.mark.parametrize("said", [SAID, full(SAID_OF_CRASHES)], ids=["wrong", "crashing"])
def test_every_planted_fault_is_found_and_nothing_else(cache: Path, said: dict[str, str]) -> None:
    found = results(*said)
    right = {"right", "native", "right_but_slow"} & said.keys()
    assert {name for name, v in found.items() if v.status == "proved"} == right
    assert {name for name, v in found.items() if v.status == "absent"} == {"refuses"} & said.keys()
    for name, reason in said.items():
        assert re.search(reason, found[name].reason or ""), (name, found[name])


def test_each_planted_fault_is_looked_for() -> None:
    assert {*SAID, *SAID_OF_CRASHES, *ELSEWHERE} == {v.name for v in planted_faults.OP.variants}


@pytest.mark.skipif(sys.platform == "win32", reason="a killed process does not say so there")
def test_a_proof_that_somebody_ended_is_no_evidence(cache: Path) -> None:
    result = results("killed")["killed"]
    assert result.reason == "crashed its process: SIGTERM in sample 'n=16'"
    assert evidence.validation_cache().get(*planted("killed")) is None


def test_a_crash_that_does_not_come_again_is_no_failure(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ran before in the same process may have done the harm: a process of its own has the last word."""
    monkeypatch.setenv(planted_faults.CRASHED, str(tmp_path / "crashed"))
    result = results("crashes_once")["crashes_once"]
    assert (tmp_path / "crashed").exists()
    assert (result.status, result.n_samples) == ("proved", 5)


def test_what_follows_a_failure_is_proved_by_another_process(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    read = ChildProcess._read
    monkeypatch.setattr(ChildProcess, "_read", lambda child: (started.append(0), read(child)))
    monkeypatch.setattr(proof, "thread_count", lambda: 1)
    found = results("right", "writes_past_its_output", "native", "right_but_slow")
    assert [v.status for v in found.values()] == ["proved", "failed", "proved", "proved"]
    assert len(started) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="no bound on private memory there")
def test_memory_is_bounded_while_a_claim_is_judged(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "thread_count", lambda: 1)  # a child for both
    found = results("allocates_far_too_much", "right")
    assert found["right"].status == "proved"
    assert (found["allocates_far_too_much"].reason or "").startswith("MemoryError: Unable to allocate 7.00 GiB")


@pytest.mark.full
def test_a_full_store_is_no_verdict(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim would fail for ever by what was the disk's fault."""
    monkeypatch.setenv(planted_faults.FULL, "yes")
    with pytest.raises(StoreError, match="No space left on device"):
        results("disk_is_full")
    monkeypatch.delenv(planted_faults.FULL)
    assert results("disk_is_full")["disk_is_full"].status == "proved"


def test_an_interrupted_proof_goes_on_where_it_was(
    cache: Path, forgetful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verdicts are kept as they come, not at the end."""
    monkeypatch.setattr(proof, "_STORE_EVERY_S", 0.0)
    monkeypatch.setattr(proof, "thread_count", lambda: 1)

    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    rows = planted("right", "native", "right_but_slow", "raises")
    with pytest.raises(KeyboardInterrupt):
        proof.prove(rows, progress=interrupt)
    monkeypatch.setattr(evidence, "_caches", {})
    assert [evidence.validation_cache().get(case) is not None for case in rows] == [True, True, False, False]
    counted: list[tuple[int, int]] = []
    found = proof.prove(rows, progress=lambda done, total: counted.append((done, total)))
    assert counted == [(0, 2), (1, 2), (2, 2)]
    assert [v.status for v in found.values()] == ["proved", "proved", "proved", "failed"]


def test_an_absent_backend_starts_no_child(cache: Path, no_children: None) -> None:
    validation = proof.validate_backends(("null",))["null"]
    assert (validation.status, validation.results) == ("absent", ())
    assert "never runs" in (validation.reason or "")


def test_a_hang_is_tried_once_more_at_the_next_start_and_then_stays(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy or faulty machine may have caused it."""
    case, judged = planted("hangs")[0], []

    class Hangs:
        alive, crashed = True, False

        def __enter__(self) -> Hangs:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def judge(self, case: VariantCase, timeout_s: float) -> ValidationResult:
            judged.append(case)
            self.alive = False
            return ValidationResult(case.op, case.variant, case.backend, "failed", "hung", died=True)

    monkeypatch.setattr(proof, "_Child", Hangs)
    for start, wanted in ((1, 1), (2, 2), (3, 2)):
        monkeypatch.setattr(evidence, "_caches", {})
        for _ in range(2):
            assert proof.prove([case])[case].reason == "hung", start
        assert len(judged) == wanted


def test_compilation_does_not_count_as_a_hang(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    answers = iter([{"sample": "a"}, {"compiling": True}, {"compiling": False}, {"sample": "b"}])

    def answer(child: object, timeout_s: float) -> dict[str, object] | None:
        limits.append(timeout_s)
        return next(answers, None)

    monkeypatch.setattr(ChildProcess, "answer", answer)
    with proof._Child() as child:
        assert child.judge(planted("right")[0], 4.0).status == "failed"
    assert limits == [4.0, 4.0, proof.COMPILE_LIMIT_S, 4.0, 4.0]


@pytest.mark.skipif(sys.platform != "linux", reason="processes in /proc")
def test_a_child_and_its_compiler_end_with_their_parent(cache: Path, tmp_path: Path) -> None:
    """The parent is killed while its child compiles: neither goes on."""
    slow = tmp_path / "compiler"
    slow.write_text("#!/bin/sh\necho $$ > pid\nsleep 300 & wait\n")
    slow.chmod(0o755)
    code = f"""
import os
from pathlib import Path
from camshaft.backends.c import compilers
compilers._run(({str(slow)!r},), Path({str(tmp_path)!r}), 300)
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text().strip()):
        time.sleep(0.01)
    group = os.getpgid(int(pid.read_text()))
    parent.kill()
    parent.wait()
    expect_none(group)


@pytest.mark.skipif(sys.platform != "linux", reason="processes in /proc")
def test_a_child_that_reads_nothing_ends_with_its_parent(cache: Path, tmp_path: Path) -> None:
    """Such as one in native code: it does not see that its stdin is closed."""
    (tmp_path / "busy.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)\n")
    code = """
from camshaft.validation.child_process import ChildProcess
child = ChildProcess("busy", "is busy")
print(child._process.pid, flush=True)
child.answer(300)
"""
    path = os.pathsep.join([str(tmp_path), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}
    )
    assert parent.stdout is not None
    group = int(parent.stdout.readline())
    assert members(group)
    parent.kill()
    parent.communicate()
    expect_none(group)


def expect_none(group: int) -> None:
    """Wait some seconds for the end of a group's processes."""
    for _ in range(1000):
        if not members(group):
            return
        time.sleep(0.01)
    raise AssertionError(members(group))


def members(group: int) -> list[str]:
    """The processes of a group that are not dead."""
    lines = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                lines.append(stat.read_text())
    return lines
