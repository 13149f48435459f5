"""Gradients against torch's: of every op on its samples, and on the samples by which torch tests its own ops (OpInfo)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from camshaft import ops
from camshaft.errors import CamshaftError
from camshaft.graph.graph import Graph, Tensor
from camshaft.graph.passes.decompose import decompose, expand_composites, use_of
from camshaft.ops.op import NoGradient, Op, Sample
from camshaft.ops.primitives import is_primitive
from tests.eager import test_opinfo as opinfo
from tests.support.gradients import Case, added, of_numbers, takes, weighed
from tests.support.references import evaluated
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


def of_their_sample(name: str, leaves: list[Any], given: list[Any], named: dict[str, Any]) -> list[Any] | None:
    """The gradients of our op by the tensors among its arguments; None for a sample that graphs do not take."""
    torch = pytest.importorskip("torch")
    graph = Graph()
    inputs = {id(x): graph.input(f"x{i}", tuple(x.shape), "f64") for i, x in enumerate(leaves)}

    def ours(value: Any) -> Any:
        if isinstance(value, list | tuple) and any(isinstance(x, torch.Tensor) for x in value):
            return [ours(x) for x in value]
        return inputs.get(id(value), opinfo._array(value))

    try:
        made = opinfo.OPS[name](*map(ours, given), **{key: ours(value) for key, value in named.items()})
    except CamshaftError:
        return None
    results = made if isinstance(made, tuple | list) else (made,)
    if made is opinfo.SKIP or not all(isinstance(y, Tensor) and y.dtype.name == "f64" for y in results):
        return None
    if any(node.attrs.keys() - {a.name for a in node.op.parameters.attributes} for node in graph.nodes):
        return None  # `axis` of row-wise ops is for arrays
    rng = np.random.default_rng(1)
    loss = added([weighed(y, rng.uniform(0.5, 1.5, y.shape)) for y in results])
    for i, gradient in enumerate(graph.gradients(loss, list(inputs.values()))):
        graph.output(f"g{i}", gradient)
    found = evaluated(expand_composites(graph), {f"x{i}": x.detach().numpy() for i, x in enumerate(leaves)}, {})
    return [found[f"g{i}"] for i in range(len(leaves))]


def of_their_own(info: Any, leaves: list[Any], sample: Any) -> list[Any]:
    """torch's gradients of the same loss."""
    torch = pytest.importorskip("torch")
    made = info.op(sample.input, *sample.args, **sample.kwargs)
    rng = np.random.default_rng(1)
    results = made if isinstance(made, tuple | list) else (made,)
    loss = sum((y * torch.from_numpy(np.asarray(rng.uniform(0.5, 1.5, tuple(y.shape))))).sum() for y in results)
    return [g.numpy() for g in torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)]


def test_gradients_agree_with_torch_on_its_samples() -> None:
    infos = opinfo._infos()
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    compared = dict.fromkeys(opinfo.OPS, 0)
    for name in opinfo.OPS:
        if not infos[name].supports_autograd or torch.float64 not in infos[name].supported_dtypes("cpu"):
            continue
        for sample in infos[name].sample_inputs("cpu", torch.float64, requires_grad=True):
            if name == "nn.functional.rms_norm" and "eps" not in sample.kwargs:
                continue  # torch's own depends on the dtype
            values = [sample.input, *sample.args, *sample.kwargs.values()]
            flat = [x for v in values for x in (v if isinstance(v, list | tuple) else [v])]
            leaves = [x for x in flat if isinstance(x, torch.Tensor) and x.requires_grad]
            if not leaves or len({id(x) for x in leaves}) < len(leaves) or not all(x.numel() for x in leaves):
                continue
            with np.errstate(all="ignore"):
                found = of_their_sample(name, leaves, [sample.input, *sample.args], sample.kwargs)
            if found is None:
                continue
            for ours, wanted in zip(found, of_their_own(infos[name], leaves, sample), strict=True):
                what = f"{name}: {sample.args} {sample.kwargs}"[:300]
                np.testing.assert_allclose(ours, wanted, rtol=1e-7, atol=1e-9, err_msg=what)
            compared[name] += 1
    assert sum(compared.values()) > 250
