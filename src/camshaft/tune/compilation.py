"""Candidates compiled in a child process, so that one that hangs or crashes is a reason and not the end. Below nodes.py."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import IO, Any, Self

from camshaft.errors import BackendError
from camshaft.settings import settings
from camshaft.tune.candidates import Candidate
from camshaft.tune.node_text import node_json

COMPILE_TIMEOUT_S = 30.0
_START_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Compiled:
    """What became of a candidate: the digest of its code (None where the backend shows none), or why there is no code."""

    digest: str | None = None
    failed: str | None = None


class Compiler:
    """A child process that compiles candidates one after the other; a new one takes the place of one that died. What it compiled
    lies in the store. A context manager. BackendError when no child can be run."""

    def __init__(self, timeout_s: float = COMPILE_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._child: _Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def compile(self, candidates: Iterable[Candidate]) -> list[Compiled]:
        """What became of each. One that takes longer than the time-out has failed, with that reason."""
        return [self._compile(candidate) for candidate in candidates]

    def _compile(self, candidate: Candidate) -> Compiled:
        try:
            asked = {"claim": asdict(candidate.claim), "node": node_json(candidate.node)}
        except BackendError as error:
            return Compiled(failed=str(error))
        if self._child is None:
            self._child = _Child()
        try:
            said = self._child.ask(asked, self._timeout_s)
        except queue.Empty:
            self._end()
            return Compiled(failed=f"hung: not compiled in {self._timeout_s:g} s")
        if said is None:
            death = self._child.death()
            self._end()
            return Compiled(failed=f"crashed its process: {death}")
        return Compiled(**said)

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


class _Child:
    """One child process."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
            "CAMSHAFT_CACHE_DIR": str(settings().cache_dir.absolute()),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "camshaft.tune.compilation_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            ready = self._lines.get(timeout=_START_TIMEOUT_S)
        except queue.Empty:
            ready = None
        if ready is None:
            message = f"a process that compiles kernels cannot be run: {self.death()}"
            self.end()
            raise BackendError(message)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def ask(self, question: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        """The answer, None when the child died. queue.Empty when there is none in time."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone: the reader finds that too
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        line = self._lines.get(timeout=timeout_s)
        return None if line is None else json.loads(line)

    def death(self) -> str:
        """How the child ended; ends it if it has not."""
        self._process.kill()
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return f"exit status {code}" + (f" ({said[-1]})" if said else "")

    def end(self) -> None:
        """Ends the child."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self._errors.close()
