"""Gradients against torch's: of every op on its samples, and of torch's own functions of the same name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from camshaft import ops
from camshaft.graph.decompose import decompose, use_of
from camshaft.ops.op import NoGradient, Op, Sample
from camshaft.ops.primitives import is_primitive
from tests.support.gradients import Case, of_numbers, takes
from tests.support.samples import covering, samples

pytestmark = pytest.mark.oracle
DIFFERENTIABLE = [op for op in ops.all_ops() if not isinstance(op.vjp, NoGradient)]
# Gradients that are not those of what the op computes: they are those of what it rounds.
THROUGH = ("quantize_dequantize_affine", "quantize_dequantize_gguf", "stop_gradient")


# Scores of great range in f32.
IN_F32 = {"attention": 5e-3}


def theirs(case: Case, order: int = 1) -> dict[int, Any]:
    """torch's gradients of the op's primitives."""
    torch = pytest.importorskip("torch")
    from tests.support.torch_primitives import of_array, run

    given = {f"x{i}": of_array(a) for i, a in enumerate(case.given)}
    wrt = [given[f"x{i}"].requires_grad_() for i in case.wrt]
    made = run(decompose(use_of(case.op, case.sample)), given)
    loss: Any = 0.0
    for i, c in case.factors.items():
        y, weights = made[f"y{i}"], of_array(c)
        part = torch.where(weights == 0, torch.zeros_like(y), y) * weights.conj()
        loss = loss + part.sum().real
    found = torch.autograd.grad(loss, wrt, allow_unused=True, materialize_grads=True, create_graph=order == 2)
    if order == 2:
        second = sum((g * of_array(case.second[i]).conj()).sum().real for i, g in zip(case.wrt, found, strict=True))
        found = (
            torch.autograd.grad(second, wrt, allow_unused=True, materialize_grads=True)
            if second.requires_grad
            else [torch.zeros_like(x) for x in wrt]
        )
    return {i: g.detach().resolve_conj().numpy() for i, g in zip(case.wrt, found, strict=True)}


def check(case: Case, order: int = 1) -> None:
    made, wanted = case.values(order), theirs(case, order)
    for i in case.wrt:
        ours, other = np.asarray(made[i]), wanted[i]
        tolerance = 1e-9 if case.in_f64 else IN_F32.get(case.op.name, 1e-4)
        scale = np.abs(np.nan_to_num(other)).max(initial=1e-3)
        np.testing.assert_allclose(ours, other, rtol=tolerance, atol=tolerance * scale, err_msg=case.sample.name)


def cases(op: Op) -> list[Sample]:
    return [sample for sample in covering(op, samples(op.name)) if takes(op, sample)]


@pytest.mark.parametrize("op", [op for op in DIFFERENTIABLE if op.name not in THROUGH], ids=lambda op: op.name)
def test_gradients_are_those_of_torch(op: Op) -> None:
    for sample in cases(op):
        check(Case(op, of_numbers(op, sample, kinks=is_primitive(op))))


@pytest.mark.parametrize("op", [op for op in DIFFERENTIABLE if callable(op.vjp)], ids=lambda op: op.name)
def test_second_derivatives_are_those_of_torch(op: Op) -> None:
    if op.name in THROUGH:
        pytest.skip("its gradient is not that of what it computes")
    for sample in cases(op)[:3]:
        check(Case(op, of_numbers(op, sample)), order=2)
