"""Thunks over constants alone: they are not part of a run, leave the bytes that a run would, and only where memory allows it."""

from __future__ import annotations

import numpy as np
import pytest

import camshaft as cs
from camshaft.dtypes import f32
from camshaft.ops.spec import TensorSpec
from camshaft.plan.buffers import Lifetime

RNG = np.random.default_rng(7)
A = RNG.normal(size=(33, 70)).astype(np.float32)
B = RNG.normal(size=(41, 70)).astype(np.float32)  # [n, k]: every variant that is fast packs it first


class _File:
    """A constant whose bytes are not at hand."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def data(self) -> np.ndarray:
        return self.array.reshape(-1).view(np.uint8)


def product(b: str, n_products: int = 1, threads: int = 2) -> cs.ExecutionPlan:
    """a b^T with b as a constant, as a constant from elsewhere, or as an input; more products of the same b, each of the last."""
    graph = cs.Graph()
    x = graph.input("a", A.shape, "f32")
    held = {
        "constant": lambda: graph.constant("b", B),
        "file": lambda: graph.constant("b", _File(B), TensorSpec(B.shape, f32)),
        "input": lambda: graph.input("b", B.shape, "f32"),
    }[b]()
    for i in range(n_products):
        graph.output(f"y{i}", cs.matmul(cs.negate(x) if i else x, held, transpose_b=True))
    return cs.compile(graph, threads=threads, backend="simd")


def packing(plan: cs.ExecutionPlan) -> list[str]:
    """The thunks that pack b: variants of some CPUs pack a too."""
    reads_b = [t for t in plan.bound.schedule.thunks if any(u.slice.buffer.name == "b" for u in t.uses)]
    return [t.name for t in reads_b if any(u.access == "write" and ".scratch" in u.slice.buffer.name for u in t.uses)]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_constant_b_is_packed_when_the_plan_is_bound(threads: int) -> None:
    with product("constant", threads=threads) as once, product("input", threads=threads) as always:
        assert (len(packing(once)), len(packing(always))) == (0, 1)
        want = always.run(a=A, b=B)["y0"]
        for _ in range(2):
            np.testing.assert_array_equal(once.run(a=A)["y0"], want)


def test_products_of_one_constant_share_what_is_packed() -> None:
    with product("constant", 2) as plan:
        buffers = plan.bound.schedule.buffers
        assert len([b for b in buffers if ".scratch" in b.name and b.lifetime is Lifetime.CONSTANT]) == 1
        assert packing(plan) == []
        got = plan.run(a=A)
        np.testing.assert_array_equal(got["y0"], -got["y1"])
        firsts, lasts = ([getattr(origin, end) for origin in plan.origins] for end in ("first", "last"))
        assert [*firsts, len(plan.bound.schedule.thunks)] == [0, *lasts]


def test_the_constant_itself_stays_where_somebody_else_reads_it() -> None:
    graph = cs.Graph()
    x, b = graph.input("a", A.shape, "f32"), graph.constant("b", B)
    graph.output("y", cs.matmul(x, b, transpose_b=True))
    graph.output("z", cs.exp(b))
    with cs.compile(graph, backend="simd") as plan:
        got = plan.run(a=A)
        assert packing(plan) == []
        np.testing.assert_allclose(got["y"], A @ B.T, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(got["z"], np.exp(B), rtol=1e-5)


def test_what_is_not_at_hand_is_packed_by_each_run() -> None:
    """A packed copy beside a file's weights would double what a model takes."""
    with product("file") as plan, product("input") as always:
        assert packing(plan) == packing(always) != []
        np.testing.assert_array_equal(plan.run(a=A)["y0"], always.run(a=A, b=B)["y0"])


def test_a_validated_plan_compares_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_VALIDATE", "1")
    with product("constant", 2) as plan:
        np.testing.assert_allclose(plan.run(a=A)["y0"], A @ B.T, rtol=1e-4, atol=1e-4)
