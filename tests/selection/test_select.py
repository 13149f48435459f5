"""Selection: only proved variants win, measurements overrule estimates, every loser has a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from camshaft import ops
from camshaft.backends.blas.library import openblas_path
from camshaft.dtypes import f32, i32
from camshaft.errors import BackendError
from camshaft.extent import Extent
from camshaft.ops.op import NodeSpec
from camshaft.ops.spec import TensorSpec
from camshaft.selection import select
from camshaft.validation.cases import VariantCase
from camshaft.validation.evidence import ValidationResult
from tests.validation import planted_faults

DOUBLE = NodeSpec((TensorSpec((33,), f32),), (TensorSpec((33,), f32),), {})
GOOD = {"right", "native", "right_but_slow"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Proof by decree; what was asked for, in rounds."""
    rounds: list[list[str]] = []

    def prove(variant_cases: list[VariantCase], **_: object) -> dict[VariantCase, ValidationResult]:
        rounds.append([c.variant for c in variant_cases])
        judged = {c: "proved" if c.variant in GOOD or c.op != "double" else "failed" for c in variant_cases}
        return {c: ValidationResult(c.op, c.variant, c.backend, status, "planted") for c, status in judged.items()}

    monkeypatch.setattr(select, "prove", prove)
    return rounds


def test_the_cheapest_proved_variant_wins(asked: list[list[str]]) -> None:
    choice = select.select(planted_faults.OP, DOUBLE)
    assert (choice.variant.name, choice.backend, choice.device.name) == ("native", "simd", "cpu")
    assert choice.reason.startswith("estimated 0.001 us, the fastest of")
    reasons = {x.variant: x.reason for x in choice.losers}
    assert reasons["writes_past_its_output"] == "failed: planted"
    assert reasons["refuses"] == "wants a machine that nobody has built"
    assert reasons["right_but_slow"] == "estimated 1e+06 us"
    assert "right_but_slow" not in [name for names in asked for name in names]


def test_a_measurement_overrules_the_estimate(asked: list[list[str]]) -> None:
    times = {"right": 7000.0, "right_but_slow": 9000.0}
    choice = select.select(planted_faults.OP, DOUBLE, measurements=lambda case, node: times.get(case.variant))
    assert choice.variant.name == "right"
    assert choice.reason.startswith("measured 7 us")
    assert asked == [["right"]]


def test_one_round_of_proof_serves_many_nodes(asked: list[list[str]]) -> None:
    x, w = TensorSpec((4, 32), f32), TensorSpec((32,), f32)
    norm = (ops.get("rms_norm"), NodeSpec((x, w), (x,), {"eps": 1e-5}))
    add = (ops.get("add"), NodeSpec((x, x), (x,), {}))
    choices = select.choose([norm, add, norm])
    assert [c.op.name for c in choices] == ["rms_norm", "add", "rms_norm"]
    assert len(asked) == 1


def test_no_variant_left_is_an_error_with_every_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def prove(variant_cases: list[VariantCase], **_: object) -> dict[VariantCase, ValidationResult]:
        return {c: ValidationResult(c.op, c.variant, c.backend, "failed", "planted") for c in variant_cases}

    monkeypatch.setattr(select, "prove", prove)
    with pytest.raises(BackendError, match=r"double of f32\[33\].*nobody has built.*native \(simd\): failed: planted"):
        select.select(planted_faults.OP, DOUBLE)


def test_an_op_without_a_variant_for_the_override_is_an_error(asked: list[list[str]]) -> None:
    scalar = select.select(planted_faults.OP, DOUBLE, "scalar")
    assert (scalar.variant.name, scalar.device.lanes) == ("right", 1)
    with pytest.raises(BackendError, match="backend 'cuda' is absent"):
        select.select(planted_faults.OP, DOUBLE, "cuda")


@pytest.mark.parametrize("backend", ["scalar", "null"])
def test_an_op_without_a_proved_kernel_on_the_override_goes_to_simd_in_sight(
    backend: str, monkeypatch: pytest.MonkeyPatch, asked: list[list[str]]
) -> None:
    uses = [(planted_faults.OP, DOUBLE)]
    monkeypatch.setattr(select, "prove", lambda variant_cases, **_: {
        c: ValidationResult(
            c.op, c.variant, c.backend, "proved" if c.backend == "simd" and c.variant in GOOD else "failed", "planted"
        )
        for c in variant_cases
    })  # fmt: skip
    (choice,) = select.choose(uses, backend, strict=False)
    assert (choice.variant.name, choice.backend, choice.device.name) == ("native", "simd", "cpu")
    why = "failed: planted" if backend == "scalar" else "no variant for this backend"
    assert choice.reason.startswith(f"no kernel on {backend}: ")
    assert why in choice.reason.partition("; on cpu: ")[0]
    with pytest.raises(BackendError, match=f"no kernel can do it: .*{why}"):
        select.choose(uses, backend, strict=True)


def test_simd_itself_has_nothing_to_fall_back_to(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = []

    def prove(variant_cases: list[VariantCase], **_: object) -> dict[VariantCase, ValidationResult]:
        rounds.append(variant_cases)
        return {c: ValidationResult(c.op, c.variant, c.backend, "failed", "planted") for c in variant_cases}

    monkeypatch.setattr(select, "prove", prove)
    for name in ("simd", "cpu"):
        with pytest.raises(BackendError, match="no kernel can do it"):
            select.choose([(planted_faults.OP, DOUBLE)], name, strict=False)
    assert {case.backend for variant_cases in rounds for case in variant_cases} <= {"simd", "cpu"}


@pytest.mark.skipif(openblas_path() is None, reason="scipy-openblas32 is not installed")
def test_what_blas_cannot_do_goes_to_simd_in_sight(asked: list[list[str]]) -> None:
    a, b = TensorSpec((Extent("rows", 2**31), 4), f32), TensorSpec((4, 4), f32)
    node = NodeSpec((a, b), (a,), {})
    (choice,) = select.choose([(ops.get("matmul"), node)], "blas", strict=False)
    assert choice.backend == "simd"
    assert choice.reason.startswith("no kernel on blas: blas (blas): ")
    with pytest.raises(BackendError, match=r"no kernel can do it: blas \(blas\): "):
        select.choose([(ops.get("matmul"), node)], "blas")


@pytest.mark.skipif(openblas_path() is None, reason="scipy-openblas32 is not installed")
def test_blas_means_matmul_by_blas_and_the_rest_by_simd(asked: list[list[str]]) -> None:
    a = TensorSpec((33, 33), f32)
    matmul = select.select(ops.get("matmul"), NodeSpec((a, a), (a,), {}), "blas")
    add = select.select(ops.get("add"), NodeSpec((a, a), (a,), {}), "blas")
    assert (matmul.variant.name, matmul.backend, add.backend) == ("blas", "blas", "simd")
    assert {(x.variant, x.backend) for x in matmul.losers} == {("numpy", "blas")}


@pytest.mark.full
def test_the_plan_time_proof_finds_the_ragged_fault(cache: Path) -> None:
    """For real: in a child process, on a few samples, the favourite fails and the next one is proved."""
    wrong, right = planted_faults.OP.variants[:2]
    from dataclasses import replace

    op = replace(planted_faults.OP, variants=(wrong, right))
    choice = select.select(op, DOUBLE)
    assert choice.variant.name == "right"
    assert choice.losers[0].reason.startswith("failed: error")


def test_wrong_inputs_reach_no_selection() -> None:
    with pytest.raises(Exception, match="double"):
        planted_faults.OP.infer((TensorSpec((3,), i32),), {})
