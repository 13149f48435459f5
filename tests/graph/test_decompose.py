"""decompose: every op is primitive or computes the same by primitives, and what graphs it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.dtypes import f32
from camshaft.errors import PlanError, ShapeError
from camshaft.extent import Extent
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.graph.graph import ArraySource, Graph
from camshaft.graph.passes.chains import fuse_chains
from camshaft.graph.passes.decompose import decompose, parts_of, use_of
from camshaft.ops.masked.samples import sample as attention_sample
from camshaft.ops.op import Op, Sample
from camshaft.ops.primitives import PRIMITIVES, is_primitive
from camshaft.ops.quantized.samples import LazySample, random_blocks
from camshaft.ops.spec import TensorSpec
from tests.support.quick import full
from tests.support.references import error_of, evaluated
from tests.support.samples import covering, elements, samples, without

COMPOSED = [op for op in ops.all_ops() if not is_primitive(op)]


# Tokens at (slot, position).
TOKENS = attention_sample("f32", [(0, 4), (0, 6), (1, 9)], heads=(1, 1), head_dim=8, dtype=f32)
TWO_HEADS = attention_sample("Q4_0", [(0, 17), (1, 3)], heads=(2, 1), head_dim=32, form="Q4_0")


def names_of(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def test_every_op_is_primitive_or_has_a_decomposition_and_not_both() -> None:
    assert set(ops.NAMES) >= PRIMITIVES
    assert {op.name for op in ops.all_ops() if op.decompose is None} == PRIMITIVES


def evaluated_error(op: Op, sample: Sample) -> float:
    """The error of the op's primitives as their references compute them, as a share of the op's tolerance."""
    graph = decompose(use_of(op, sample))
    assert set(names_of(graph)) <= PRIMITIVES
    return error_of(op, sample, lambda given: evaluated(graph, given, sample.extents))


# References take numbers for packed weights, so their format changes no result; packing each compiles a kernel for 0.2 s.
PACKED = 3
MOST_ELEMENTS = 5_000  # of a sample in the quick run, where an op has smaller ones


@pytest.mark.parametrize("most", [MOST_ELEMENTS, full(1 << 30)])
@pytest.mark.parametrize("op", COMPOSED, ids=lambda op: op.name)
def test_primitives_compute_an_op_within_its_tolerance(op: Op, most: int) -> None:
    chosen = covering(op, [s for s in samples(op.name) if elements(s) <= most] or samples(op.name))
    packed = [sample for sample in chosen if isinstance(sample, LazySample)]
    decomposed = without(packed, covering(op, packed, PACKED))
    for sample in decomposed:
        assert set(names_of(decompose(use_of(op, sample)))) <= PRIMITIVES, sample.name
    for sample in without(chosen, decomposed):
        assert evaluated_error(op, sample) <= 1, sample.name


def test_a_nan_of_the_cache_reaches_the_tokens_that_see_it() -> None:
    q, keys, values, *others = TOKENS.inputs
    block = others[2][0, 0]
    values = values.copy()
    values[block, 0, 5, 3] = np.nan  # position 5 of slot 0
    sample = replace(TOKENS, inputs=(q, keys, values, *others))
    assert evaluated_error(ops.get("attention"), sample) <= 1
    graph = decompose(use_of(ops.get("attention"), sample))
    (y,) = evaluated(graph, {f"x{i}": a for i, a in enumerate(sample.inputs)}, sample.extents).values()
    assert np.isnan(y).tolist() == [[column == 3 and token == 1 for column in range(8)] for token in range(3)]


def test_no_power_of_a_sigmoid_overflows() -> None:
    sample = Sample("far", (np.array([-1e4, -200, -1, 0, 1, 200, 1e4], np.float32),))
    with np.errstate(over="raise"):
        assert evaluated_error(ops.get("sigmoid"), sample) <= 1


def of_op(name: str, start: str) -> Sample:
    """The op's first sample whose name starts so."""
    return next(sample for sample in samples(name) if sample.name.startswith(start))


@pytest.mark.parametrize(
    ("name", "sample"),
    [
        ("residual_norm", of_op("residual_norm", "to bf16")),
        ("rope", of_op("rope", "interleaved, 4 of 6")),
        ("attention", TWO_HEADS),
    ],
    ids=("residual_norm", "rope", "attention"),
)
def test_a_plan_of_primitives_computes_the_op(name: str, sample: Sample) -> None:
    op = ops.get(name)
    with cs.compile(decompose(use_of(op, sample)), threads=1) as plan:
        assert error_of(op, sample, lambda given: plan.run(**given)) <= 1


def test_parts_are_the_ops_of_one_step() -> None:
    assert parts_of(ops.get("residual_norm")) == ("add", "rms_norm", "cast")
    assert parts_of(ops.get("embedding")) == ("gather", "cast", "dequantize")
    assert parts_of(ops.get("exp")) == ()


