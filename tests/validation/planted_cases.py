"""Variant cases of the planted faults, and what their validation finds."""

from __future__ import annotations

from camshaft.validation import proof
from camshaft.validation.cases import VariantCase, case_of
from camshaft.validation.evidence import ValidationResult
from tests.validation import planted_faults


def planted(*names: str) -> list[VariantCase]:
    rows = {v.name: v for v in planted_faults.OP.variants}
    return [case_of(planted_faults.OP, rows[name], "simd") for name in names]


def results(*names: str) -> dict[str, ValidationResult]:
    return {case.variant: result for case, result in proof.prove(planted(*names), timeout_s=2.0).items()}
