"""A dispatcher from outside with faults: what can compute nothing, what has no name, what it returns in place of an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft.errors import BackendError

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def run(dispatcher: Any) -> np.ndarray:
    graph = cs.Graph()
    x = graph.input("x", (2, 4), "f32")
    graph.output("y", cs.add(x, x))
    with cs.compile(graph, threads=1, dispatcher=dispatcher) as plan:
        return plan.run(x=X)["y"].copy()


def fill(a: Any, b: Any, out: Any) -> None:
    out.array[:] = a.array + b.array


class Adder:
    name = "adder"
    add = staticmethod(fill)


def test_an_object_with_one_method_computes_that_op() -> None:
    assert np.array_equal(run(SimpleNamespace(name="one", add=fill)), X + X)


@pytest.mark.parametrize(
    ("dispatcher", "words"),
    [
        (3, "got 3; wanted an object with any of mul_mat, rms_norm, add, mul, silu, copy, rope, attention"),
        (SimpleNamespace(name="none"), "wanted an object with any of"),
        (Adder, "wanted an object with any of"),
        (SimpleNamespace(add=fill), "got SimpleNamespace with the name None; wanted a string"),
        (SimpleNamespace(add=fill, name=""), "with the name ''; wanted a string"),
    ],
)
def test_what_is_no_dispatcher_is_refused(dispatcher: Any, words: str) -> None:
    with pytest.raises(BackendError, match=f"^dispatcher: .*{words}"):
        run(dispatcher)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (lambda a, b, out: a.array + b.array, "it gave ndarray; wanted None, an error or its text, and the result in"),
        (lambda a, b, out: False, "it gave bool; wanted None"),
        (lambda a, b, out: "not today", "not today"),
        (lambda a, b, out: ValueError("nor tomorrow"), "nor tomorrow"),
    ],
)
def test_what_a_method_gives_back_is_an_error_in_one_line(method: Any, words: str) -> None:
    with pytest.raises(BackendError, match=f"^mine.add: {words}"):
        run(SimpleNamespace(name="mine", add=method))
