"""CAMSHAFT_VALIDATE: every node is compared with its reference, on a quantized model too; faults are named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_plans import DIM, PEAK, X, graph, plan

import camshaft as cs
from camshaft.dtypes import f16, f32
from camshaft.errors import ValidationError
from camshaft.extent import Extent
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.observe.validate import validated_run
from camshaft.ops.quantize.quantize_activations import TILE_LAYOUT
from camshaft.ops.quantized.samples import random_blocks
from camshaft.ops.spec import TensorSpec
from tests.support.devices.fake_device import FakeDevice, Fakes


@pytest.fixture(autouse=True)
def validate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_VALIDATE", "1")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n", [0, 1, 9])
def test_right_plans_pass(threads: int, n: int) -> None:
    with plan(threads=threads) as made:
        assert made.run(x=X[:n])["y"].shape == (n, DIM)


def quantized(name: str, most: int = 7) -> cs.Graph:
    made = cs.Graph()
    rows = Extent("T", most)
    ids = made.input("ids", (rows,), "i32")
    raw = random_blocks(name, 48, 256, seed=3)
    w = made.constant("w", raw, TensorSpec((48, 256), BLOCK_FORMATS[name]))
    made.output("y", cs.quantized_matmul(cs.embedding(ids, w), w))
    return made


@pytest.mark.parametrize(("name", "activations"), [("Q4_1", "q8"), ("Q4_1", "f32"), ("Q6_K", "q8"), ("MXFP4", "f32")])
def test_packed_weights_and_activations_are_compared_as_their_file_has_them(name: str, activations: str) -> None:
    with cs.compile(quantized(name), backend="simd", activations=activations, threads=2) as made:
        for ids in (np.arange(7), np.array([40, 3])):
            made.run(ids=ids.astype(np.int32))


def test_activations_in_tiles_are_compared_as_numbers() -> None:
    with cs.compile(quantized("Q4_1", most=40), backend="simd", activations="bf16", threads=2) as made:
        for n in (40, 5):
            made.run(ids=np.arange(n, dtype=np.int32))


def test_numbers_of_tiles_may_be_any_bytes_past_the_active_rows() -> None:
    spec = TensorSpec((3, 32), f32, TILE_LAYOUT)
    signalling = np.full(spec.nbytes // 2, 0x7F81, np.uint16).view(np.uint8)
    with np.errstate(invalid="raise"):
        numbers = TILE_LAYOUT.numbers(signalling, spec)
    assert np.isnan(numbers).all()


def test_states_that_a_node_updates_are_compared() -> None:
    made = cs.Graph()
    heads, dim, blocks = 2, 16, 3
    names = {"keys": (blocks, heads, dim, 16), "values": (blocks, heads, 16, dim)}
    caches = [made.state(name, TensorSpec(shape, f16)) for name, shape in names.items()]
    new = [made.input(name, (4, heads * dim), "f32") for name in ("k", "v")]
    index = [made.input(name, (4,), "i32") for name in ("positions", "slots")]
    table = made.input("table", (1, blocks), "i32")
    cs.kv_cache_update(*caches, *new, *index, table, kv_heads=heads, head_dim=dim)
    made.output("k2", cs.silu(new[0]))
    rng = np.random.default_rng(2)
    given = {name: rng.normal(size=(4, heads * dim)).astype(np.float32) for name in ("k", "v")}
    given |= {"positions": np.arange(14, 18, dtype=np.int32), "slots": np.zeros(4, np.int32)}
    with cs.compile(made, threads=2, backend="simd") as compiled:
        compiled.run(**given, table=np.array([[2, 0, 1]], np.int32))
        assert np.count_nonzero(compiled.states["keys"]) == 4 * heads * dim
        compiled.states["keys"][1] = 7.0  # a block that no token of the run touches
        compiled.run(**given, table=np.array([[2, 0, 1]], np.int32))


@pytest.mark.parametrize("wrong", [1, 3])
def test_the_first_node_that_differs_is_named_with_its_error(wrong: int) -> None:
    with plan() as made:
        origins = list(made.bound._plan.origins)
        op = origins[wrong].node.op

        def off_by_one(inputs, attrs):
            first, *rest = op.reference(inputs, attrs)
            return (np.concatenate([first[:-1], first[-1:] + 1.0]), *rest)

        origins[wrong] = replace(
            origins[wrong], node=replace(origins[wrong].node, op=replace(op, reference=off_by_one))
        )
        made.run(x=X)
        with pytest.raises(ValidationError) as caught:
            validated_run(made.bound.inner, origins, 0, len(made.bound.schedule.thunks))
    name, thunk = origins[wrong].node.name, made.bound.schedule.thunks[origins[wrong].first]
    assert f"thunk '{name}' ({op.name}/{thunk.variant} on simd) differs from its reference: error" in str(caught.value)
    assert ", allowed " in str(caught.value)
    assert "at most 1 at [8, " in str(caught.value)


def test_a_callers_function_runs_uncompared() -> None:
    made = cs.Graph()
    x = made.input("x", (4, 8), "f32")
    (doubled,) = made.custom(lambda a, out: np.multiply(a, 2, out=out), [x], [((4, 8), "f32")])
    made.output("y", cs.silu(doubled))
    with cs.compile(made, threads=1) as compiled:
        given = np.ones((4, 8), np.float32)
        assert np.allclose(compiled.run(x=given)["y"], 2 / (1 + np.exp(-2.0)))


def test_nodes_on_devices_are_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    Fakes(FakeDevice("fake:0")).install(monkeypatch)
    made = cs.Graph()
    x = made.input("x", (5, 24), "f32")
    with made.on("fake:0"):
        y = cs.silu(x)
    made.output("y", cs.silu(y))
    with cs.compile(made, backend="scalar", threads=1) as compiled:
        given = np.random.default_rng(1).normal(size=(5, 24)).astype(np.float32)
        compiled.run(x=given)
        origins = list(compiled.origins)
        wrong = replace(origins[0].node.op, reference=lambda inputs, attrs: (inputs[0] * 0.0,))
        origins[0] = replace(origins[0], node=replace(origins[0].node, op=wrong))
        with pytest.raises(ValidationError, match=r"thunk 'silu' \(silu/\w+ on scalar\) differs"):
            validated_run(compiled.bound.inner, origins, 0, len(compiled.bound.schedule.thunks))


def test_a_plan_of_these_tests_has_a_node_per_thunk() -> None:
    with plan() as made:
        assert [o.last - o.first for o in made.origins] == [1] * len(graph().nodes)


@pytest.mark.parametrize("sync", ["hazards", "each"])
def test_a_graph_computed_as_written_is_profiled_and_compared_like_another(
    sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cs.Graph()
    x = made.input("x", (6, 24), "f32")
    first = made.node("silu", x, name="first")
    copied = made.copy(first, "cpu", name="copied")
    made.output("y", made.node("silu", copied, name="second"))
    with cs.compile(made, sync=sync, threads=1) as compiled:
        given = np.random.default_rng(1).normal(size=(6, 24)).astype(np.float32)
        compiled.run(x=given)
        assert [o.node.name for o in compiled.origins] == ["first", "second"]
        monkeypatch.setattr("camshaft.observe.profile.machine_peak", lambda threads: PEAK)
        assert [row.name for row in compiled.profile(runs=1).thunks] == ["first", "copied", "second"]
        origins = list(compiled.origins)
        wrong = replace(origins[1].node.op, reference=lambda inputs, attrs: (inputs[0] * 0.0,))
        origins[1] = replace(origins[1], node=replace(origins[1].node, op=wrong))
        with pytest.raises(ValidationError, match=r"thunk 'second' "):
            validated_run(compiled.bound.inner, origins, 0, len(compiled.bound.schedule.thunks))
