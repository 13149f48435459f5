"""Tensors' operators, indexing and promotion give what NumPy's arrays give."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import camshaft as cs
from camshaft.errors import ShapeError
from tests.support.references import evaluated

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
DTYPES = [np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8]
SHAPES = [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((3,), ())]


def run(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """What the nodes of the function give, of tensors in the arrays' places. Which nodes is asked here, not what kernels do."""
    graph = cs.Graph()
    inputs = [graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    graph.output("y", function(*inputs))
    return evaluated(graph, {f"x{i}": a for i, a in enumerate(arrays)}, {})["y"]


def check(function: Callable[..., Any], *arrays: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        wanted = np.asarray(function(*arrays))
    found = run(function, *arrays)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    close = 2e-3 if wanted.dtype == np.float16 else 1e-6
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=close)


def draw(seed: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).integers(1, 9, shape)).astype(dtype)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from(sorted(OPERATORS)),
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
    st.sampled_from(SHAPES),
    st.booleans(),
)
def test_operators_of_tensors_and_arrays_promote_and_broadcast_as_numpy_does(
    sign: str, left: Any, right: Any, shapes: Any, constant: bool
) -> None:
    a, b = draw(1, shapes[0], left), draw(2, shapes[1], right)
    if sign in ("<", "<=", ">", ">=", "==", "!=") and left != right:
        b = b.astype(left)  # comparisons of several dtypes are exact in NumPy, and refused here
    if constant:
        check(lambda x: OPERATORS[sign](x, b), a)
        check(lambda y: OPERATORS[sign](a, y), b)
    else:
        check(OPERATORS[sign], a, b)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    st.sampled_from(sorted(OPERATORS)),
    st.sampled_from(DTYPES),
    st.one_of(st.integers(1, 100), st.sampled_from([0.5, 2.25, 7.0])),
    st.booleans(),
)
def test_python_numbers_take_the_tensors_dtype(sign: str, dtype: Any, number: Any, turned: bool) -> None:
    function = OPERATORS[sign]
    if sign in ("<", "<=", ">", ">=", "==", "!=") and dtype in (np.int32, np.int64, np.uint8):
        number = int(number)
    check(lambda x: function(number, x) if turned else function(x, number), draw(3, (2, 3), dtype))


def test_a_weak_number_leaves_16_bit_floats_as_they_are() -> None:
    x = draw(4, (5,), ml_dtypes.bfloat16)
    assert run(lambda t: t * 2 + 1, x).dtype == ml_dtypes.bfloat16
    assert run(lambda t: t @ t, draw(5, (3, 3), np.float16)).dtype == np.float16


def test_a_number_that_the_dtype_cannot_hold_is_refused_as_numpy_does() -> None:
    x = cs.Graph().input("x", (3,), "u8")
    with pytest.raises(OverflowError):
        x + 300
    with pytest.raises(ShapeError):
        x + 300


@pytest.mark.parametrize(
    "function",
    [
        lambda x: -x,
        lambda x: abs(-x),
        lambda x: +x * 1,
        lambda x: x**2,
        lambda x: x**0.5,
        lambda x: x**3,
        lambda x: 2**x,
        lambda x: 3 / x - 1,
        lambda x: np.float32(2) * x,
        lambda x: np.ones(5) + x,
        lambda x: x.T,
        lambda x: x.reshape(-1),
        lambda x: x.reshape((5, -1)),
        lambda x: x.reshape(2, 2, 5),
        lambda x: (x > 3) & ~(x == 4) | (x != x),
        lambda x: (x < 3) ^ True,
        lambda x: x @ x.T,
        lambda x: x @ x[0],
        lambda x: x[:, 0] @ x,
        lambda x: x[0] @ x[1],
        lambda x: x.reshape(2, 2, 5) @ x[0],
    ],
)
def test_other_operators_are_numpys(function: Callable[[Any], Any]) -> None:
    check(function, draw(6, (4, 5), np.float32))


INDEX = st.one_of(
    st.integers(-2, 1),
    st.just(None),
    st.builds(
        slice, st.sampled_from([None, 0, 1, -2]), st.sampled_from([None, 2, 9, -9]), st.sampled_from([None, 1, 2])
    ),
    st.builds(slice, st.sampled_from([None, -1, 1]), st.none(), st.sampled_from([-1, -2])),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(INDEX, max_size=4), st.integers(-1, 4))
def test_indexes_are_numpys(keys: list[Any], dots: int) -> None:
    key: list[Any] = [*keys]
    while sum(k is not None for k in key) > 3:
        key.pop()
    if 0 <= dots <= len(key):
        key.insert(dots, ...)
    x = draw(7, (2, 3, 4), np.float32)
    if 0 in x[tuple(key)].shape:
        with pytest.raises(ShapeError, match="takes nothing of axis"):
            run(lambda t: t[tuple(key)] * 1, x)
    else:
        check(lambda t: t[tuple(key)] * 1, x)


def test_whole_axes_are_views_and_parts_one_slice() -> None:
    graph = cs.Graph()
    x = graph.input("x", (4, 5), "f32")
    assert x[:] is x
    assert x[None, ..., None].kind == "view"
    assert graph.nodes == []
    x[1:3, None, -1]
    assert [node.op.name for node in graph.nodes] == ["slice"]


def test_an_axis_whose_size_is_known_in_each_run_is_taken_whole() -> None:
    rows = cs.Extent("rows", 8)
    graph = cs.Graph()
    x = graph.input("x", (rows, 6), "f32")
    graph.output("y", x[:, 1::2] * 2)
    with cs.compile(graph) as plan:
        values = draw(8, (3, 6), np.float32)
        assert np.array_equal(plan.run(x=values)["y"], values[:, 1::2] * 2)
    with pytest.raises(ShapeError, match="axis 0, whose size is known in each run only"):
        x[1:]
    with pytest.raises(TypeError, match="known in each run only"):
        len(x)


def test_tensors_are_told_apart_by_identity() -> None:
    graph = cs.Graph()
    x, y = graph.input("x", (2,), "f32"), graph.input("y", (2,), "f32")
    assert {x: 1, y: 2}[y] == 2
    assert len({x, y, x}) == 2
    assert isinstance(x == y, cs.Tensor)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: bool(x), r"no truth value: it has no values yet"),
        (lambda x: list(x), r"cannot be iterated over"),
        (lambda x: 1 if x > 2 else 0, r"no truth value"),
        (lambda x: np.asarray(x), r"is not an array: it has no values yet"),
        (lambda x: x & x, r"&: got .*wanted booleans"),
        (lambda x: ~x, r"~: got .*wanted booleans"),
        (lambda x: x[[0, 1]], r"got a list or array as an index"),
        (lambda x: x[x], r"got a list or array as an index"),
        (lambda x: x["a"], r"as an index; wanted ints"),
    ],
)
def test_what_a_tensor_cannot_be_is_a_type_error_that_says_why(wrong: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        wrong(cs.Graph().input("x", (2, 3), "f32"))
    assert isinstance(caught.value, ShapeError)


@pytest.mark.parametrize("key", [2, -3, (0, 0, 0), (..., ...), slice(5, 9)])
def test_indexes_that_leave_the_tensor_are_refused(key: Any) -> None:
    with pytest.raises(ShapeError, match=r"the input 'x'"):
        cs.Graph().input("x", (2, 3), "f32")[key]


def test_len_and_attributes() -> None:
    x = cs.Graph().input("x", (2, 3), "i32")
    assert (len(x), x.shape, x.ndim, x.dtype.name) == (2, (2, 3), 2, "i32")
