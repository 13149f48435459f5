"""The status of variants from stored results: proved, in part, failed, absent, not tried."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from camshaft import ops
from camshaft.backends.registry import backend_named
from camshaft.errors import ShapeError
from camshaft.graph.passes.decompose import parts_of
from camshaft.lang.kernel import language_digest
from camshaft.ops.catalog import ANSWERS, catalog, page
from camshaft.validation.cases import VariantCase, case_of, kinds_of
from camshaft.validation.evidence import ValidationResult, validation_cache
from camshaft.validation.status import STATUSES, VariantStatus, overview, row_answers
from camshaft.validation.validate import node_of
from tests.support.compilers.stored import key_of, stored
from tests.support.samples import samples

ROOT = Path(__file__).parents[2]


def silu_claim(kinds: str | None = None) -> VariantCase:
    op = ops.get("silu")
    return replace(case_of(op, op.variants[0], "simd"), kinds=kinds)


def standing(op: str = "silu", backend: str = "simd") -> VariantStatus:
    (row,) = overview([op])
    return next(s for s in row.statuses if s.backend == backend)


def test_what_nobody_asked_is_not_tried(cache: Path, no_children: None) -> None:
    assert standing() == VariantStatus(silu_claim().variant, "simd", "not tried")


def test_a_proof_is_shown_with_its_evidence(cache: Path) -> None:
    result = ValidationResult("silu", silu_claim().variant, "simd", "proved", None, 1e-15, 1e-12, "a sample", 9, 0.5)
    validation_cache().add({silu_claim(): result})
    found = standing()
    assert (found.status, found.max_error, found.tolerance) == ("proved", 1e-15, 1e-12)
    assert (found.sample, found.elapsed_s) == ("a sample", 0.5)


def test_a_proof_for_some_kinds_is_one_in_part_and_a_failure_is_a_failure(cache: Path) -> None:
    op = ops.get("silu")
    kinds = list(dict.fromkeys(kinds_of(node_of(op, sample)) for sample in samples(op.name)))
    row = ValidationResult("silu", silu_claim().variant, "simd", "proved", None, 1e-15)
    validation_cache().add({silu_claim(kinds[0]): row})
    assert standing().status == "in part"
    assert standing().reason == f"proved for 1 of {len(kinds)} kinds of inputs"
    validation_cache().add({silu_claim(kind): row for kind in kinds})
    assert (standing().status, standing().reason) == ("proved", None)
    validation_cache().add({silu_claim(kinds[1]): replace(row, status="failed", reason="error 1 above 0")})
    assert (standing().status, standing().reason) == ("failed", "error 1 above 0")


def test_a_backend_that_is_not_here_is_absent_with_its_reason(cache: Path) -> None:
    reason = backend_named("metal").absent()
    if reason is None:
        pytest.skip("there is a Metal device")
    assert (standing(backend="metal").status, standing(backend="metal").reason) == ("absent", reason)


def test_every_claim_has_a_standing_but_those_of_backends_that_only_plan(cache: Path) -> None:
    for row, op in zip(overview(), ops.all_ops(), strict=True):
        claimed = {(v.name, b) for v in ops.variants_of(op) for b in v.backends if backend_named(b).runs}
        assert {(s.variant, s.backend) for s in row.statuses} == claimed
        assert len(row.statuses) == len(claimed)


def test_an_unknown_name_is_an_error_that_names_what_is_near() -> None:
    with pytest.raises(ShapeError, match="no op 'sofmax'; did you mean softmax"):
        overview(["silu", "sofmax"])
    with pytest.raises(ShapeError, match="no op 'qqqqq'; 'camshaft ops' lists them"):
        overview(["qqqqq"])


# Products that the list calls otherwise.
CODES = {
    "affine_matmul": "quantized_matmul",
    "minifloat_matmul": "quantized_matmul",
    "affine_matmul_grouped": "quantized_matmul_grouped",
}


# Ops that a row asks for in other words: gather's gradient is scatter_add, and conv2d's row has pool2d in its text.
BY_ANOTHER_NAME = {("scatter_add", "rlx/gather_backward"), ("pool2d", "rlx/conv2d (thunk variant)")}


def listed() -> Iterator[tuple[str, str]]:
    """Rows of the list as 'seed/name', and their ops in words."""
    with (ROOT / "tests" / "data" / "ops.tsv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            yield f"{row['seed']}/{row['name']}", row["op"]


def test_rows_that_ops_say_they_answer_are_in_the_list_and_speak_of_them() -> None:
    words: dict[str, str] = dict(listed())
    assert set(ANSWERS) <= set(ops.NAMES)
    for op, rows in ANSWERS.items():
        for row in rows:
            assert row in words
            named = [*words[row].replace("(", " ").split(), row.partition("/")[2]]
            apart = {word.lower() for word in named}
            known = CODES.get(op, op) in named or {*op.split("_")} <= apart or (op, row) in BY_ANOTHER_NAME
            assert known, f"{row} is about {words[row]}"


# Rows that no op can answer: what answers them instead.
BESIDE_OPS = {
    "mlx/encode_helpers": "plan/lowering: small constants are in the thunks' argument blocks",
    "mlx/gather_bench": "python -m bench.ops.kernels",
}


def test_every_row_is_answered() -> None:
    answered = {row for rows in ANSWERS.values() for row in rows}
    gradients = {row for row, op in listed() if op.endswith(" gradient")}
    missing = {row for row, _ in listed()} - answered - BESIDE_OPS.keys() - gradients
    assert not missing
    assert not answered & BESIDE_OPS.keys()


def test_the_proof_of_a_row_is_that_of_its_op_or_of_its_parts() -> None:
    rows = {(answer.row, answer.op): answer for answer in row_answers(overview(["softmax", "moe_gate"]))}
    softmax, gate = rows["mlx/softmax", "softmax"], rows["mlx/moe_gate", "moe_gate"]
    assert softmax.proof.keys() == gate.proof.keys() | softmax.proof.keys()
    assert set(softmax.proof.values()) | set(gate.proof.values()) <= set(STATUSES)
    assert ops.is_composite(ops.get("moe_gate"))
    assert gate.proof


def test_the_catalog_names_dtypes_variants_and_backends_of_every_op() -> None:
    rows = {row.name: row for row in catalog()}
    assert tuple(rows) == ops.NAMES
    assert all(row.dtypes and row.formula for row in rows.values())
    assert all(row.variants or ops.is_composite(ops.get(row.name)) for row in rows.values())
    assert {"f16", "f64", "i8", "u64"} <= set(rows["subtract"].dtypes)
    assert rows["rms_norm"].dtypes == ("f16", "bf16", "f32", "f64")
    assert {"Q4_0", "MXFP4"} <= set(rows["quantized_matmul"].dtypes)


@pytest.mark.full
def test_the_page_of_ops_is_current() -> None:
    # Decomposing every sample takes 2.5 s, and depends on nothing but camshaft's text.
    made = stored(key_of(language_digest("**/*.py"), "page of ops"), lambda: page(parts_of).encode())
    assert (ROOT / "docs" / "ops.md").read_text("utf-8") == made.decode(), "run: camshaft ops --markdown > docs/ops.md"
