"""@camshaft.jit of dataclasses, tuples and methods: arguments and results are trees, and errors name their parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import camshaft as cs
from camshaft.errors import PlanError, ShapeError

RNG = np.random.default_rng(11)


def values(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Layer:
    weight: Any
    scale: Any = 1.0


def test_arguments_and_results_are_trees() -> None:
    traces = 0

    @cs.jit
    def model(x: Any, params: Any, *rest: Any, mode: str = "sum", **more: Any) -> Any:
        nonlocal traces
        traces += 1
        y = x @ params["w"] * params["layer"].scale + rest[0].left - more["bias"][0]
        return {"y": y, "pair": Pair(x, [y * 2, None]), "layer": Layer(y, 3), "mode": (1, True)}

    x, w, left, bias = values(2, 3), values(3, 4), values(4), values(4)
    params = {"w": w, "layer": Layer(w, 2.0)}
    found = model(x, params, Pair(left, [left, 1]), bias=[bias], mode="sum")
    np.testing.assert_allclose(found["y"], x @ w * 2 + left - bias, rtol=1e-5)
    assert list(found) == ["y", "pair", "layer", "mode"]
    assert isinstance(found["pair"], Pair)
    assert np.array_equal(found["pair"].left, x)
    assert np.array_equal(found["pair"].right[0], 2 * found["y"])
    assert found["pair"].right[1] is None
    assert (found["layer"].scale, found["mode"]) == (3, (1, True))
    model(x, dict(params), Pair(left, [left, 1]), mode="sum", bias=[bias])
    assert traces == 1
    model(x, params, Pair(left, [left, 2]), mode="sum", bias=[bias])
    model(x, params | {"layer": Layer(w, 3.0)}, Pair(left, [left, 2]), mode="sum", bias=[bias])
    assert traces == 3
    plan = model.plan(x, params, Pair(left, [left, 1]), bias=[bias], mode="sum")
    assert list(plan.inputs) == [
        "x",
        "params['w']",
        "params['layer'].weight",
        "arguments[2].left",
        "arguments[2].right[0]",
        "bias[0]",
    ]


def test_errors_name_the_argument_or_the_result() -> None:
    @cs.jit
    def function(x: Any, options: Any = None) -> Any:
        return {"y": x, "odd": [options["result"] if options else x]}

    x = values(2)
    with pytest.raises(ShapeError, match=r"jit of function: options\['names'\]: no dtype"):
        function(x, {"names": np.array(["a"])})
    with pytest.raises(PlanError, match=r"jit of function: options\['of'\]\[1\]: unhashable type: 'set'"):
        function(x, {"of": [1, {2}]})
    with pytest.raises(PlanError, match=r"jit of function: result\['odd'\]\[0\] is 'text'; wanted a tensor"):
        function(x, {"result": "text"})
    with pytest.raises(TypeError, match="positional argument"):
        function(x, None, None)


def test_tensors_inside_a_tree_make_it_part_of_their_graph() -> None:
    inner = cs.jit(lambda params: params["a"] + params["b"])
    outer = cs.jit(lambda x: inner({"a": x, "b": np.ones(3, np.float32)}) * 2)
    x = values(2, 3)
    np.testing.assert_allclose(outer(x), (x + 1) * 2, rtol=1e-6)
    assert len(outer.plan(x).bound.schedule.thunks) == 1


def test_a_method_is_traced_once_per_object() -> None:
    traces: list[object] = []

    class Scaled:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @cs.jit
        def of(self, x: np.ndarray) -> np.ndarray:
            """Returns x times the factor."""
            traces.append(self)
            return x * self.factor

    two, three = Scaled(2.0), Scaled(3.0)
    for _ in range(2):
        assert two.of(np.ones(3, np.float32)).tolist() == [2, 2, 2]
        assert three.of(np.ones(3, np.float32)).tolist() == [3, 3, 3]
    assert traces == [two, three]
    assert two.of.plan(np.ones(3, np.float32)).inputs["x"].shape == (3,)
    assert two.of.__doc__ == "Returns x times the factor."
    assert Scaled.of(two, np.ones(3, np.float32)).tolist() == [2, 2, 2]
