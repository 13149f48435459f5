"""How tests validate variants: not at all, in the test's own process, or in child processes as users do.

Most tests compare results with a reference, and tests/test_ops.py tries each variant's samples; so they believe variants.
Validation compiles other kernels, those of the samples: 110 s of 850 in a cold quick run. A child process per plan takes 0.3 to
0.5 s.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import pytest

from camshaft.validation import proof, worker
from camshaft.validation.cases import VariantCase
from camshaft.validation.evidence import ValidationResult

_IN_A_CHILD, _VALIDATE = proof._Child, proof._validate
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
        patch.setattr(proof, "_validate", _VALIDATE)
        patch.setattr(proof, "_Child", child)
        yield


@contextmanager
def believing() -> Iterator[None]:
    """Inside the block plans and calls take variants that nobody has validated. Nothing is stored for other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "_validate", _believed)
        yield


def _believed(cases: Sequence[VariantCase], *_: object) -> dict[VariantCase, ValidationResult]:
    return {c: ValidationResult(c.op, c.variant, c.backend, "proved") for c in cases}


@pytest.fixture(scope="module", autouse=True)
def same_process() -> Iterator[None]:
    """For tests of what validation finds: without the start of child processes."""
    with judging(SameProcess):
        yield


@pytest.fixture(scope="module", autouse=True)
def child_processes() -> Iterator[None]:
    """For tests of validation itself."""
    with judging(_IN_A_CHILD):
        yield
