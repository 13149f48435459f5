"""Validate variants in child processes, so that a crash or hang is a result and not the end of this process."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, replace
from typing import Self

from camshaft.backends.device import Backend
from camshaft.backends.registry import backend_named, backends
from camshaft.errors import BackendError, StoreError
from camshaft.process import thread_count
from camshaft.validation.cases import VariantCase, all_cases
from camshaft.validation.child_process import ChildProcess
from camshaft.validation.evidence import BackendValidation, ValidationResult, summary, validation_cache

Progress = Callable[[int, int], None]
# Called with the cases that are about to be validated, entered meanwhile; yields more cases to validate in the same run.
ExtraCases = Callable[[Collection[VariantCase]], AbstractContextManager[Iterable[VariantCase]]]

SAMPLE_TIMEOUT_S = 60.0
COMPILE_LIMIT_S = 1500.0  # above the compilers' own limit
_STORE_EVERY_S = 1.0  # how much work an interruption may lose; a write takes milliseconds
_CASES_PER_CHILD = 4
# Signals sent by the operating system or a person, never raised by a kernel.
_ENDED_BY_OTHERS = {int(s) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP") if (s := getattr(signal, name, None))}


def prove(
    variant_cases: Iterable[VariantCase],
    *,
    timeout_s: float | None = None,
    progress: Progress | None = None,
    extra_cases: ExtraCases | None = None,
) -> dict[VariantCase, ValidationResult]:
    """Return a result per case: a stored one, else one from a child process, which is then stored.

    `timeout_s` limits one sample's run time, without compilation (default SAMPLE_TIMEOUT_S). `progress` is called with (cases
    done, cases to do), from any thread but one at a time. Raises BackendError if no child can be started, StoreError if the store
    cannot be written.
    """
    wanted = tuple(dict.fromkeys(variant_cases))
    results = _known_results(wanted)
    missing = [c for c in wanted if c not in results]
    if missing:
        with nullcontext(()) if extra_cases is None else extra_cases(missing) as more:
            others = [c for c in dict.fromkeys(more) if c not in missing]
            known = _known_results(others)
            # extra cases first: one with long samples at the end would leave the other workers idle
            remaining = [*(c for c in others if c not in known), *missing]
            results |= _validate(remaining, SAMPLE_TIMEOUT_S if timeout_s is None else timeout_s, progress)
    return {c: results[c] for c in wanted}


def _known_results(variant_cases: Collection[VariantCase]) -> dict[VariantCase, ValidationResult]:
    """The results that need no child process: stored ones, and cases on backends that are absent."""
    absent = {name: backend_named(name).absent() for name in {c.backend for c in variant_cases}}
    results = {
        c: ValidationResult(c.op, c.variant, c.backend, "absent", reason)
        for c in variant_cases
        if (reason := absent[c.backend])
    }
    return results | {c: v for c in variant_cases if c not in results and (v := validation_cache().get(c))}


def validate_backends(
    names: Sequence[str] | None = None, *, progress: Progress | None = None
) -> dict[str, BackendValidation]:
    """Validate every variant of every op on these backends (default: all) on all samples of the op.

    `progress` is as in `prove`.
    """
    if isinstance(names, str) or not isinstance(names, Iterable | None):
        raise BackendError(f"validate_backends: got {names!r:.80}; wanted a list of backends' names")
    wanted = tuple(backends() if names is None else names)
    absent = {name: _unprovable(backend_named(name)) for name in wanted}
    variant_cases = {name: all_cases(name) if absent[name] is None else () for name in wanted}
    results = prove((c for rows in variant_cases.values() for c in rows), progress=progress)
    return {name: summary(name, (results[c] for c in variant_cases[name]), absent[name]) for name in wanted}


def _unprovable(backend: Backend) -> str | None:
    return backend.absent() if backend.runs else "it plans and emits, and never runs"


def _validate(
    variant_cases: Sequence[VariantCase], timeout_s: float, progress: Progress | None
) -> dict[VariantCase, ValidationResult]:
    """Distribute the cases over child processes through a queue. Results are stored as they arrive."""
    from concurrent.futures import ThreadPoolExecutor  # with logging 5 ms; not needed where all is proved

    round_ = _Round(variant_cases, timeout_s, progress)
    n_children = min(thread_count(), -(-len(variant_cases) // _CASES_PER_CHILD))
    with ThreadPoolExecutor(n_children) as pool:
        try:
            for served in [pool.submit(round_.serve) for _ in range(n_children)]:
                served.result()
        finally:  # after Ctrl-C or a failed start, stop the other threads
            round_.stop()
    round_.store_results()
    return round_.results


class _Round:
    """A queue of cases and their results, served by several threads with a child process each."""

    def __init__(self, variant_cases: Sequence[VariantCase], timeout_s: float, progress: Progress | None) -> None:
        self.results: dict[VariantCase, ValidationResult] = {}
        self._n_cases, self._timeout_s, self._progress = len(variant_cases), timeout_s, progress
        self._queue: queue.SimpleQueue[VariantCase] = queue.SimpleQueue()
        for case in variant_cases:
            self._queue.put(case)
        self._lock = threading.Lock()
        self._n_stored, self._stored_at = 0, time.monotonic()
        self._report()

    def serve(self) -> None:
        """Validate cases until the queue is empty. A child in which a case failed is replaced."""
        while not self._queue.empty():
            with _Child() as child, suppress(queue.Empty):
                while child.alive:
                    case = self._queue.get_nowait()
                    validated = child.judge(case, self._timeout_s)
                    if child.crashed and validated.lasting:  # an earlier case may have corrupted the process
                        validated = self._retry(case)
                    self._done(case, validated)

    def _retry(self, case: VariantCase) -> ValidationResult:
        """Validate the case again, in a new child process."""
        with _Child() as child:
            validated = child.judge(case, self._timeout_s)
            if not child.crashed:
                return validated
        return replace(validated, reason=f"twice {validated.reason}")

    def _done(self, case: VariantCase, validated: ValidationResult) -> None:
        with self._lock:
            self.results[case] = replace(
                validated,
                digest=case.key(),
                kinds=case.kinds,
                values=case.values,
                when=time.time(),
                attempts=validation_cache().attempts(case) + 1,
            )
            if time.monotonic() - self._stored_at > _STORE_EVERY_S:
                self.store_results()
        self._report()

    def _report(self) -> None:
        if self._progress:
            with self._lock:
                self._progress(len(self.results), self._n_cases)

    def store_results(self) -> None:
        """Store the results since the last call. Raises StoreError if they cannot be written."""
        fresh = dict(list(self.results.items())[self._n_stored :])
        validation_cache().add(fresh)
        self._n_stored, self._stored_at = self._n_stored + len(fresh), time.monotonic()

    def stop(self) -> None:
        """Empty the queue."""
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()


class _Child:
    """One child process. `alive` is False once it died, hung or failed a case: a wrong kernel may have corrupted it.
    `crashed` is True if it died by itself."""

    def __init__(self) -> None:
        self.alive, self.crashed = True, False
        self._process = ChildProcess("camshaft.validation.worker", "proves kernels")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.alive and not any(error):
            self._process.finish()
        self._process.end()

    def judge(self, case: VariantCase, timeout_s: float) -> ValidationResult:
        """Return the child's result, or a failure if it died or exceeded the time limit of a sample. Raises StoreError if
        the child cannot use the store."""
        self._process.ask(asdict(case))
        sample: str | None = None
        limit_s = timeout_s
        while True:
            try:
                answer = self._process.answer(limit_s)
            except queue.Empty:
                return self._failed(case, sample, f"hung: silent for {limit_s:g} s")
            if answer is None:
                self.crashed = True
                return self._failed(case, sample, f"crashed its process: {self._process.death()}")
            if "store" in answer:
                raise StoreError(answer["store"])
            if "result" in answer:
                validated = ValidationResult(**answer["result"])
                self.alive = validated.status != "failed"
                return validated
            if "compiling" in answer:
                limit_s = max(COMPILE_LIMIT_S, timeout_s) if answer["compiling"] else timeout_s
                continue
            sample = answer["sample"]

    def _failed(self, case: VariantCase, sample: str | None, what: str) -> ValidationResult:
        self.alive = False
        lasting = -self._process.returncode not in _ENDED_BY_OTHERS if self._process.returncode is not None else True
        where = f" in sample '{sample}'" if sample else ""
        return ValidationResult(
            case.op, case.variant, case.backend, "failed", what + where, sample=sample, lasting=lasting, died=True
        )
