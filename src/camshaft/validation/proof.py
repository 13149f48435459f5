"""Proof of claims in child processes, so that a variant that crashes or hangs is a verdict and not the end."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, replace
from typing import Self

from camshaft.backends.registry import Backend, backend_named, backends
from camshaft.errors import StoreError
from camshaft.settings import thread_count
from camshaft.validation.cases import Claim, all_claims
from camshaft.validation.child_process import ChildProcess
from camshaft.validation.evidence import BackendValidation, Verdict, ledger, summary

Progress = Callable[[int, int], None]
# Entered with the claims that children are to judge, while they do; gives other claims that they judge along.
Beside = Callable[[Collection[Claim]], AbstractContextManager[Iterable[Claim]]]

SAMPLE_TIMEOUT_S = 60.0
_KEEP_EVERY_S = 1.0  # what an interruption may lose; a write takes some milliseconds
_CLAIMS_PER_CHILD = 4
# Signals that no kernel raises: the operating system or a person ended the process.
_ENDED_BY_OTHERS = {int(s) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP") if (s := getattr(signal, name, None))}


def prove(
    claims: Iterable[Claim],
    *,
    timeout_s: float | None = None,
    progress: Progress | None = None,
    beside: Beside | None = None,
) -> dict[Claim, Verdict]:
    """A verdict on each claim: from the evidence where there is one, else from child processes, and then kept.

    `timeout_s` is for one sample, compilation included (SAMPLE_TIMEOUT_S by default); `progress` is called, from any thread
    but never from two at once, with how many of the claims without evidence are judged and how many there are. BackendError
    when no child can be run, StoreError when the store cannot be written.
    """
    wanted = tuple(dict.fromkeys(claims))
    found = _known(wanted)
    missing = [c for c in wanted if c not in found]
    if missing:
        with nullcontext(()) if beside is None else beside(missing) as more:
            others = [c for c in dict.fromkeys(more) if c not in missing]
            known = _known(others)
            # the others first: a claim of long samples that came last would be waited for alone
            left = [*(c for c in others if c not in known), *missing]
            found |= _judge(left, SAMPLE_TIMEOUT_S if timeout_s is None else timeout_s, progress)
    return {c: found[c] for c in wanted}


def _known(claims: Collection[Claim]) -> dict[Claim, Verdict]:
    """Verdicts that need no child: backends that are absent, and the evidence."""
    absent = {name: backend_named(name).absent() for name in {c.backend for c in claims}}
    found = {c: Verdict(c.op, c.variant, c.backend, "absent", reason) for c in claims if (reason := absent[c.backend])}
    return found | {c: v for c in claims if c not in found and (v := ledger().get(c))}


def validate_backends(
    names: Sequence[str] | None = None, *, progress: Progress | None = None
) -> dict[str, BackendValidation]:
    """Every variant of every op that these backends (all of them by default) claim, proved on all of the op's samples.

    `progress` is as in `prove`.
    """
    wanted = tuple(backends() if names is None else names)
    absent = {name: _unprovable(backend_named(name)) for name in wanted}
    claims = {name: all_claims(name) if absent[name] is None else () for name in wanted}
    verdicts = prove((c for rows in claims.values() for c in rows), progress=progress)
    return {name: summary(name, (verdicts[c] for c in claims[name]), absent[name]) for name in wanted}


def _unprovable(backend: Backend) -> str | None:
    return backend.absent() if backend.runs else "it plans and emits, and never runs"


def _judge(claims: Sequence[Claim], timeout_s: float, progress: Progress | None) -> dict[Claim, Verdict]:
    """Some children take the claims off one queue, each as it is free. Verdicts are kept as they come."""
    round_ = _Round(claims, timeout_s, progress)
    n_children = min(thread_count(), -(-len(claims) // _CLAIMS_PER_CHILD))
    with ThreadPoolExecutor(n_children) as pool:
        try:
            for served in [pool.submit(round_.serve) for _ in range(n_children)]:
                served.result()
        finally:  # after Ctrl-C or a child that cannot start, nobody takes another claim
            round_.stop()
    round_.keep()
    return round_.found


class _Round:
    """Claims on their way to verdicts, by several threads with a child each."""

    def __init__(self, claims: Sequence[Claim], timeout_s: float, progress: Progress | None) -> None:
        self.found: dict[Claim, Verdict] = {}
        self._n_claims, self._timeout_s, self._progress = len(claims), timeout_s, progress
        self._left: queue.SimpleQueue[Claim] = queue.SimpleQueue()
        for claim in claims:
            self._left.put(claim)
        self._telling = threading.Lock()
        self._kept, self._kept_at = 0, time.monotonic()
        self._tell()

    def serve(self) -> None:
        """Judges claims while there are some. A child that fails a claim takes only that one with it."""
        while not self._left.empty():
            with _Child() as child, suppress(queue.Empty):
                while child.alive:
                    claim = self._left.get_nowait()
                    verdict = child.judge(claim, self._timeout_s)
                    if child.crashed and verdict.lasting:  # an earlier claim may have done the harm
                        verdict = self._again(claim)
                    self._done(claim, verdict)

    def _again(self, claim: Claim) -> Verdict:
        """A second and last trial, by a child of its own."""
        with _Child() as alone:
            verdict = alone.judge(claim, self._timeout_s)
            if not alone.crashed:
                return verdict
        return replace(verdict, reason=f"twice {verdict.reason}")

    def _done(self, claim: Claim, verdict: Verdict) -> None:
        with self._telling:
            self.found[claim] = replace(
                verdict, digest=claim.key(), kinds=claim.kinds, values=claim.values, when=time.time()
            )
            if time.monotonic() - self._kept_at > _KEEP_EVERY_S:
                self.keep()
        self._tell()

    def _tell(self) -> None:
        if self._progress:
            with self._telling:
                self._progress(len(self.found), self._n_claims)

    def keep(self) -> None:
        """Keeps in the evidence what was found since the last time. StoreError when it cannot be written."""
        fresh = dict(list(self.found.items())[self._kept :])
        ledger().add(fresh)
        self._kept, self._kept_at = self._kept + len(fresh), time.monotonic()

    def stop(self) -> None:
        """Leaves nothing to take."""
        with suppress(queue.Empty):
            while True:
                self._left.get_nowait()


class _Child:
    """One child process. `alive` is False once it died or hung, or failed a claim: what a wrong kernel did to the process is not
    known. `crashed` is True when it died of itself."""

    def __init__(self) -> None:
        self.alive, self.crashed = True, False
        self._process = ChildProcess("camshaft.validation.worker", "proves kernels")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.alive and not any(error):
            self._process.leave()
        self._process.end()

    def judge(self, claim: Claim, timeout_s: float) -> Verdict:
        """What the child says, or that it died, or that it was silent for longer than a sample may take. StoreError where the
        store could not be used in it."""
        self._process.ask(asdict(claim))
        sample: str | None = None
        while True:
            try:
                said = self._process.answer(timeout_s)
            except queue.Empty:
                return self._failed(claim, sample, f"hung: silent for {timeout_s:g} s")
            if said is None:
                self.crashed = True
                return self._failed(claim, sample, f"crashed its process: {self._process.death()}")
            if "store" in said:
                raise StoreError(said["store"])
            if "verdict" in said:
                verdict = Verdict(**said["verdict"])
                self.alive = verdict.status != "failed"
                return verdict
            sample = said["sample"]

    def _failed(self, claim: Claim, sample: str | None, what: str) -> Verdict:
        self.alive = False
        lasting = -self._process.returncode not in _ENDED_BY_OTHERS if self._process.returncode is not None else True
        where = f" in sample '{sample}'" if sample else ""
        return Verdict(claim.op, claim.variant, claim.backend, "failed", what + where, sample=sample, lasting=lasting)
