"""Eager calls refuse positions, slots and blocks that are not in a paged cache: kernels would write outside of it."""

from __future__ import annotations

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.dtypes import as_dtype
from camshaft.errors import PlanError, ShapeError
from camshaft.extent import Extent
from camshaft.ops.spec import TensorSpec
from tests.support.quick import full

NAMES = ("kv_cache_update", "kv_cache_quantize", "attention", "turboquant_attention")


@pytest.mark.parametrize("name", NAMES)
def test_an_index_out_of_bounds_is_refused(name: str) -> None:
    op = ops.get(name)
    sample = next(iter(op.samples()))
    attrs = {a.name: sample.attrs[a.name] for a in op.parameters.attributes if a.name in sample.attrs}
    attrs = {key: value.bound if isinstance(value, Extent) else value for key, value in attrs.items()}
    names = op.parameters.tensors.split()
    for what in ("positions", "slots", "block_table"):
        for value in (-1, 10**6):
            given = [np.array(x) for x in sample.inputs]
            given[names.index(what)].reshape(-1)[-1] = value
            before = [x.copy() for x in given]
            with pytest.raises(ShapeError, match=f"{name}: got {what} from .*; wanted 0 to [0-9]+$"):
                getattr(cs, name)(*given, **attrs)
            for x, y in zip(given, before, strict=True):
                np.testing.assert_array_equal(x, y)
    getattr(cs, name)(*map(np.array, sample.inputs), **attrs)


def _attention(length: int | Extent, positions: object) -> object:
    rng = np.random.default_rng(5)
    q, k, v = (rng.normal(size=s).astype(np.float32) for s in ((2, 16), (4, 1, 16, 16), (4, 1, 16, 16)))
    table = np.arange(4, dtype=np.int32)[None]
    attrs = {"heads": 1, "kv_heads": 1, "head_dim": 16, "scale": 0.25, "length": length}
    return cs.attention(q, k, v, positions, np.zeros(2, np.int32), table, **attrs)


@pytest.mark.parametrize("backend", [full("scalar"), "simd"])
def test_positions_past_the_length_are_refused_by_every_variant(backend: str) -> None:
    graph, length = cs.Graph(), Extent("length", 48)
    graph.output("y", _attention(length, graph.input("positions", (2,), "i32")))
    with cs.backend(backend):
        with pytest.raises(ShapeError, match="got positions from 3 to 40; wanted 0 to 31"):
            _attention(32, np.array([3, 40], np.int32))
        with cs.compile(graph, threads=1) as plan:
            plan.set_extent(length, 20)
            with pytest.raises(PlanError, match="indexes from 3 to 20; wanted 0 to 19"):
                plan.run(positions=np.array([3, 20], np.int32))
            found = plan.run(positions=np.array([3, 19], np.int32))["y"]
        np.testing.assert_allclose(found, _attention(64, np.array([3, 19], np.int32)), rtol=1e-5)


@pytest.mark.parametrize("backend", ["scalar", "simd"])
def test_places_out_of_bounds_that_a_graph_computes_write_nothing(backend: str) -> None:
    rows = np.arange(8 * 32, dtype=np.float32).reshape(8, 32)
    good = np.array([[0, 0, 1], [17, 1, 2]], np.int32)
    bad = np.array([[-1, 0, 0], [32, 0, 0], [1 << 30, 0, 0], [3, 2, 0], [3, -1, 0], [18, 0, 0]], np.int32)
    positions, slots, _ = np.concatenate([good, bad]).T
    table = np.array([[1, 9], [0, 2]], np.int32)  # slot 0's second block is not in the cache
    attrs = {"kv_heads": 1, "head_dim": 32}
    for name, dtypes in (("kv_cache_update", "f32"), ("kv_cache_quantize", "i8")):
        graph = cs.Graph()
        shapes = {"k": (3, 1, 32, 16), "v": (3, 1, 16, 32), "ks": (3, 1, 1, 16), "vs": (3, 1, 1, 16)}
        made = [graph.state(x, TensorSpec(shapes[x], as_dtype(dtypes))) for x in ("k", "v")]
        made += [graph.state(x, TensorSpec(shapes[x], as_dtype("f16"))) for x in ("ks", "vs")] if dtypes == "i8" else []
        zero = graph.input("zero", (8,), "i32")
        getattr(cs, name)(
            *made, rows + 1, rows + 1, positions + zero, slots + zero, zero[:4].reshape(2, 2) + table, **attrs
        )
        graph.output("y", zero + 1)
        with cs.compile(graph, backend=backend, threads=1) as plan:
            plan.run(zero=np.zeros(8, np.int32))
            written = {(b, p) for b, p in np.argwhere(np.any(plan.states["v"] != 0, axis=(1, 3))).tolist()}
            assert written == {(1, 0), (2, 1)}


def test_a_length_that_is_none_is_named() -> None:
    for length in (None, 2.5, -1, 0):
        with pytest.raises(ShapeError, match=f"^attention: got {length}; wanted a length"):
            _attention(length, np.array([3, 4], np.int32))  # type: ignore[arg-type]


def test_constant_indexes_out_of_bounds_are_refused() -> None:
    graph = cs.Graph()
    graph.output("y", cs.gather(graph.input("x", (4, 8), "f32"), np.array([0, 4], np.int32)))
    with pytest.raises(PlanError, match="gather: got constant indexes from 0 to 4; wanted 0 to 3"):
        cs.compile(graph)
