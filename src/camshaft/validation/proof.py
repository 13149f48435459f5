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
from camshaft.validation.cases import VariantCase, all_cases
from camshaft.validation.child_process import ChildProcess
from camshaft.validation.evidence import BackendValidation, ValidationResult, summary, validation_cache

Progress = Callable[[int, int], None]
# Entered with the claims that children are to judge, while they do; gives other claims that they judge along.
Beside = Callable[[Collection[VariantCase]], AbstractContextManager[Iterable[VariantCase]]]

SAMPLE_TIMEOUT_S = 60.0
_KEEP_EVERY_S = 1.0  # what an interruption may lose; a write takes some milliseconds
_CLAIMS_PER_CHILD = 4
# Signals that no kernel raises: the operating system or a person ended the process.
_ENDED_BY_OTHERS = {int(s) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP") if (s := getattr(signal, name, None))}


def prove(
    variant_cases: Iterable[VariantCase],
    *,
    timeout_s: float | None = None,
    progress: Progress | None = None,
    beside: Beside | None = None,
) -> dict[VariantCase, ValidationResult]:
    """A verdict on each claim: from the evidence where there is one, else from child processes, and then kept.

    `timeout_s` is for one sample, compilation included (SAMPLE_TIMEOUT_S by default); `progress` is called, from any thread
    but never from two at once, with how many of the claims without evidence are judged and how many there are. BackendError
    when no child can be run, StoreError when the store cannot be written.
    """
    wanted = tuple(dict.fromkeys(variant_cases))
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


def _known(variant_cases: Collection[VariantCase]) -> dict[VariantCase, ValidationResult]:
    """Verdicts that need no child: backends that are absent, and the evidence."""
    absent = {name: backend_named(name).absent() for name in {c.backend for c in variant_cases}}
    found = {
        c: ValidationResult(c.op, c.variant, c.backend, "absent", reason)
        for c in variant_cases
        if (reason := absent[c.backend])
    }
    return found | {c: v for c in variant_cases if c not in found and (v := validation_cache().get(c))}


def validate_backends(
    names: Sequence[str] | None = None, *, progress: Progress | None = None
) -> dict[str, BackendValidation]:
    """Every variant of every op that these backends (all of them by default) claim, proved on all of the op's samples.

    `progress` is as in `prove`.
    """
    wanted = tuple(backends() if names is None else names)
    absent = {name: _unprovable(backend_named(name)) for name in wanted}
    variant_cases = {name: all_cases(name) if absent[name] is None else () for name in wanted}
    results = prove((c for rows in variant_cases.values() for c in rows), progress=progress)
    return {name: summary(name, (results[c] for c in variant_cases[name]), absent[name]) for name in wanted}


def _unprovable(backend: Backend) -> str | None:
    return backend.absent() if backend.runs else "it plans and emits, and never runs"


def _judge(
    variant_cases: Sequence[VariantCase], timeout_s: float, progress: Progress | None
) -> dict[VariantCase, ValidationResult]:
    """Some children take the claims off one queue, each as it is free. Verdicts are kept as they come."""
    round_ = _Round(variant_cases, timeout_s, progress)
    n_children = min(thread_count(), -(-len(variant_cases) // _CLAIMS_PER_CHILD))
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

    def __init__(self, variant_cases: Sequence[VariantCase], timeout_s: float, progress: Progress | None) -> None:
        self.found: dict[VariantCase, ValidationResult] = {}
        self._n_claims, self._timeout_s, self._progress = len(variant_cases), timeout_s, progress
        self._left: queue.SimpleQueue[VariantCase] = queue.SimpleQueue()
        for case in variant_cases:
            self._left.put(case)
        self._telling = threading.Lock()
        self._kept, self._kept_at = 0, time.monotonic()
        self._tell()

    def serve(self) -> None:
        """Judges claims while there are some. A child that fails a claim takes only that one with it."""
        while not self._left.empty():
            with _Child() as child, suppress(queue.Empty):
                while child.alive:
                    case = self._left.get_nowait()
                    validated = child.judge(case, self._timeout_s)
                    if child.crashed and validated.lasting:  # an earlier claim may have done the harm
                        validated = self._again(case)
                    self._done(case, validated)

    def _again(self, case: VariantCase) -> ValidationResult:
        """A second and last trial, by a child of its own."""
        with _Child() as alone:
            validated = alone.judge(case, self._timeout_s)
            if not alone.crashed:
                return validated
        return replace(validated, reason=f"twice {validated.reason}")

    def _done(self, case: VariantCase, validated: ValidationResult) -> None:
        with self._telling:
            self.found[case] = replace(
                validated, digest=case.key(), kinds=case.kinds, values=case.values, when=time.time()
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
        validation_cache().add(fresh)
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

    def judge(self, case: VariantCase, timeout_s: float) -> ValidationResult:
        """What the child says, or that it died, or that it was silent for longer than a sample may take. StoreError where the
        store could not be used in it."""
        self._process.ask(asdict(case))
        sample: str | None = None
        while True:
            try:
                said = self._process.answer(timeout_s)
            except queue.Empty:
                return self._failed(case, sample, f"hung: silent for {timeout_s:g} s")
            if said is None:
                self.crashed = True
                return self._failed(case, sample, f"crashed its process: {self._process.death()}")
            if "store" in said:
                raise StoreError(said["store"])
            if "verdict" in said:
                validated = ValidationResult(**said["verdict"])
                self.alive = validated.status != "failed"
                return validated
            sample = said["sample"]

    def _failed(self, case: VariantCase, sample: str | None, what: str) -> ValidationResult:
        self.alive = False
        lasting = -self._process.returncode not in _ENDED_BY_OTHERS if self._process.returncode is not None else True
        where = f" in sample '{sample}'" if sample else ""
        return ValidationResult(
            case.op, case.variant, case.backend, "failed", what + where, sample=sample, lasting=lasting
        )
