"""Validates in the test's own process: a plan's proofs, without the start of a Python per plan (0.3 to 0.5 s)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import pytest

from camshaft.validation import proof, worker
from camshaft.validation.cases import VariantCase
from camshaft.validation.evidence import ValidationResult

_IN_A_CHILD = proof._Child
_lock = threading.Lock()  # the memory limit of a judgement is the process's


class SameProcess:
    """Stands in for a child process of validation: the same judgement of the same samples. A crash ends the test process."""

    def __init__(self) -> None:
        self.alive, self.crashed = True, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def judge(self, case: VariantCase, timeout_s: float) -> ValidationResult:
        """Return the result of the case."""
        with _lock:
            result = worker.judge_or_fail(case, lambda sample: None)
        self.alive = result.status != "failed"
        return result


@contextmanager
def judging(child: type) -> Iterator[None]:
    """Validate with `child` inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "_Child", child)
        yield


@pytest.fixture(scope="module", autouse=True)
def child_processes() -> Iterator[None]:
    """Validate in child processes, as users do: for tests of validation itself."""
    with judging(_IN_A_CHILD):
        yield
