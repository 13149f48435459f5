"""Validates in the test's own process: a plan's proofs, without the start of a Python per plan (0.3 to 0.5 s)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
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


@pytest.fixture(scope="module", autouse=True)
def variants_are_believed() -> Iterator[None]:
    """Plans and calls take variants that nobody has validated: for tests that compare all results with a reference.

    Validation compiles each variant's samples, which tests/test_ops.py tries. Nothing is stored for other tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "_validate", _believed)
        yield


def _believed(cases: Sequence[VariantCase], *_: object) -> dict[VariantCase, ValidationResult]:
    return {c: ValidationResult(c.op, c.variant, c.backend, "proved") for c in cases}
