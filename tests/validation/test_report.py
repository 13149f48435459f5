"""Summaries for doctor: tallies by family, absences by reason, failures, advice."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from camshaft import ops
from camshaft.backends.registry import backend_named
from camshaft.validation import report
from camshaft.validation.evidence import BackendValidation, ValidationResult, summary
from camshaft.validation.report import Absence, Failure, Tally

RIGHT = ValidationResult("add", "row_blocks", "simd", "proved")
WRONG = replace(RIGHT, op="multiply", status="failed", reason="error 1 above 0 in sample '3x5'")
WIDE = replace(RIGHT, backend="webgpu", status="absent", reason="WGSL has no 64-bit floats")


@pytest.fixture
def found() -> dict[str, BackendValidation]:
    rows = (replace(WIDE, op=op) for op in ("where", "sum", "mean"))
    no_loads = replace(WIDE, op="softmax", reason="no loads")
    return {
        "simd": summary("simd", (RIGHT, WRONG, replace(RIGHT, op="softmax")), None),
        "webgpu": summary("webgpu", (no_loads, *rows, replace(RIGHT, backend="webgpu")), None),
        "metal": summary("metal", (), "Metal is on macOS only"),
        "null": summary("null", (), "it plans and emits, and never runs"),
    }


def test_ops_of_one_file_are_one_family(found: dict[str, BackendValidation]) -> None:
    rows = report.families(found)
    assert rows["binary"] == {"simd": Tally(proved=1, failed=1), "webgpu": Tally(proved=1)}
    assert rows["softmax"] == {"simd": Tally(proved=1), "webgpu": Tally(absent=1)}
    assert rows["reduction"] == {"webgpu": Tally(absent=2)}
    whole = sum((tally for row in rows.values() for tally in row.values()), Tally())
    assert whole == Tally(3, 1, 4)


def test_absences_are_grouped_by_their_reason(found: dict[str, BackendValidation]) -> None:
    whole, *parts = report.absences(found)
    assert (whole.backend, whole.whole, whole.reason) == ("metal", True, "Metal is on macOS only")
    assert whole.n_kernels == sum("metal" in v.backends for op in ops.all_ops() for v in ops.variants_of(op))
    assert parts == [
        Absence("webgpu", False, "WGSL has no 64-bit floats", 3, ("where", "sum", "mean")),
        Absence("webgpu", False, "no loads", 1, ("softmax",)),
    ]
    assert not backend_named("null").runs


def test_failures_have_their_evidence(found: dict[str, BackendValidation]) -> None:
    assert report.failures(found) == (Failure("multiply", "row_blocks", "simd", "error 1 above 0 in sample '3x5'"),)


@pytest.mark.parametrize(
    ("platform", "has", "backend", "command"),
    [
        ("linux", (), "blas", "pip install 'camshaft[blas]'"),
        ("linux", (), "c", "apt install clang"),
        ("darwin", (), "c", "xcode-select --install"),
        ("win32", (), "c", "pip install ziglang"),
        ("linux", (), "webgpu", "pip install 'camshaft[webgpu]'"),
        ("linux", ("wgpu",), "webgpu", "apt install mesa-vulkan-drivers"),
        ("win32", ("wgpu",), "webgpu", None),
        ("linux", (), "cuda", "pip install 'camshaft[cuda]'"),
        ("linux", ("cuda",), "cuda", None),
        ("linux", (), "metal", None),
        ("darwin", (), "metal", "pip install 'camshaft[metal]'"),
    ],
)
def test_advice_is_what_would_help_here(
    monkeypatch: pytest.MonkeyPatch, platform: str, has: tuple[str, ...], backend: str, command: str | None
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(report, "find_spec", lambda name: object() if name in has else None)
    found = {backend: summary(backend, (), "not here"), "simd": summary("simd", (RIGHT,), None)}
    assert [a.command for a in report.advice(found)] == ([] if command is None else [command])


def test_there_is_no_advice_where_everything_is() -> None:
    assert report.advice({"blas": summary("blas", (RIGHT,), None)}) == ()
