"""grad and value_and_grad: functions of arrays and of tensors, what they refuse, and equal bits for any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import camshaft as cs
from camshaft.errors import CamshaftError
from camshaft.graph.graph import Graph
from tests.support.references import evaluated

RNG = np.random.default_rng(4)
X = RNG.normal(size=(2, 3, 4))


class Layer(NamedTuple):
    w: Any
    names: tuple[str, ...]


def test_grad_takes_trees_positions_and_functions_of_arrays() -> None:
    traces: list[int] = []

    @cs.value_and_grad(argnums=(0, 2), has_aux=True, backend="scalar")
    def loss(params: dict[str, Any], x: Any, s: Any) -> Any:
        traces.append(1)
        y = x * params["layer"].w * s
        return cs.sum(y), {"y": y}

    x = np.arange(3, dtype=np.float32)
    params = {"layer": Layer(np.full(3, 2, np.float32), ("w",)), "rest": [np.ones(2, np.float32)]}
    for _ in range(2):
        (value, aux), (of_params, of_s) = loss(params, x, np.float32(3))
    assert traces == [1]
    assert (value, of_s) == (18, 6)
    np.testing.assert_array_equal(aux["y"], 6 * x)
    np.testing.assert_array_equal(of_params["layer"].w, 3 * x)
    assert of_params["layer"].names == (None,)
    assert not of_params["rest"][0].any()


def test_grad_of_tensors_adds_nodes_and_can_be_nested() -> None:
    second = cs.grad(cs.grad(lambda x: cs.sum(cs.power(x, 3.0)) if x.ndim else cs.power(x, 3.0)))
    graph = Graph()
    graph.output("y", second(graph.input("x", (), "f64")))
    assert evaluated(graph, {"x": np.array(2.0)}, {})["y"] == pytest.approx(12)
    shared = graph.input("shared", (), "f64")
    by_first, by_second = cs.grad(lambda a, b: a * b * b, argnums=(0, 1))(shared, shared)  # one tensor in two roles
    graph.output("a", by_first)
    graph.output("b", by_second)
    made = evaluated(graph, {"x": np.array(2.0), "shared": np.array(3.0)}, {})
    assert (made["a"], made["b"]) == (9, 18)


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (lambda: cs.grad(3), (), "grad: got 3; wanted a function of arrays"),
        (lambda: cs.grad(cs.sum, argnums=-1), (X,), "got argnums -1; wanted the positions of arguments, from 0 on"),
        (
            lambda: cs.grad(lambda x: cs.sum(x), argnums=1),
            (X,),
            r"got 1 arguments by position; wanted one at each of \[1\]",
        ),
        (lambda: cs.grad(lambda x: cs.sum(x)), (np.arange(3),), "grad: x is .*i64.*; wanted floats"),
        (lambda: cs.grad(lambda x: cs.exp(x)), (2.0,), r"grad: x is 2.0; wanted an array, such as np.float32\(2.0\)"),
        (lambda: cs.grad(lambda x: cs.exp(x)), (X,), "wanted one real number, or a cotangent of its shape"),
        (lambda: cs.grad(lambda x: 3.0), (X,), "got the loss 3.0; wanted a tensor of one float"),
        (lambda: cs.grad(lambda x: cs.sum(x), has_aux=True), (X,), r"wanted \(loss, aux\) of a function with has_aux"),
    ],
)
def test_grad_refuses_by_name(make: Callable[[], Any], given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(CamshaftError, match=message):
        make()(*given)


def attended(w: dict[str, Any], x: Any, y: Any) -> Any:
    """The loss of a layer of attention over a table of tokens."""
    h = cs.embedding(x, w["tokens"])
    q, k, v = (cs.transpose((h @ w[name]).reshape(2, 9, 2, 8), axes=(0, 2, 1, 3)) for name in "qkv")
    h = h + cs.transpose(cs.scaled_dot_product_attention(q, k, v, causal=True), axes=(0, 2, 1, 3)).reshape(2, 9, 16)
    return cs.cross_entropy(cs.rms_norm(h, w["norm"], eps=1e-5) @ w["q"], y)


@pytest.mark.full
def test_gradients_have_the_same_bits_for_any_number_of_threads() -> None:
    weights = {name: RNG.normal(size=(16, 16)).astype(np.float32) for name in "qkv"}
    weights |= {"tokens": RNG.normal(size=(40, 16)).astype(np.float32), "norm": np.ones(16, np.float32)}
    x, y = RNG.integers(0, 16, (2, 2, 9)).astype(np.int32)
    runs = [cs.value_and_grad(attended, threads=n)(weights, x, y) for n in (1, 2, 5)]
    for value, found in runs[1:]:
        assert value == runs[0][0]
        for name, gradient in found.items():
            np.testing.assert_array_equal(gradient, runs[0][1][name])


def test_numpys_integers_number_arguments() -> None:
    a, b = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    numbers: list[Any] = [np.int64(1), [np.int8(1)]]
    one, several = (cs.grad(lambda a, b: cs.sum(a * b), argnums=n)(a, b) for n in numbers)
    assert one.tolist() == several[0].tolist() == [1, 2]
