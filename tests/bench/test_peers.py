"""Peer processes: a real row end to end, missing libraries, peers that fail or exit; every row's peer can be created."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from bench.compare import interleaved
from bench.compare.interleaved import Limits, Measured
from bench.compare.peers import peer as child
from bench.compare.peers.llama_bench import LlamaBench
from bench.compare.peers.starts import Starts
from bench.compare.process import PROGRAM, PeerError, PeerProcess, busy_core
from bench.compare.results import row_of
from bench.compare.suites.executor_rows import executor
from bench.compare.suites.groups import GROUPS, GroupError, chosen
from bench.compare.suites.suite import OURS, Peer
from tests.bench.support import no_watch

STARTS = "starts.py"  # names the command alone
FAKE = """
class Whole:
    version, built_for = "fake 1", "nothing"
    def __init__(self, factor):
        self.factor = factor
        print("a library's chatter")
    def seconds(self, order):
        if order.get("die"):
            import os; os._exit(3)
        return self.factor * order["n"]
class Needy:
    def __init__(self):
        import no_such_library
"""


@pytest.fixture
def fake(tmp_path: Path) -> str:
    path = tmp_path / "fake.py"
    path.write_text(FAKE)
    return str(path)


def test_a_peer_answers_order_by_order_and_its_chatter_does_not_disturb(fake: str) -> None:
    peer = PeerProcess(Peer("x", f"{fake}:Whole", {"factor": 2}), sys.executable)
    assert peer.about == {"version": "fake 1", "built_for": "nothing"}
    assert [peer.seconds({"n": n}) for n in (1, 3)] == [2.0, 6.0]
    with pytest.raises(PeerError, match="KeyError: 'n'"):
        peer.seconds({})
    assert peer.seconds({"n": 4}) == 8.0
    peer.close()
    assert peer.process.returncode == 0


def test_a_peer_whose_library_is_missing_says_so(fake: str) -> None:
    with pytest.raises(PeerError, match="ModuleNotFoundError: No module named 'no_such_library'"):
        PeerProcess(Peer("x", f"{fake}:Needy"), sys.executable)


def test_a_peer_that_dies_and_a_python_that_is_not_there_are_named(fake: str) -> None:
    peer = PeerProcess(Peer("x", f"{fake}:Whole", {"factor": 1}), sys.executable)
    with pytest.raises(PeerError, match="ended with status 3"):
        peer.seconds({"die": True})
    peer.close()
    with pytest.raises(PeerError, match=r"/no/python: No such file"):
        PeerProcess(Peer("x", f"{fake}:Whole", {"factor": 1}), "/no/python")


def test_a_whole_row_is_measured(tmp_path: Path) -> None:
    (suite,) = executor(2, no_watch)
    ours = tuple(peer for peer in suite.peers if peer.name == OURS)
    (task,), found = suite.tasks, Measured()
    interleaved.run(
        type(suite)("executor", 2, ours, suite.tasks),
        {task.name: found},
        Limits(1),
        interleaved.starter("none"),
        lambda *k: None,
    )
    assert found.absent == {}
    row = row_of(suite, task, found, None)
    assert row["sides"][OURS]["ns"]["median"] > 0
    assert row["sides"][OURS]["version"] == "camshaft"


def test_the_child_needs_no_camshaft_and_its_folder_hides_no_library() -> None:
    names = {path.stem for path in PROGRAM.parent.glob("*.py")} - {"__init__"}
    assert not names & sys.stdlib_module_names
    for path in PROGRAM.parent.glob("*.py"):
        assert "camshaft" not in path.read_text("utf-8").split('"""', 2)[2] or path.name == STARTS


def test_a_start_is_timed_to_its_first_byte_and_must_end_well() -> None:
    class Other(Starts):
        def command(self, order: dict[str, Any]) -> list[str]:
            return [sys.executable, "-c", order["program"]]

    assert Other().seconds({"program": "print('x')"}) > 0
    with pytest.raises(RuntimeError, match="no such file"):
        Other().seconds({"program": "raise SystemExit('no such file')"})


LLAMA_BENCH = """#!{python}
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if given["-m"] == "none":
    sys.exit("log\\nthere is no such model")
n, m = int(given["-p"]), int(given["-n"])
row = dict(n_prompt=n, n_gen=m, avg_ns=1000 * n + 2000 * m)
row |= dict(build_number=3, build_commit="ab", cpu_info=given["-t"] + given["-fa"])
print(json.dumps([row] * int(given["-r"])))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a script")
def test_llama_bench_is_a_program_whose_json_is_read(tmp_path: Path) -> None:
    program = tmp_path / "llama-bench"
    program.write_text(LLAMA_BENCH.format(python=sys.executable))
    program.chmod(0o700)
    peer = LlamaBench(str(program), "model", 2, ["-fa", "1"])
    assert (peer.version, peer.built_for) == ("llama-bench 3 (ab)", "21")
    assert peer.seconds({"prompt": [1, 2, 3]}) == pytest.approx(3e-6)
    assert peer.seconds({"generate": 4, "after": [1]}) == pytest.approx(8e-6)
    with pytest.raises(RuntimeError, match="there is no such model"):
        LlamaBench(str(program), "none", 2, ["-fa", "1"])
    with pytest.raises(RuntimeError, match="measured 2 rows; wanted one of 1 and 0 tokens"):
        LlamaBench(str(program), "model", 2, ["-fa", "1", "-r", "2"])


def test_calls_are_timed_until_they_take_long_enough() -> None:
    calls: list[int] = []
    assert child.seconds_of(lambda: calls.append(1), 0.001) > 0
    assert len(calls) > 2


def test_a_busy_core_ends_with_its_block() -> None:
    with busy_core(False):
        pass
    with busy_core(True):
        pass


def test_groups_are_chosen_by_name() -> None:
    assert list(chosen(None)) == list(GROUPS)
    assert list(chosen("executor, models")) == ["models", "executor"]
    with pytest.raises(GroupError, match="there is no group 'nothing'; wanted some of models, formats"):
        chosen("models,nothing")