def test_block_formats_are_decoded_in_a_plan() -> None:
    weights = ArraySource(random_blocks("Q4_1", 33, 64, seed=1))
    graph = Graph()
    w = graph.constant("w", weights, TensorSpec((33, 64), BLOCK_FORMATS["Q4_1"]))
    x = cs.embedding(graph.input("ids", (5,), "i32"), w)
    graph.output("x", x)
    graph.output("y", cs.quantized_matmul(x, w))
    primitive = decompose(graph)
    assert sorted(names_of(primitive)) == ["dequantize", "dequantize", "gather", "matmul"]
    ids = np.array([0, 32, 7, 7, 16], np.int32)
    with cs.compile(graph) as plan, cs.compile(primitive) as other:
        one, two = plan.run(ids=ids), other.run(ids=ids)
        np.testing.assert_array_equal(one["x"], two["x"])
        np.testing.assert_allclose(one["y"], two["y"], rtol=1e-5, atol=1e-4)


def test_names_inputs_outputs_and_devices_stay() -> None:
    graph = Graph()
    rows = cs.Extent("rows", 8)
    x = graph.input("x", (rows, 4), "f32")
    with graph.scope("layer"), graph.on("cpu"):
        graph.output("y", cs.softmax(cs.mean(x, axes=-1, keepdims=True)))
    made = decompose(graph)
    assert [node.name for node in made.nodes][:2] == ["layer.mean.sum", "layer.mean.divide"]
    assert {node.device for node in made.nodes} == {"cpu"}
    assert (list(made.inputs), list(made.outputs)) == (["x"], ["y"])
    assert made.outputs["y"].spec == graph.outputs["y"].spec


def test_an_exporter_chooses_what_is_expanded() -> None:
    graph = Graph()
    graph.output("y", cs.softmax(cs.silu(graph.input("x", (3, 4), "f32"))))
    known = PRIMITIVES | {"softmax", "sigmoid"}
    assert names_of(decompose(graph, lambda node: node.op.name not in known)) == ["sigmoid", "multiply", "softmax"]
    assert decompose(graph, lambda node: False) is graph


def test_a_chain_decomposes_into_its_parts() -> None:
    graph = Graph()
    x, y = (graph.input(name, (3, 4), "f32") for name in "xy")
    graph.output("z", cs.exp(x * y) + x)
    (chain,) = fuse_chains(graph).nodes
    assert chain.op.name.startswith("chain ")
    assert names_of(decompose(fuse_chains(graph))) == ["multiply", "exp", "add"]


def test_an_output_may_be_an_input() -> None:
    graph = Graph()
    graph.output("y", cs.abs(graph.input("x", (3,), "u8")))
    made = decompose(graph)
    assert not made.nodes
    with cs.compile(made) as plan:
        assert plan.run(x=np.array([1, 200, 3], np.uint8))["y"].tolist() == [1, 200, 3]


def _one_use(op: Op) -> Graph:
    graph = Graph()
    for i, tensor in enumerate(graph.apply(op, [graph.input("x", (3, 4), "f32")], {}, "use")):
        graph.output(f"y{i}", tensor)
    return graph


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "exp2", "decompose": None}, "use: exp2 is not a primitive and has no decomposition"),
        ({"decompose": None}, "use: softmax is not a primitive and has no decomposition"),
        ({"name": "odd", "decompose": lambda f, x: f.max(x)}, r"use: odd gives f32\[\]; wanted f32\[3, 4\]"),
        ({"name": "odd", "decompose": lambda f, x: (x, x)}, r"use: odd gives f32\[3, 4\], f32\[3, 4\]; wanted"),
    ],
)
def test_what_cannot_be_expanded_is_an_error_with_its_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        decompose(_one_use(replace(ops.get("softmax"), **change)))


def test_a_primitive_that_is_chosen_is_an_error() -> None:
    with pytest.raises(PlanError, match="use: exp is primitive and has no decomposition"):
        decompose(_one_use(ops.get("exp")), lambda node: True)


def test_an_op_in_its_own_decomposition_is_an_error() -> None:
    own = replace(ops.get("softmax"), name="own", decompose=lambda f, x: x.graph.apply(own, [x], {})[0])
    with pytest.raises(PlanError, match="use: the decomposition of own has own itself"):
        decompose(_one_use(own))


def test_what_a_part_refuses_is_said_of_the_op() -> None:
    ragged = replace(samples("pad")[0], specs=(TensorSpec((Extent("rows", 2), 3, 5), f32),))
    attrs = {"pad_width": ((0, 0), (1, 1), (0, 0)), "mode": "reflect"}
    with pytest.raises(
        ShapeError, match=r"^pad: got f32\[rows<=2, 3, 5\], which its decomposition does not take: transpose:"
    ):
        decompose(use_of(ops.get("pad"), replace(ragged, attrs=attrs)), lambda node: node.op.name == "pad")


def test_an_order_by_hand_is_refused() -> None:
    graph = Graph()
    x = graph.input("x", (3, 4), "f32")
    first = graph.node("exp", x)
    graph.output("y", graph.node("softmax", x, after=[first]))
    with pytest.raises(PlanError, match="softmax has `after` or `into`"):
        decompose(graph)
