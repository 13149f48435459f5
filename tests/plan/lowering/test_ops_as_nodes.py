"""Any op, and native code, as a node of a graph whose order is explicit."""

from __future__ import annotations

import numpy as np
import pytest
from plan_kernels import kernel

import camshaft as cs
from camshaft import ops
from camshaft.dtypes import i64
from camshaft.errors import PlanError
from camshaft.ops.op import Op, Sample
from camshaft.ops.spec import TensorSpec
from camshaft.plan.lowering.sync import SYNCS
from camshaft.validation.cases import VariantCase
from camshaft.validation.evidence import ValidationResult
from camshaft.validation.run import GUARD_BYTE
from camshaft.validation.validate import check_outputs, node_of
from tests.support.samples import has_turn, samples


@pytest.mark.parametrize("name", [n for n in ops.NAMES if ops.is_composite(ops.get(n))])
def test_an_op_without_kernels_has_no_explicit_order(name: str) -> None:
    op = ops.get(name)
    graph = _graph_of(op, samples(op.name)[0])
    with pytest.raises(PlanError, match=f"{name} has no kernel of its own, and sync 'explicit' has no order"):
        cs.compile(graph, sync="explicit", threads=2)


def _one_op_cases() -> list:
    with_kernels = [op for op in ops.all_ops() if op.variants]
    quick = [op for op in with_kernels if has_turn(op, "explicit order")]
    return [pytest.param(op, id=op.name, marks=() if op in quick else pytest.mark.full) for op in with_kernels]


@pytest.mark.parametrize("op", _one_op_cases())
def test_any_op_is_a_node(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the first of its samples, as its proof has it; what is proved where is the table test's."""

    def prove(variant_cases: list[VariantCase], **_: object) -> dict[VariantCase, ValidationResult]:
        return {c: ValidationResult(c.op, c.variant, c.backend, "proved", "") for c in variant_cases}

    monkeypatch.setattr("camshaft.selection.select.prove", prove)
    sample = samples(op.name)[0]
    with cs.compile(_graph_of(op, sample), sync="explicit", threads=2) as plan:
        for i, array in enumerate(sample.inputs):
            _bytes(plan.states[f"in{i}"])[: array.nbytes] = _bytes(np.ascontiguousarray(array))
        for array in plan.outputs.values():
            _bytes(array)[:] = GUARD_BYTE
        for extent, active in sample.extents.items():
            plan.set_extent(extent, active)
        plan.run()
        outputs = (*plan.outputs.values(), *(plan.states[f"in{i}"] for i in op.updates))
        checked = check_outputs(op, plan.choices[0].variant, node_of(op, sample), sample, outputs)
    assert checked.max_error <= checked.tolerance, sample.name


def _graph_of(op: Op, sample: Sample) -> cs.Graph:
    """The op on states in0, in1, .. on one device, with outputs out0, out1, .."""
    graph = cs.Graph()
    states = [graph.state(f"in{i}", spec) for i, spec in enumerate(node_of(op, sample).inputs)]
    # others are the reference's
    attrs = {k: v for k, v in sample.attrs.items() if not isinstance(v, np.ndarray) and not callable(v)}
    on_scalar = not op.variants or any("scalar" in variant.backends for variant in op.variants)
    graph.node(op.name, *states, on="cpu:scalar" if on_scalar else "cpu", **attrs)
    for i, tensor in enumerate(graph.nodes[-1].outputs):
        graph.output(f"out{i}", tensor)
    return graph


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def test_native_code_is_a_node() -> None:
    graph = cs.Graph()
    counts = graph.state("counts", TensorSpec((4,), i64))
    graph.custom(kernel("count").address, [graph.rows(counts, 0, 2)], [], updates=[0], programs=2, name="first")
    graph.custom(kernel("count").address, [counts], [], updates=[0], programs=4, after=["first"], name="second")
    for sync in SYNCS:
        with cs.compile(graph, sync=sync, threads=2) as plan:
            plan.run()
            plan.run()
            assert plan.states["counts"].tolist() == [4, 4, 2, 2]
