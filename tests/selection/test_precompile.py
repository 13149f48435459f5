"""Kernels are compiled during validation, and upcoming cases are validated in the same run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.dtypes import f32
from camshaft.errors import BackendError
from camshaft.ops.op import KernelVariant, NodeSpec
from camshaft.ops.spec import TensorSpec
from camshaft.selection import precompile, select
from camshaft.selection.choice import Choice
from camshaft.validation import proof
from camshaft.validation.cases import case_of
from camshaft.validation.evidence import validation_cache
from tests.validation import planted_faults

X = TensorSpec((3, 37), f32)
SILU, ADD = (ops.get("silu"), NodeSpec((X,), (X,), {})), (ops.get("add"), NodeSpec((X, X), (X,), {}))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The launches that were compiled ahead, by name; nothing is compiled."""
    found: list[str] = []
    monkeypatch.setattr(precompile, "compile_launch", lambda launch, made, device: found.append(launch.name))
    return found


def test_what_is_foreseen_is_proved_in_the_same_go(
    tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path))
    rounds: list[list[str]] = []
    judge = proof._validate

    def counted(variant_cases, timeout_s, progress):
        rounds.append([c.op for c in variant_cases])
        return judge(variant_cases, timeout_s, progress)

    monkeypatch.setattr(proof, "_validate", counted)
    (choice,) = select.choose([SILU], "simd", upcoming=lambda: [ADD])
    assert (choice.op.name, rounds) == ("silu", [["add", "silu"]])
    added = select.select(*ADD, "simd")
    assert len(rounds) == 1
    assert validation_cache().get(case_of(added.op, added.variant, "simd", ADD[1])) is not None
    assert {*compiled} <= {"silu", "add", "row_blocks"}
    assert compiled


def test_nothing_goes_on_beside_a_proof_that_is_evidence(monkeypatch: pytest.MonkeyPatch, compiled: list[str]) -> None:
    select.select(*SILU, "simd")
    compiled.clear()

    def asked() -> list[object]:
        raise AssertionError("asked what is upcoming")

    select.choose([SILU], "simd", upcoming=asked)
    assert compiled == []


def test_kernels_of_others_are_not_compiled_before_their_proof(compiled: list[str]) -> None:
    node = NodeSpec((TensorSpec((33,), f32),), (TensorSpec((33,), f32),), {})
    case = case_of(planted_faults.OP, planted_faults.OP.variants[0], "simd", node)
    choice = Choice(planted_faults.OP, planted_faults.OP.variants[0], "simd", cpu_device(), "", ())
    with select._precompile([(case, choice, node)], list, [case]):
        pass
    assert compiled == []


def test_a_kernel_that_cannot_be_compiled_ahead_is_left_to_who_asks() -> None:
    began = threading.Event()

    def build(node, target):
        began.set()
        raise BackendError("planted")

    variant = KernelVariant("broken", frozenset({"simd"}), build)
    with precompile.compiled_ahead([(variant, SILU[1], cpu_device())]):
        assert began.wait(30)
