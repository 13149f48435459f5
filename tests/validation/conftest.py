"""Fixtures for tests of validation, selection and eager calls: a cache folder, a reset override, proofs in child processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from camshaft.validation import evidence
from camshaft.validation.evidence import ValidationResult
from tests.support.dispatch_fixtures import cache, no_children, no_override
from tests.support.how_to_validate import child_processes
from tests.validation.planted_cases import results

__all__ = ["cache", "child_processes", "no_children", "no_override"]


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a new start: what this process remembers of the evidence is gone."""
    monkeypatch.setattr(evidence, "_caches", {})


@pytest.fixture(scope="module")
def evidence_of_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, ValidationResult]]:
    """A cache folder in which two claims are proved, once for all tests that begin so."""
    folder = tmp_path_factory.mktemp("proved") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAMSHAFT_CACHE_DIR", str(folder))
        return folder, results("right", "raises")


@pytest.fixture
def proved(cache: Path, evidence_of_two: tuple[Path, dict[str, ValidationResult]]) -> dict[str, ValidationResult]:
    folder, found = evidence_of_two
    shutil.copytree(folder, cache, dirs_exist_ok=True)
    return found
