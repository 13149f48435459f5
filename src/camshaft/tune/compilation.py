"""Candidates compiled in a child process, so that one that hangs or crashes is a reason and not the end."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

from camshaft.errors import BackendError
from camshaft.tune.candidates import Candidate
from camshaft.tune.node_text import node_json
from camshaft.validation.child_process import ChildProcess

COMPILE_TIMEOUT_S = 30.0


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
        self._child: ChildProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def compile(self, candidates: Iterable[Candidate]) -> list[Compiled]:
        """What became of each. One that takes longer than the time-out has failed, with that reason."""
        return [self._compile(candidate) for candidate in candidates]

    def _compile(self, candidate: Candidate) -> Compiled:
        try:
            asked = {"claim": asdict(candidate.case), "node": node_json(candidate.node)}
        except BackendError as error:
            return Compiled(failed=str(error))
        if self._child is None:
            self._child = ChildProcess("camshaft.tune.compile_worker", "compiles kernels")
        try:
            self._child.ask(asked)
            said = self._child.answer(self._timeout_s)
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
