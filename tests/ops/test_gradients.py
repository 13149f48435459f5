"""Gradients of ops on their samples against central differences of their references, and wrong rules, all of which are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from camshaft import ops
from camshaft.dtypes import DType, f32
from camshaft.graph.functions import function
from camshaft.graph.gradients import gradient
from camshaft.graph.graph import Graph
from camshaft.graph.passes.decompose import use_of
from camshaft.graph.tensor import Tensor
from camshaft.ops.op import Attrs, NoGradient, Op, Sample
from tests.support.gradients import SHORT, Case, added, is_float, of_numbers, rule, specs_of, takes
from tests.support.quick import full
from tests.support.references import evaluated
from tests.support.samples import covering, elements, samples

DIFFERENTIABLE = [op for op in ops.all_ops() if not isinstance(op.vjp, NoGradient)]
# Their gradient is that of what they round, so no difference shows it.
THROUGH = ("quantize_dequantize_affine", "quantize_dequantize_gguf", "stop_gradient")
TRIED = [op for op in DIFFERENTIABLE if op.name not in THROUGH]
# By decomposition, of indexes; the others of them are `full`.
QUICK_PARTS = ("embedding",)
# Samples that the op's own rule takes, where it leaves others to the decomposition.
OWN_RULE = {"scaled_dot_product_attention": "causal"}
NO_CHANGE = ("floor", "round", "floor_divide")


MOST_ELEMENTS = 20_000  # of a sort more lie nearer to each other than a difference's step


def largest(sample: Sample) -> int:
    """Elements of its largest input. Packing weights compiles a kernel for each format, which only some samples need."""
    return max([prod(spec.bounds) for spec in sample.specs or ()] or [a.size for a in sample.inputs])


def small(op: Op) -> list[Sample]:
    return covering(op, [sample for sample in samples(op.name) if largest(sample) <= MOST_ELEMENTS])


def usable(op: Op) -> list[Sample]:
    return [sample for sample in small(op) if takes(op, sample)]


def least(op: Op) -> Case:
    """The op on its smallest sample of more than one element."""
    some = [sample for sample in small(op) if sample.name == OWN_RULE.get(op.name, sample.name)]
    by_size = sorted(some, key=lambda sample: (largest(sample) <= 1, elements(sample)))
    return Case(op, of_numbers(op, next(sample for sample in by_size if takes(op, sample))))


def is_wrong(case: Case) -> bool:
    """Whether a gradient differs from the central difference."""
    return max(case.errors().values()) > 1


@pytest.mark.parametrize(
    "op", [op if callable(op.vjp) or op.name in QUICK_PARTS else full(op) for op in TRIED], ids=lambda op: op.name
)
def test_a_gradient_is_the_central_difference(op: Op) -> None:
    assert not is_wrong(least(op))


@pytest.mark.full
@pytest.mark.parametrize("op", TRIED, ids=lambda op: op.name)
def test_gradients_of_all_samples_are_the_central_differences(op: Op) -> None:
    cases = [Case(op, of_numbers(op, sample)) for sample in usable(op)]
    assert cases
    assert not [case.sample.name for case in cases if is_wrong(case)]


def test_every_op_has_a_gradient_by_one_way_or_a_reason_for_none() -> None:
    for op in ops.all_ops():
        assert callable(op.vjp) or (isinstance(op.vjp, NoGradient) and op.vjp.why) or op.decompose is not None, op.name


# Changes of all gradients that a rule makes.
CHANGES: dict[str, Callable[[Tensor], Tensor]] = {"scale": lambda g: g * 1.1, "sign": lambda g: -g}


@pytest.mark.parametrize(
    ("op", "change"),
    [
        case if case[0].name in ("matmul", "softmax", "where", "prod") else full(*case)
        for case in ((op, change) for op in TRIED if callable(op.vjp) for change in CHANGES)
        if case[0].name not in NO_CHANGE
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_wrong_scale_and_a_wrong_sign_are_found(op: Op, change: str) -> None:
    assert is_wrong(Case(replace(op, vjp=rule(op, CHANGES[change])), least(op).sample))


def without_product(f: Any, dy: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """softmax's without its second term."""
    return dy * y


