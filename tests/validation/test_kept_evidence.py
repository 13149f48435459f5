"""Results of validation are kept and used again, dropped when sources or machine change, and shared by several writers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from camshaft.store.store import store
from camshaft.validation import cases, evidence
from camshaft.validation.evidence import ValidationResult
from tests.validation.planted_cases import planted, results


def test_evidence_says_what_was_seen(cache: Path) -> None:
    result = results("right")["right"]
    assert (result.op, result.variant, result.backend) == ("double", "right", "simd")
    assert (result.max_error, result.tolerance, result.n_samples) == (0.0, 1e-12, 5)
    assert result.elapsed_s > 0
    assert result.digest == planted("right")[0].key()
    assert result.when > 1.7e9


def test_a_later_start_reads_one_document_and_starts_no_child(
    proved: dict[str, ValidationResult], no_children: None, forgetful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reads = type(store().evidence).get, []
    monkeypatch.setattr(type(store().evidence), "get", lambda self, key: reads.append(key) or read(self, key))
    assert results("right", "raises") == proved
    assert results("raises") == {"raises": proved["raises"]}
    assert len(reads) == 1


def test_proof_on_all_samples_serves_any_kinds_but_not_the_other_way(cache: Path, no_children: None) -> None:
    (whole,) = planted("right")
    narrow = replace(whole, kinds="f32/rows")
    row = ValidationResult("double", "right", "simd", "proved")
    evidence.validation_cache().add({narrow: row})
    assert evidence.validation_cache().get(whole) is None
    evidence.validation_cache().add({whole: row})
    assert evidence.validation_cache().get(replace(whole, kinds="f16/rows")) == row


def test_changed_sources_are_proved_again(
    proved: dict[str, ValidationResult], no_children: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evidence.validation_cache().get(*planted("right")) == proved["right"]
    monkeypatch.setattr(cases, "_source_digest", lambda module, sources: "another")
    assert evidence.validation_cache().get(*planted("right")) is None


def test_another_machine_is_proved_again(
    proved: dict[str, ValidationResult], forgetful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "machine_key", lambda: "0" * 64)
    assert evidence.validation_cache().get(*planted("right")) is None


def test_damaged_evidence_is_dropped(proved: dict[str, ValidationResult], cache: Path, forgetful: None) -> None:
    (file,) = (cache / "evidence").glob("*/*")
    file.write_bytes(file.read_bytes().replace(b'"proved"', b'"failed"'))
    assert evidence.validation_cache().get(*planted("right")) is None


def test_two_writers_keep_each_others_rows(cache: Path) -> None:
    first, second = evidence.ValidationCache(store()), evidence.ValidationCache(store())
    a, b = planted("right", "raises")
    row = ValidationResult("double", "right", "simd", "proved")
    assert second.get(a) is None
    first.add({a: row})
    second.add({b: row})
    assert evidence.ValidationCache(store()).get(a) == evidence.ValidationCache(store()).get(b) == row


def test_evidence_on_sources_of_another_time_is_dropped_by_and_by(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = planted("right")
    rows = [
        ValidationResult("double", "right", "simd", "proved", when=float(i)) for i in range(evidence.GENERATIONS + 2)
    ]
    for i, row in enumerate(rows):
        monkeypatch.setattr(cases, "_source_digest", lambda module, sources, i=i: f"sources {i}")
        evidence.validation_cache().add({case: row, replace(case, kinds="f32/rows"): replace(row, kinds="f32/rows")})
    kept = evidence.validation_cache().results()
    assert sorted(v.when for v in kept if v.kinds is None) == [2.0, 3.0, 4.0, 5.0]
    assert len(kept) == 2 * evidence.GENERATIONS
    assert evidence.validation_cache().get(case) == rows[-1]


def test_evidence_of_other_sources_may_go_but_not_what_was_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that read old evidence caches its plans although others replace it."""
    (case,) = planted("right")

    def prove_again(number: int) -> evidence.ValidationCache:
        monkeypatch.setattr(cases, "_source_digest", lambda module, sources: f"sources {number}")
        other = evidence.ValidationCache(store())
        other.add({case: ValidationResult("double", "right", "simd", "proved", when=float(number))})
        return other

    for number in range(evidence.GENERATIONS):
        prove_again(number)
    ours = evidence.ValidationCache(store())
    assert ours.get(case) is not None
    for number in range(evidence.GENERATIONS, 2 * evidence.GENERATIONS - 1):
        prove_again(number)
        assert ours.is_stored()
    prove_again(2 * evidence.GENERATIONS)
    assert not ours.is_stored()


def test_a_validation_sums_up_its_verdicts() -> None:
    rows = [
        ValidationResult("a", "x", "simd", "proved"),
        ValidationResult("b", "y", "simd", "failed", "error 1 above 0"),
    ]
    validation = evidence.summary("simd", rows, None)
    assert (validation.status, validation.n_proved, validation.n_failed) == ("failed", 1, 1)
    assert validation.reason == "b y: error 1 above 0"
    assert evidence.summary("simd", rows[:1], None).status == "proved"


def test_the_digest_follows_the_imports_of_an_op() -> None:
    text = "from camshaft.ops import op as ops\nfrom camshaft.ops.matmul import (\n    blas,\n    lanes as l,\n)\nimport numpy\n"
    wanted = {"camshaft.ops.op", "camshaft.ops.matmul", "camshaft.ops.matmul.blas", "camshaft.ops.matmul.lanes"}
    assert set(cases._imported(text)) == wanted
