"""The processes of a stand: a child per side that lives through all turns, asleep on a pipe, and what keeps a core busy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.compare.suite import Side
from camshaft.errors import CamshaftError

PROGRAM = Path(__file__).parent / "sides" / "side.py"
ENDING_S = 30
SPIN = "import os, sys\nif sys.argv[1:]: os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


class SideError(CamshaftError):
    """A side that is not there, or could not do what it was told."""


class SideProcess:
    """The child that runs a side. SideError, in its own words, when it is absent, fails or ends. `check` is what it said of its
    last result, where it says something."""

    check: float | None

    def __init__(self, side: Side, peer_python: str) -> None:
        self.name, self.check = side.name, None
        python = peer_python if side.peer else sys.executable
        command = [python, str(PROGRAM), side.made_by, json.dumps(dict(side.given))]
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=surroundings(side), text=True
            )
        except OSError as error:
            raise SideError(f"{python}: {error.strerror or error}") from error
        try:
            self.about = self.answer()
        except BaseException:
            self.close()
            raise

    def answer(self) -> dict[str, Any]:
        """The next line that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SideError(f"its process ended with status {self.process.wait(ENDING_S)}")
        said: dict[str, Any] = json.loads(line)
        for bad in ("absent", "failed"):
            if bad in said:
                raise SideError(said[bad])
        return said

    def seconds(self, order: Mapping[str, Any]) -> float:
        """Carries the order out."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(dict(order)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise SideError(f"its process ended with status {self.process.wait(ENDING_S)}") from None
        said = self.answer()
        self.check = said.get("check")
        return float(said["s"])

    def close(self) -> None:
        """Lets the child end; one that does not is killed."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(ENDING_S)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self.process.kill()
            self.process.wait()
        finally:
            assert self.process.stdout is not None
            self.process.stdout.close()


def surroundings(side: Side) -> dict[str, str]:
    """The environment of a side: camshaft's own finds camshaft where this process did; a peer has its own packages."""
    ours = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    return dict(os.environ) | ({} if side.peer else ours) | dict(side.environment)


@contextmanager
def busy_core(wanted: bool) -> Iterator[None]:
    """Another process that does nothing but compute meanwhile, on the last core where a process can be held to one."""
    if not wanted:
        yield
        return
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    child = subprocess.Popen([sys.executable, "-c", SPIN, *(str(core) for core in cores[-1:])])
    try:
        yield
    finally:
        child.kill()
        child.wait()
