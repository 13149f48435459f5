"""Graph.gradients, stop_gradient and custom_vjp: what they compute and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft.errors import CamshaftError, PlanError, ShapeError
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.graph.graph import Graph, Tensor
from camshaft.graph.passes.decompose import expand_composites
from camshaft.ops.spec import TensorSpec
from tests.support.references import evaluated

RNG = np.random.default_rng(3)
X = RNG.normal(size=(2, 3, 4))
Function = Callable[..., Tensor]


def gradients(f: Function, *arrays: np.ndarray, wrt: Sequence[int] | None = None, order: int = 1) -> list[np.ndarray]:
    """The gradients of the sum of f(*arrays) by arrays, computed by references; of order 2 those of the sum of their squares."""
    graph = Graph()
    given = [graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    by = [given[i] for i in (wrt if wrt is not None else range(len(given)))]
    loss = total(f(*given))
    for _ in range(order):
        found = graph.gradients(loss, by)
        loss = sum((total(g * g) for g in found), start=0.0)  # type: ignore[assignment]
    for i, g in enumerate(found):
        graph.output(f"g{i}", g)
    made = evaluated(expand_composites(graph), {f"x{i}": a for i, a in enumerate(arrays)}, {})
    return [made[f"g{i}"] for i in range(len(by))]


def total(x: Tensor) -> Tensor:
    return cs.sum(x) if x.ndim else x


def check_difference(found: np.ndarray, f: Function, x: np.ndarray) -> None:
    """Compares a gradient with the central difference of the sum of f(x) along random numbers."""

    def value(moved: np.ndarray) -> float:
        graph = Graph()
        graph.output("y", total(f(graph.input("x", x.shape, x.dtype))))
        return float(evaluated(graph, {"x": moved}, {})["y"])

    along = RNG.normal(size=x.shape)
    step = 1e-5 * along
    assert np.sum(found * along) == pytest.approx((value(x + step) - value(x - step)) / 2e-5, rel=1e-6, abs=1e-7)


def square_of_sum(x: Tensor) -> Tensor:
    return cs.square(cs.sum(x, axes=0))


VIEWS: dict[str, Function] = {
    "reshape": lambda x: square_of_sum(x.reshape(4, 6)),
    "transpose": lambda x: square_of_sum(cs.transpose(x, axes=(2, 0, 1))),
    "part": lambda x: cs.square(x[1, ::2, 1:-1]),
    "backwards": lambda x: cs.exp(x[:, ::-1]) * x,
    "one": lambda x: cs.square(x[0, 1, 2]),
    "new axis": lambda x: x[:, None] * x[:, :, None],
    "concat and split": lambda x: cs.concat(cs.square(x), x * 3, axis=1)[:, 2:5] * cs.split(x, sizes=(1, 3), axis=2)[1][:, :, :1],
    "split into one": lambda x: cs.square(cs.split(x, sizes=(3,), axis=1)),
    "pad": lambda x: cs.square(cs.pad(x, pad_width=((0, 0), (1, 2), (0, 1)), mode="edge")),
    "gather": lambda x: square_of_sum(cs.gather(x, np.array([1, 1, 0], np.int32))),
    "broadcast": lambda x: x * cs.sum(x, axes=(0, 2), keepdims=True) / (1 + cs.square(x[0, 0])),
    "matrix and itself": lambda x: x[0] @ x[1].T @ x[0],
    "batched product": lambda x: cs.square(x @ cs.transpose(x, axes=(0, 2, 1))),
    "vectors": lambda x: x[0, 0] @ x[1, 1] * (x[0] @ x[1, 2]) @ x[1],
}  # fmt: skip


@pytest.mark.parametrize("f", VIEWS.values(), ids=VIEWS)
def test_gradients_go_through_views_and_broadcasting(f: Function) -> None:
    check_difference(gradients(f, X)[0], f, X)


def test_a_gradient_is_differentiated_again() -> None:
    x = X[0]
    (second,) = gradients(lambda x: cs.exp(x) * x, x, order=2)
    first = np.exp(x) * (x + 1)
    np.testing.assert_allclose(second, 2 * first * np.exp(x) * (x + 2))
    (third,) = gradients(lambda x: cs.power(x, 3.0), np.abs(x), order=2)
    np.testing.assert_allclose(third, 2 * 3 * x**2 * 6 * np.abs(x))


def test_tensors_of_no_influence_have_zeros_and_equal_ones_share() -> None:
    x, y = X[0], X[1]
    of_x, of_y = gradients(lambda x, y: cs.exp(x), x, y)
    np.testing.assert_allclose(of_x, np.exp(x))
    assert of_y.shape == y.shape
    assert not of_y.any()
    graph = Graph()
    x = graph.input("x", (3,), "f32")
    y = cs.exp(x)
    loss = cs.sum(y)
    twice = graph.gradients(loss, [x, x, y, loss])
    assert twice[0] is twice[1]
    assert [g.spec for g in twice] == [x.spec, x.spec, y.spec, loss.spec]


def test_no_node_is_left_that_no_gradient_needs() -> None:
    graph = Graph()
    x, w = graph.input("x", (3, 4), "f32"), graph.input("w", (4, 5), "f32")
    loss = cs.sum(cs.softmax(x @ w))
    before = list(graph.nodes)
    graph.gradients(loss, [w])
    added = [node.op.name for node in graph.nodes[len(before) :]]
    assert graph.nodes[: len(before)] == before
    assert added.count("matmul") == 1  # none by x
    with pytest.raises(PlanError):
        graph.gradients(cs.sum(cs.cast(cs.argmax(x), to="f32")), [x])
    count = len(graph.nodes)
    graph.gradients(loss, [])
    assert len(graph.nodes) == count


def test_rows_of_a_run_have_gradients_and_are_not_summed_over() -> None:
    graph, rows = Graph(), cs.Extent("rows", 4)
    x, c = (graph.input(name, (rows, 4), "f64") for name in "xc")
    w = graph.input("w", (4, 4), "f64")
    y = cs.softmax(x[:, ::-1] @ w)
    graph.output("g", graph.gradients(y, [x], cotangent=c)[0])
    bias = graph.constant("bias", np.ones(4))
    for by in (w, bias):
        with pytest.raises(ShapeError, match=r"gradients: .*got the Extent rows to sum over; wanted a fixed size"):
            graph.gradients(y + bias, [by], cotangent=c)
    given = {"x": X[0, :2], "w": RNG.normal(size=(4, 4)), "c": X[1, :2]}
    made = evaluated(graph, given, {rows: 2})["g"]

    def weighed(x: Tensor) -> Tensor:
        return cs.softmax(x[:, ::-1] @ given["w"]) * given["c"]

    check_difference(made, weighed, given["x"])


def test_a_cotangent_weighs_the_results() -> None:
    graph = Graph()
    x, c = graph.input("x", (3,), "f64"), graph.input("c", (3,), "f64")
    graph.output("g", graph.gradients(cs.exp(x), [x], cotangent=c)[0])
    a, b = X[0, 0, :3], X[1, 0, :3]
    np.testing.assert_allclose(evaluated(graph, {"x": a, "c": b}, {})["g"], np.exp(a) * b)


def test_stop_gradient_makes_a_constant() -> None:
    x = X[0]
    (found,) = gradients(lambda x: x * cs.stop_gradient(cs.exp(x)), x)
    np.testing.assert_allclose(found, np.exp(x))
    (found,) = gradients(lambda x: cs.where(cs.stop_gradient(cs.argmax(x, axis=0)) == 0, x[0], 0.0), x)
    np.testing.assert_array_equal(found[0], np.argmax(x, 0) == 0)


def test_integers_after_stop_gradient_are_constants() -> None:
    (found,) = gradients(lambda x: cs.cast(cs.argmax(cs.stop_gradient(x)), to="f64"), X[0])
    assert not found.any()


def test_custom_vjp_has_the_callers_gradient() -> None:
    clipped = cs.custom_vjp(lambda x, s: cs.clip(x * s, -1.0, 1.0), lambda dy, y, x, s: (dy * s, None))

    @cs.custom_vjp(backward=lambda dys, ys, x: dys[0] * ys[0] * 2)
    def both(x: Any) -> Any:
        return cs.exp(x), x * 3

    x, s = X[0] * 3, np.array(2.0)
    of_x, of_s = gradients(lambda x, s: clipped(x, s), x, s)
    np.testing.assert_array_equal(of_x, np.full_like(x, 2))
    assert of_s == 0
    np.testing.assert_allclose(gradients(lambda x: both(x)[0] + both(x)[1], x)[0], 2 * np.exp(x))
    np.testing.assert_allclose(gradients(lambda x: both(x)[0], x, order=2)[0], 2 * 2 * np.exp(x) * 2 * 2 * np.exp(x))
    np.testing.assert_array_equal(clipped(x, s), np.clip(x * s, -1, 1))
    assert both.__name__ == "both"
    wrong = cs.custom_vjp(lambda x, s: x * s, lambda dy, y, x, s: dy)
    with pytest.raises(PlanError, match=r"gradients: .*got 1 gradients; wanted one for each of its 2 inputs"):
        gradients(wrong, x, s)
    with pytest.raises(PlanError, match="wanted two functions"):
        cs.custom_vjp(lambda x: x)
    with pytest.raises(ShapeError, match="wanted tensors made of its arguments"):
        gradients(cs.custom_vjp(lambda x: 3.0, lambda dy, y, x: dy), x)


def test_gradients_pass_quantized_weights_and_stop_at_them() -> None:
    graph = Graph()
    w = graph.state("w", TensorSpec((8, 64), BLOCK_FORMATS["Q4_0"]))
    x = graph.input("x", (2, 64), "f32")
    loss = cs.sum(cs.quantized_matmul(x, w))
    graph.output("g", graph.gradients(loss, [x])[0])
    numbers = RNG.normal(size=(8, 64))  # references take numbers in place of blocks
    made = evaluated(graph, {"x": np.ones((2, 64), np.float32), "w": numbers}, {})["g"]
    np.testing.assert_allclose(made, np.tile(numbers.sum(0), (2, 1)), rtol=1e-5, atol=1e-5)
    with pytest.raises(ShapeError, match=r"gradients: got the state 'w' Q4_0\[8, 64\]; wanted tensors of floats"):
        graph.gradients(loss, [w])


def cached(graph: Graph, x: Tensor) -> Tensor:
    """The sum of a state after x was written to it."""
    state = graph.state("s", x.spec)
    graph.custom(lambda x, s: None, [x, state], [], updates=[1])
    return cs.sum(state)


def through_custom(graph: Graph, x: Tensor) -> Tensor:
    return cs.sum(graph.custom(lambda x, y: None, [x], [x.spec], name="by_hand")[0])


def after_exp(graph: Graph, x: Tensor) -> Tensor:
    return cs.sum(graph.node("exp", x, after=[cs.exp(x)]))


def changed_state(graph: Graph, x: Tensor) -> Tensor:
    """A loss that read a state before it was written."""
    state = graph.state("s", x.spec)
    loss = cs.sum(x * state)
    graph.custom(lambda s: None, [state], [], updates=[0], name="write")
    return loss


def whole(x: Tensor, dtype: str) -> Tensor:
    return cs.sum(cs.cast(x, to=dtype))


def drawn(graph: Graph, x: Tensor) -> Tensor:
    """The log-probabilities of tokens that are drawn."""
    rows = [graph.input(name, (3,), dtype) for name, dtype in (("t", "f32"), ("k", "i32"), ("p", "f32"), ("m", "f32"))]
    _, logs = cs.softmax_sample(x, *rows, graph.input("seed", (3, 3), "u32"))
    return cs.sum(logs)


REFUSED: dict[str, tuple[Callable[[Graph, Tensor], Tensor], str]] = {
    "integers": (
        lambda g, x: whole(cs.argmax(x), "f32"),
        r"gradients: x reaches the loss only through argmax \(argmax\), which makes i32\[3\] of it; wanted a path of floats",
    ),
    "comparison": (lambda g, x: whole(x > 0, "f32"), r"only through greater \(greater\), which makes bool\[3, 32\]"),
    "whole numbers": (lambda g, x: whole(cs.cast(x, to="i32"), "f32"), r"only through cast \(cast\), which makes i32"),
    "8 bits": (
        lambda g, x: cs.sum(cs.dequantize(cs.quantize_activations(x))),
        r"only through quantize_activations \(quantize_activations\)",
    ),
    "tokens": (drawn, r"softmax_sample \(softmax_sample\): it has no gradient: it draws tokens; wanted stop_gradient"),
    "a function": (through_custom, r"gradients: by_hand \(by_hand\): it has neither a gradient nor a decomposition"),
    "an order": (after_exp, "gradients: exp .*it has `after` or `into`; wanted a graph without them"),
    "a state": (cached, r"custom \(custom\) writes s, through which the loss depends .*wanted a path without states"),
    "a state written later": (changed_state, r"reads s after write \(write\) wrote it; wanted the gradients before"),
    "many losses": (lambda g, x: x, r"got the loss .*f32\[3, 32\]; wanted one real number, or a cotangent"),
    "an integer loss": (lambda g, x: cs.sum(cs.argmax(x)), "wanted tensors of floats, as others have no gradient"),
    "another graph": (lambda g, x: Graph().input("z", (), "f32"), "wanted tensors of this graph"),
}


@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_gradient_is_refused_by_name(build: Callable[[Graph, Tensor], Tensor], message: str) -> None:
    graph = Graph()
    x = graph.input("x", (3, 32), "f32")
    loss = build(graph, x)
    nodes = list(graph.nodes)
    with pytest.raises(CamshaftError, match=message):
        graph.gradients(loss, [x])
    assert graph.nodes == nodes
