"""An op that its device has no proved kernel for runs on the CPU, in sight, or is refused where the plan is strict."""

from __future__ import annotations

import numpy as np
import pytest

import camshaft as cs
from camshaft.errors import BackendError
from camshaft.validation.cases import VariantCase
from camshaft.validation.evidence import ValidationResult
from tests.plan.runtime.devices.device_blocks import X, block, run_block
from tests.support.devices.fake_device import FakeDevice, pass_for_null

pytestmark = pytest.mark.usefixtures("thunk_per_op")


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """A device 'null' that every op claims and nothing is proved on, which has no kernel for silu."""
    device = FakeDevice("null", backend="null", without=frozenset(_silu_kernels()))
    return pass_for_null(device, monkeypatch)


def _silu_kernels() -> set[str]:
    with cs.compile(block(), backend="scalar", threads=1) as plan:
        return {t.entry.name for t in plan.bound.schedule.thunks if t.op == "silu"}


def test_an_op_without_a_kernel_on_its_device_runs_on_the_cpu_in_sight(weak: FakeDevice) -> None:
    with cs.compile(block(), backend="null", threads=1) as plan:
        thunks = plan.bound.schedule.thunks
        on = {(t.op, t.device) for t in thunks if t.kind == "kernel"}
        assert on == {("rms_norm", "null"), ("matmul", "null"), ("silu", "host"), ("add", "null")}
        assert [t.name for t in thunks if t.kind == "copy"] == [
            "x → null",
            "matmul → host",
            "silu → null",
            "add → host",
        ]
        line = next(line for line in plan.explain().splitlines() if " silu: silu/" in line)
        assert "no kernel on null: " in line
        assert "null has no " in line
        assert "; on cpu: " in line
        np.testing.assert_allclose(plan.run(x=X)["y"], run_block((None,) * 4, 40), atol=1e-4)


def test_an_op_without_a_proved_kernel_on_scalar_runs_on_simd_in_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    def prove(variant_cases: list[VariantCase], **_: object) -> dict[VariantCase, ValidationResult]:
        bad = ("silu", "scalar")
        return {c: ValidationResult(c.op, c.variant, c.backend, "failed" if (c.op, c.backend) == bad else "proved", "planted")
                for c in variant_cases}  # fmt: skip

    monkeypatch.setattr("camshaft.selection.select.prove", prove)
    with cs.compile(block(), backend="scalar", threads=1) as plan:
        (line,) = (line for line in plan.explain().splitlines() if "no kernel on" in line)
        assert " silu: silu/" in line
        assert "no kernel on scalar: row_blocks (scalar): failed: planted; on cpu: " in line
        wanted = [("rms_norm", "scalar"), ("matmul", "scalar"), ("silu", "simd"), ("add", "scalar")]
        assert [(c.op.name, c.backend) for c in plan.choices] == wanted
        np.testing.assert_allclose(plan.run(x=X)["y"], run_block((None,) * 4, 40), atol=1e-5)
    with pytest.raises(BackendError, match=r"silu of f32.*no kernel can do it: row_blocks \(scalar\): failed: planted"):
        cs.compile(block(), backend="scalar", strict=True)


def test_strict_refuses_an_op_without_a_kernel_on_its_device(weak: FakeDevice) -> None:
    with pytest.raises(BackendError, match=r"silu of f32.*no kernel can do it: .*null has no "):
        cs.compile(block(), backend="null", strict=True)