def without_mean(
    f: Any, dy: Tensor, y: Tensor, x: Tensor, w: Tensor, eps: float, **attrs: Any
) -> tuple[Tensor, Tensor]:
    """rms_norm's as if the scale were a constant."""
    scale = 1 / f.sqrt(f.mean(x * x, axes=-1, keepdims=True) + eps)
    return dy * w * scale, dy * x * scale


# Rules that lack a term, or add up along the wrong axis.
WRONG: dict[str, Callable[..., Any]] = {
    "softmax": without_product,
    "rms_norm": without_mean,
    "multiply": lambda f, dy, y, a, b: (dy * b, None),
    "divide": lambda f, dy, y, a, b: (dy / b, -(dy / b)),
    "power": lambda f, dy, y, a, b: (dy * b * f.power(a, b - 1), None),
    "tanh": lambda f, dy, y, x: dy * (1 - y),
    "cumsum": lambda f, dy, y, x, axis=-1, reverse=False, **attrs: f.cumsum(dy, axis=axis, reverse=reverse),
    "where": lambda f, dy, y, c, a, b: (None, f.where(c, dy, 0), dy),
    "maximum": lambda f, dy, y, a, b: (dy, dy),
    "gather": lambda f, dy, y, x, rows: (x * 0 + f.sum(dy), None),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_rule_that_lacks_a_term_is_found(name: str) -> None:
    op = ops.get(name)
    assert is_wrong(Case(replace(op, vjp=WRONG[name]), least(op).sample))


ATTENDED = {
    "plain": {},
    "window of 3": {"causal": True, "window": 3, "offset": 2},
    "both sides": {"window": 2},
    "chunks, cap": {"causal": True, "chunk": 4, "cap": 1.5, "scale": 0.7},
    "mask": {"mask": True},
    "mask, lse": {"mask": True, "lse": True},
}


@pytest.mark.parametrize("name", [name if name in ("chunks, cap", "mask") else full(name) for name in ATTENDED])
def test_the_rule_of_attention_makes_what_its_parts_make(name: str) -> None:
    options = ATTENDED[name]
    rng, attrs = np.random.default_rng(9), {key: value for key, value in options.items() if key != "mask"}
    shapes = (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 3)
    mask = rng.random((2, 1, 5, 7)) < 0.6
    mask[1, :, 2] = False  # a row that sees no key
    extras = (mask,) if "mask" in options else ()
    sample = Sample("attention", (*(rng.normal(size=s).astype(np.float32) for s in shapes), *extras), attrs)
    op = ops.get("scaled_dot_product_attention")
    own, parts = Case(op, sample).gradients, Case(replace(op, vjp=None), sample).gradients
    for i in range(3):
        np.testing.assert_allclose(own[i], parts[i], rtol=1e-4, atol=1e-5)
    assert not is_wrong(Case(op, sample))


def without_to(attrs: Attrs) -> dict[str, Any]:
    return {name: value for name, value in attrs.items() if name != "to"}


def of_mixed_precision(op: Op, dtype: DType | None, sample: Sample) -> dict[str, np.ndarray]:
    """The gradients of the op's float results by its inputs, those of 16-bit floats as `dtype` if that is given."""
    graph, given, wrt, found = Graph(), dict[str, np.ndarray](), list[Tensor](), list[Any]()
    for i, (array, spec) in enumerate(zip(of_numbers(op, sample).inputs, specs_of(sample), strict=True)):
        own = replace(spec, shape=spec.bounds, dtype=dtype if dtype and spec.dtype in SHORT else spec.dtype)
        wrt += [graph.input(f"x{i}", own.shape, own.dtype)]
        given[f"x{i}"] = np.asarray(array).astype(spec.parts[0].dtype.numpy).astype(own.parts[0].dtype.numpy)
    attrs = {a.name: sample.attrs[a.name] for a in op.parameters.attributes if a.name in sample.attrs}
    made = graph.apply(op, wrt, without_to(attrs) if dtype else attrs)
    by = [x for x in wrt if is_float(x.spec)]
    for y in (y for y in made if is_float(y.spec)):
        factors = np.random.default_rng(5).uniform(-1, 1, y.spec.bounds).astype(y.spec.parts[0].dtype.numpy)
        found.append(graph.gradients(y, by, cotangent=graph.constant("c", factors)))
    for i, parts in enumerate(zip(*found, strict=True)):
        graph.output(f"g{i}", added(list(parts)))
    return evaluated(graph, given, {})


def short_samples(op: Op) -> list[Sample]:
    """Samples with 16-bit floats, of ops that take f32 in their place."""
    some = [s for s in covering(op, samples(op.name)) if all(spec.is_plain for spec in specs_of(s))]
    some = [s for s in some if any(spec.dtype in SHORT for spec in specs_of(s))]
    wide = [tuple(replace(spec, dtype=f32) if spec.dtype in SHORT else spec for spec in specs_of(s)) for s in some]
    return [s for s, specs in zip(some, wide, strict=True) if op.accepts(specs, without_to(s.attrs))]


@pytest.mark.parametrize(
    "op", [op if op.name in ("rms_norm", "round") else full(op) for op in TRIED], ids=lambda op: op.name
)
def test_gradients_of_mixed_precision_are_those_of_f32_rounded(op: Op) -> None:
    for sample in short_samples(op):
        wanted = of_mixed_precision(op, f32, sample)
        for name, made in of_mixed_precision(op, None, sample).items():
            scale = np.abs(np.nan_to_num(wanted[name])).max(initial=1e-3)
            np.testing.assert_allclose(made.astype(np.float64), wanted[name], rtol=0, atol=0.03 * scale)


def test_a_table_of_angles_has_the_gradient_of_the_decomposition() -> None:
    op = ops.get("rope")
    sample = of_numbers(op, samples("rope")[0])
    graphs = [use_of(other, sample) for other in (op, replace(op, vjp=None))]
    for graph in graphs:
        loss = function("sum")(graph.outputs["y0"] * graph.outputs["y0"])
        for name, gradient_of in zip(
            "ab", graph.gradients(loss, [graph.inputs["x0"], graph.inputs["x2"]]), strict=True
        ):
            graph.output(name, gradient_of)
    own, parts = (evaluated(graph, {f"x{i}": a for i, a in enumerate(sample.inputs)}, {}) for graph in graphs)
    assert own["b"].any()
    for name in "ab":
        np.testing.assert_array_equal(own[name], parts[name])


def broadcast_case() -> Case:
    op = ops.get("multiply")
    shapes = [(sample, sample.inputs[0].shape, sample.inputs[1].shape) for sample in usable(op)]
    return next(Case(op, of_numbers(op, s)) for s, a, b in shapes if a != b and len(a) > 1)


@pytest.mark.parametrize("change", ["mean", "max", "first"])
def test_a_wrong_sum_over_broadcast_axes_is_found(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = gradient.sum_to

    def wrong(part: Tensor, tensor: Tensor) -> Tensor:
        if part.shape == tensor.shape:
            return part
        if change == "first":
            index = tuple(0 for _ in range(part.ndim - tensor.ndim))
            short = part[index] if index else part
            return short[tuple(slice(0, n) for n in tensor.shape)]  # type: ignore[arg-type, misc]
        monkeypatch.setattr(gradient.functions, "function", lambda name: function(change if name == "sum" else name))
        try:
            return right(part, tensor)
        finally:
            monkeypatch.setattr(gradient.functions, "function", function)

    assert not is_wrong(broadcast_case())
    monkeypatch.setattr(gradient, "sum_to", wrong)
    assert is_wrong(broadcast_case())
