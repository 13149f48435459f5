"""camshaft.jvp: derivatives along a direction, against central differences and torch.func.jvp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft.errors import CamshaftError
from camshaft.graph.graph import Graph
from tests.support.references import evaluated
from tests.train.by_references import by_references  # noqa: F401 - a fixture

RNG = np.random.default_rng(11)
X, W, T, U = (RNG.normal(size=shape) for shape in ((3, 4), (4, 5), (3, 4), (4, 5)))
Function = Callable[..., Any]


def attended(x: Any, w: Any) -> Any:
    q, k = (x @ w).reshape(1, 1, 3, 5), (cs.tanh(x) @ w).reshape(1, 1, 3, 5)
    return cs.softmax(q @ cs.transpose(k, axes=(0, 1, 3, 2))) @ k


FUNCTIONS: dict[str, Function] = {
    "product": lambda x, w: x @ w,
    "norm": lambda x, w: cs.rms_norm(
        cs.layer_norm(x @ w, np.ones(5), np.zeros(5), eps=1e-5), np.arange(1.0, 6.0), eps=1e-5
    ),
    "attention": attended,
    "views and broadcasting": lambda x, w: cs.concat(x[:, ::-1] * w[:, 0], cs.square(x), axis=1)[1:] + w[0, 0],
    "reductions": lambda x, w: cs.max(x, axes=1) * cs.mean(w) + cs.cumsum(x, axis=1)[:, 2],
    "a number": lambda x, w: cs.cross_entropy(x @ w, np.array([1, 4, 0])),
    "gradients": lambda x, w: cs.grad(lambda v: cs.sum(cs.gelu_erf(v @ w)))(x),
}


def moved(f: Function, step: float) -> Any:
    graph = Graph()
    x, w = graph.input("x", X.shape, "f64"), graph.input("w", W.shape, "f64")
    graph.output("y", f(x, w))
    return evaluated(graph, {"x": X + step * T, "w": W + step * U}, {})["y"]


@pytest.mark.usefixtures("by_references")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_the_central_difference_and_turns_around_the_gradient(name: str) -> None:
    f = FUNCTIONS[name]
    value, tangent = cs.jvp(f, (X, W), (T, U))
    np.testing.assert_allclose(value, moved(f, 0.0))
    difference = (moved(f, 1e-6) - moved(f, -1e-6)) / 2e-6
    np.testing.assert_allclose(tangent, difference, atol=1e-7, rtol=1e-6)
    weights = RNG.normal(size=np.shape(value))
    by_x, by_w = cs.grad(lambda x, w: cs.sum(f(x, w) * weights), argnums=(0, 1))(X, W)
    assert np.sum(weights * tangent) == pytest.approx(np.sum(by_x * T) + np.sum(by_w * U), rel=1e-9)


@pytest.mark.usefixtures("by_references")
def test_trees_have_tangents_of_their_structure() -> None:
    def f(p: Any, x: Any) -> Any:
        return {"y": x @ p["w"], "of p alone": [cs.exp(p["w"]), 3], "none": None}

    value, tangent = cs.jvp(f, ({"w": W}, X), ({"w": U}, T))
    assert (value["of p alone"][1], tangent["of p alone"][1], tangent["none"]) == (3, None, None)
    np.testing.assert_allclose(tangent["y"], T @ W + X @ U)
    np.testing.assert_allclose(tangent["of p alone"][0], np.exp(W) * U)


def test_it_is_traced_once_in_a_jitted_function() -> None:
    along = cs.jit(lambda x, t: cs.jvp(lambda v: cs.exp(v) * v, (x,), (t,))[1])
    x, t = X.astype(np.float32), T.astype(np.float32)
    np.testing.assert_allclose(along(x, t), np.exp(x) * (x + 1) * t, rtol=1e-5)
    np.testing.assert_allclose(along(2 * x, t), np.exp(2 * x) * (2 * x + 1) * t, rtol=1e-5)
    assert "1 plan>" in repr(along)
    assert sum("exp" in node.op.name for node in along.plan(x, t).graph.nodes) <= 1


def test_rows_of_a_run_have_tangents() -> None:
    graph, rows = Graph(), cs.Extent("rows", 3)
    x, t = (graph.input(name, (rows, 4), "f64") for name in "xt")
    graph.output("y", cs.jvp(lambda v: cs.softmax(v) @ W, (x,), (t,))[1])
    found = evaluated(graph, {"x": X[:2], "t": T[:2]}, {rows: 2})["y"]
    p = np.exp(X[:2]) / np.exp(X[:2]).sum(1, keepdims=True)
    np.testing.assert_allclose(found, (p * (T[:2] - (p * T[:2]).sum(1, keepdims=True))) @ W)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cs.jvp(cs.exp, X, T), "got primals array(?s:.*)wanted a tuple with each argument"),
        (lambda: cs.jvp(cs.exp, (X,), (T, T)), "got 2 tangents for 1 primals"),
        (lambda: cs.jvp(cs.exp, (X,), (T[:1],)), r"got the tangent f64\[1, 4\] of .*wanted one of f64\[3, 4\]"),
        (lambda: cs.jvp(cs.exp, (X.astype(int),), (T,)), r"primals\[0\] is .*i64.*wanted an array of floats"),
        (lambda: cs.jvp(cs.argmax, (X,), (T,)), "result is the value 'argmax'.*wanted floats"),
        (lambda: cs.jvp(lambda x: cs.cast(cs.argmax(x), to="f64"), (X,), (T,)), "reaches the loss only through argmax"),
        (lambda: cs.jvp(3, (X,), (T,)), "wanted a function of arrays"),
    ],
)
def test_what_has_no_direction_is_refused_by_name(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(CamshaftError, match=message):
        call()


@pytest.mark.oracle
@pytest.mark.usefixtures("by_references")
def test_it_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    F = torch.nn.functional

    def their_attention(x: Any, w: Any) -> Any:
        q, k = x @ w, torch.tanh(x) @ w
        return (torch.softmax(q @ k.mT, -1) @ k)[None, None]

    theirs: dict[str, Function] = {
        "product": lambda x, w: x @ w,
        "norm": lambda x, w: F.rms_norm(
            F.layer_norm(x @ w, (5,)), (5,), torch.arange(1.0, 6.0, dtype=torch.float64), eps=1e-5
        ),
        "attention": their_attention,
        "views and broadcasting": lambda x, w: torch.cat([x.flip(1) * w[:, 0], x**2], 1)[1:] + w[0, 0],
        "reductions": lambda x, w: x.amax(1) * w.mean() + x.cumsum(1)[:, 2],
        "a number": lambda x, w: F.cross_entropy(x @ w, torch.tensor([1, 4, 0])),
        "gradients": lambda x, w: torch.func.grad(lambda v: F.gelu(v @ w).sum())(x),
    }
    assert theirs.keys() == FUNCTIONS.keys()
    given = [torch.tensor(a) for a in (X, W, T, U)]
    for name, f in FUNCTIONS.items():
        value, tangent = cs.jvp(f, (X, W), (T, U))
        y, dy = torch.func.jvp(theirs[name], tuple(given[:2]), tuple(given[2:]))
        np.testing.assert_allclose(value, y.numpy(), rtol=1e-9, err_msg=name)
        np.testing.assert_allclose(tangent, dy.numpy(), rtol=1e-9, atol=1e-12, err_msg=name)
