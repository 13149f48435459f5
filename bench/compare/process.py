"""Run each peer in a child process that serves all rounds and blocks on a pipe in between; keep a core busy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.compare.suites.suite import Peer
from camshaft.errors import CamshaftError

PROGRAM = Path(__file__).parent / "peers" / "peer.py"
ENDING_S = 30
SPIN = "import os, sys\nif sys.argv[1:]: os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


class PeerError(CamshaftError):
    """A peer that is not available, or failed at an order."""


class PeerProcess:
    """The child process of a peer. Raises PeerError, with the peer's message, if it is absent, fails or exits. `check` is the
    mean magnitude of its last result, if reported."""

    check: float | None

    def __init__(self, peer: Peer, peer_python: str) -> None:
        self.name, self.check = peer.name, None
        python = peer_python if peer.peer_python else sys.executable
        command = [python, str(PROGRAM), peer.made_by, json.dumps(dict(peer.given))]
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment_of(peer), text=True
            )
        except OSError as error:
            raise PeerError(f"{python}: {error.strerror or error}") from error
        try:
            self.about = self.answer()
        except BaseException:
            self.close()
            raise

    def answer(self) -> dict[str, Any]:
        """The next line of the child's output."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise PeerError(f"its process ended with status {self.process.wait(ENDING_S)}")
        answer: dict[str, Any] = json.loads(line)
        for bad in ("absent", "failed"):
            if bad in answer:
                raise PeerError(answer[bad])
        return answer

    def seconds(self, order: Mapping[str, Any]) -> float:
        """Execute an order and return its result in seconds."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(dict(order)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(f"its process ended with status {self.process.wait(ENDING_S)}") from None
        answer = self.answer()
        self.check = answer.get("check")
        return float(answer["s"])

    def close(self) -> None:
        """Close the pipe and wait for the child to exit; kill it after a timeout."""
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


class LinePeer:
    """A child process that answers each line of its input by a line of JSON, after a first one with its `version`. It ends when
    its pipe closes."""

    def __init__(self, *command: str | Path) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version = str(self._answer()["version"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a peer's process ended with status {self.process.wait()}; see above")
        return dict(json.loads(line))

    def ask(self, line: str = "") -> dict[str, Any]:
        """The answer to a line."""
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """Close the pipe and wait for the process to end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(ENDING_S)


def environment_of(peer: Peer) -> dict[str, str]:
    """The environment of a peer. Camshaft's own process gets this process's import path; others use their own packages."""
    ours = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    return dict(os.environ) | ({} if peer.peer_python else ours) | dict(peer.environment)


@contextmanager
def busy_core(wanted: bool) -> Iterator[None]:
    """Keep the last core busy with another process during the block, where affinity is supported."""
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
