"""Compile candidates in a child process, so that a hang or crash becomes an error of that candidate."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

from camshaft.errors import BackendError
from camshaft.tune.benchmark import Candidate
from camshaft.tune.compile_worker import node_json
from camshaft.validation.child_process import ChildProcess

COMPILE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Compiled:
    """The result of compiling a candidate: the digest of its code (None if the backend has none), or the failure."""

    digest: str | None = None
    failed: str | None = None


class Compiler:
    """Compiles candidates one by one in a child process, which is replaced if it dies. Objects are cached in the store. A context
    manager. Raises BackendError if no child can be started."""

    def __init__(self, timeout_s: float = COMPILE_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._child: ChildProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def compile(self, candidates: Iterable[Candidate]) -> list[Compiled]:
        """Compile each candidate. One that exceeds the time limit fails with that reason."""
        return [self._compile(candidate) for candidate in candidates]

    def _compile(self, candidate: Candidate) -> Compiled:
        try:
            request = {"case": asdict(candidate.case), "node": node_json(candidate.node)}
        except BackendError as error:
            return Compiled(failed=str(error))
        if self._child is None:
            self._child = ChildProcess("camshaft.tune.compile_worker", "compiles kernels")
        try:
            self._child.ask(request)
            answer = self._child.answer(self._timeout_s)
        except queue.Empty:
            self._end()
            return Compiled(failed=f"hung: not compiled in {self._timeout_s:g} s")
        if answer is None:
            death = self._child.death()
            self._end()
            return Compiled(failed=f"crashed its process: {death}")
        return Compiled(**answer)

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None
