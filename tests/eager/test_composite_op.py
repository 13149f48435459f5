"""Ops without kernels: graphs and eager calls compute them by the ops of their decompositions."""

from __future__ import annotations

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.eager.composite_op import MOST_REMEMBERED, CompositeOp
from camshaft.eager.tables import DispatchTable
from camshaft.errors import ArrayTypeError, ArrayValueError, BackendError, PlanError, ShapeError

X = np.linspace(-3, 3, 60, dtype=np.float32).reshape(3, 20)


@pytest.fixture(autouse=True)
def composite(monkeypatch: pytest.MonkeyPatch) -> None:
    """softmax and silu without kernels; silu's decomposition has sigmoid, which has none either."""
    without = ("softmax", "silu", "sigmoid")
    monkeypatch.setattr(ops, "is_composite", lambda op: op.name in without)


def wanted(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_a_plan_has_the_parts() -> None:
    graph = cs.Graph()
    graph.output("y", cs.softmax(graph.input("x", X.shape, "f32")))
    with cs.compile(graph, threads=1) as plan:
        np.testing.assert_allclose(plan.run(x=X)["y"], wanted(X), rtol=1e-6)
        text = plan.explain()
    assert "softmax.max" in text
    assert "softmax/" not in text


@pytest.mark.parametrize("sync", ["hazards", "each"])
def test_a_plan_with_sync_has_the_parts(sync: str) -> None:
    graph = cs.Graph()
    graph.output("y", cs.silu(graph.input("x", X.shape, "f32")))
    with cs.compile(graph, threads=1, sync=sync) as plan:
        np.testing.assert_allclose(plan.run(x=X)["y"], X / (1 + np.exp(-X)), rtol=1e-6)


def test_an_order_by_hand_beside_it_is_an_error() -> None:
    graph = cs.Graph()
    x = graph.input("x", X.shape, "f32")
    first = graph.node("exp", x)
    graph.output("y", graph.node("softmax", x, after=[first]))
    with pytest.raises(PlanError, match="softmax has `after` or `into`"):
        cs.compile(graph, sync="hazards")


@pytest.mark.full
def test_arrays_are_computed_part_by_part() -> None:
    table = DispatchTable(None)
    assert isinstance(table.softmax.__self__, CompositeOp)  # type: ignore[attr-defined]
    np.testing.assert_allclose(table.softmax(X), wanted(X), rtol=1e-6)
    np.testing.assert_allclose(table.silu(X[:, ::2]), X[:, ::2] / (1 + np.exp(-X[:, ::2])), rtol=1e-6)
    out = np.empty_like(X)
    assert table.softmax(X, out=out) is out
    np.testing.assert_array_equal(out, table.softmax(X))


def test_wrong_arrays_name_the_op() -> None:
    table = DispatchTable(None)
    with pytest.raises(ShapeError, match="softmax: got"):
        table.softmax(X.astype(np.complex64))
    with pytest.raises(ShapeError, match=r"softmax: got an out of shape \(20, 3\); wanted \(3, 20\)"):
        table.softmax(X, out=np.empty((20, 3), np.float32))
    with pytest.raises(ShapeError, match="softmax: got 2 arrays in out; wanted 1"):
        table.softmax(X, out=(np.empty_like(X), None))
    with pytest.raises(ArrayTypeError, match="Cannot cast"):
        table.softmax(X, out=np.empty(X.shape, np.int32))
    frozen = np.empty_like(X)
    frozen.flags.writeable = False
    with pytest.raises(ArrayValueError, match="read-only"):
        table.softmax(X, out=frozen)
    with pytest.raises(BackendError, match="choice: softmax has no kernel of its own; wanted one of its parts: max, "):
        table.choice("softmax", X)


def test_arrays_of_the_other_byte_order_have_the_same_numbers() -> None:
    np.testing.assert_array_equal(DispatchTable(None).softmax(X.astype(">f4")), DispatchTable(None).softmax(X))


def test_wrong_dtypes_and_attributes_name_the_op() -> None:
    with pytest.raises(ShapeError, match="softmax: no dtype"):
        DispatchTable(None).softmax(X.astype(np.longdouble))
    with pytest.raises(ArrayTypeError, match="fft: axis is a dict; wanted numbers, text or a tuple"):
        CompositeOp(ops.get("fft"), lambda name: getattr(cs, name)).call(X, axis={})


def test_old_shapes_are_forgotten() -> None:
    calls = CompositeOp(ops.get("softmax"), lambda name: getattr(cs, name))
    for n in range(1, MOST_REMEMBERED + 10):
        calls._program([np.empty((1, n), np.float32)], {})
    assert len(calls._programs) == MOST_REMEMBERED
