"""The ops that rules of gradients are made of: the same bits for any number of threads, and derivatives of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.dtypes import as_dtype, f32
from camshaft.graph.graph import Graph
from camshaft.ops.op import NodeSpec, Sample
from camshaft.ops.spec import TensorSpec
from camshaft.selection.select import select
from camshaft.validation.validate import check_sample
from tests.support.devices.simulated_gpu import LIMITS, SimulatedDevice
from tests.support.gradients import Case
from tests.support.quick import full

# Losses whose gradient is made of each op: sizes, and options.
ATTENDED: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "causal, groups of 3": ((1, 6, 2, 50, 50, 20, 20), {"causal": True}),
    "one head, several tiles": ((1, 1, 1, 99, 97, 16, 12), {}),
    "window, a mask": ((2, 3, 1, 37, 51, 17, 8), {"causal": True, "window": 9, "offset": 14, "mask": True}),
    "chunks": ((1, 2, 2, 49, 49, 8, 8), {"chunk": 20}),
}


def attention_sample(name: str) -> Sample:
    """q, k and v, and a mask in which one row sees nothing."""
    (batch, heads, kv_heads, queries, keys, size, v_size), attrs = ATTENDED[name]
    rng, named = np.random.default_rng(3), {key: value for key, value in attrs.items() if key != "mask"}
    shapes = (batch, heads, queries, size), (batch, kv_heads, keys, size), (batch, kv_heads, keys, v_size)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    if "mask" not in attrs:
        return Sample(name, tuple(arrays), named)
    mask = rng.random((batch, 1, queries, keys)) < 0.6
    mask[0, :, 2] = False
    return Sample(name, (*arrays, mask), {**named, "extras": "mask"})


def loss_sample(classes: int, dtype: str = "f32") -> Sample:
    """Logits and targets, of which some are ignored."""
    rng = np.random.default_rng(classes)
    target = rng.integers(0, classes, (5, 3))
    target[1, 1] = target[4, 0] = 1
    logits = rng.normal(size=(5, 3, classes)).astype(as_dtype(dtype).numpy)
    return Sample(f"{classes} classes", (logits, target), {"ignore_index": 1, "label_smoothing": 0.1})


SAMPLES = {
    **{("scaled_dot_product_attention", name): attention_sample(name) for name in ATTENDED},
    **{("cross_entropy", str(n)): loss_sample(n) for n in (33, 4096 + 65)},
    ("cross_entropy", "bf16"): loss_sample(1001, "bf16"),
}
MADE_OF = {"scaled_dot_product_attention": "attention_gradient", "cross_entropy": "cross_entropy_gradient"}


# Of the default run: six heads in groups of three.
QUICK = (("scaled_dot_product_attention", "window, a mask"),)


@pytest.mark.parametrize("key", [key if key in QUICK else full(key) for key in SAMPLES], ids=" ".join)
def test_gradients_have_the_same_bits_for_any_number_of_threads(key: tuple[str, str]) -> None:
    case = Case(ops.get(key[0]), SAMPLES[key])
    graph = case.graph() if case.wrt else _of_mixed_precision(case)
    assert sum(node.op.name == MADE_OF[key[0]] for node in graph.nodes) == 1
    given, found = {f"x{i}": array for i, array in enumerate(case.given)}, []
    for threads in (1, 2, 3, 5):
        with cs.compile(graph, threads=threads) as plan:
            for _ in range(2):
                made = plan.run(**given)
                found.append({name: made[name].tobytes() for name in made if name.startswith("g")})
    assert found[0]
    assert found[1:] == found[:1] * (len(found) - 1)


def _of_mixed_precision(case: Case) -> Graph:
    graph = Graph()
    x, *rest = (graph.input(f"x{i}", spec.shape, spec.dtype) for i, spec in enumerate(case.inputs))
    (y,) = graph.apply(case.op, [x, *rest], case.sample.attrs)
    graph.output("g0", graph.gradients(y, [x])[0])
    return graph


# Small ones of the same: op, and sample.
SECOND = {
    **{name: ("scaled_dot_product_attention", name) for name in ("causal", "window", "mask", "lse")},
    **{name: ("cross_entropy", name) for name in ("mean", "sum", "none")},
}


def second_case(name: str) -> Case:
    op = ops.get(SECOND[name][0])
    if op.name == "cross_entropy":
        logits, target = (a[:, 0] for a in loss_sample(9, "f64").inputs)
        return Case(op, Sample(name, (logits, target), {"reduction": name, "label_smoothing": 0.1}))
    rng = np.random.default_rng(4)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((1, 4, 5, 8), (1, 2, 7, 8), (1, 2, 7, 3))]
    mask = rng.random((1, 1, 5, 7)) < 0.7
    mask[..., 0], options = (
        True,
        {"causal": {"causal": True, "offset": 2}, "window": {"window": 3}, "lse": {"lse": True}},
    )
    if name == "mask":
        return Case(op, Sample(name, (*arrays, mask), {"extras": "mask"}))
    return Case(op, Sample(name, tuple(arrays), options[name]))


def second_errors(case: Case) -> list[float]:
    """By input: the difference of the second derivative along random numbers from a central difference of the first ones, as a
    share of what is allowed."""
    found, errors = case.values(order=2), []
    step = 1e-6 if case.in_f64 else 1e-2
    for i in case.wrt:
        along = np.random.default_rng(i).uniform(-1, 1, case.given[i].shape)
        sums = []
        for sign in (1, -1):
            moved = [*case.given]
            moved[i] = (moved[i] + sign * step * along).astype(moved[i].dtype)
            other = Case(case.op, replace(case.sample, inputs=tuple(moved)))
            other.__dict__["factors"] = case.factors
            sums.append(sum(float((g * case.second[at]).sum()) for at, g in other.values().items()))
        terms = found[i] * along
        errors.append(abs((sums[0] - sums[1]) / (2 * step) - terms.sum()) / (np.abs(terms).sum() + 1e-2))
    return [error / (1e-8 if case.in_f64 else 1e-4) for error in errors]


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_are_differences_of_first_ones(name: str) -> None:
    case = second_case(name)
    assert MADE_OF[case.op.name] in [node.op.name for node in case.graph().nodes]
    assert max(second_errors(case)) < 1


@pytest.mark.parametrize("name", ["causal", "mean"])
def test_a_derivative_that_is_too_large_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = second_case(name)
    op = ops.get(MADE_OF[case.op.name])
    rule = op.decompose
    assert rule is not None

    def larger(*given: Any, **attrs: Any) -> Any:
        made = rule(*given, **attrs)
        return tuple(x * 1.1 for x in made) if isinstance(made, tuple) else made * 1.1

    monkeypatch.setitem(vars(op), "decompose", larger)  # functions of graphs have the op itself
    assert max(second_errors(case)) > 1


@pytest.mark.full
def test_weights_of_attention_that_are_too_many_are_not_kept() -> None:
    """A GPU keeps the weights of all heads for a gradient up to a size; beyond it computes them tile by tile."""
    op = ops.get("attention_gradient")

    def variant(heads: int, length: int) -> str:
        q, row = TensorSpec((1, heads, length, 64), f32), TensorSpec((1, heads, length), f32)
        specs = (q, q, q, q, row, row)
        return select(op, NodeSpec(specs, op.infer(specs, {}), {}), "null:ptx").variant.name

    assert variant(8, 2048) == "products"
    assert variant(32, 8192) == "tiles"


def test_keys_that_are_not_seen_may_have_scores_that_overflow() -> None:
    op = ops.get("attention_gradient")
    given = next(sample for sample in op.samples() if sample.name == "cross, a row of none")
    q, k, v, dy, lse, delta, mask = (a.copy() for a in given.inputs)
    mask[..., 3:9] = False
    k[:, :, 3:9], v[:, :, 3:9] = 1e4, 1e4
    scores = given.attrs["scale"] * (q @ k.repeat(2, 1).swapaxes(2, 3)).astype(np.float64)
    assert scores[..., 3:9].max() > 1e3
    with np.errstate(divide="ignore"):
        lse = np.log(np.where(mask, np.exp(np.where(mask, scores, 0)), 0).sum(-1)).astype(np.float32)
    for variant in op.variants:
        sample = Sample("overflow", (q, k, v, dy, lse, delta, mask), given.attrs)
        found = check_sample(op, variant, SimulatedDevice(64), sample)
        assert found.max_error <= found.tolerance, f"{variant.name}: {found.max_error}"


def test_weights_of_attention_take_a_quarter_of_a_device_s_memory() -> None:
    q, row = TensorSpec((1, 8, 2048, 64), f32), TensorSpec((1, 8, 2048), f32)
    op, nbytes = ops.get("attention_gradient"), 4 * 8 * 2048 * 2048 * 4
    node = NodeSpec((q, q, q, q, row, row), op.infer((q, q, q, q, row, row), {}), {})
    products = next(variant for variant in op.variants if variant.name == "products")
    for memory, reason in (
        (4 * nbytes, None),
        (4 * nbytes - 1, f"matrices of {nbytes} bytes; wanted at most {nbytes - 1}"),
    ):
        assert products.supports(node, SimulatedDevice(limits=LIMITS | {"memory": memory})) == reason
