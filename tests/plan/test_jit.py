"""@camshaft.jit: a function of arrays is traced once per signature and runs as a plan."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft.errors import CamshaftError, PlanError, ShapeError

RNG = np.random.default_rng(11)


def values(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


class Counted:
    """A jitted function that counts how often it is traced."""

    def __init__(self, **options: Any) -> None:
        self.traces = 0

        @cs.jit(**options)
        def function(x: cs.Tensor, y: cs.Tensor, *, twice: bool = False) -> cs.Tensor:
            """Adds."""
            self.traces += 1
            total = cs.add(x, y)
            return cs.add(total, total) if twice else total

        self.function = function


def test_a_signature_is_traced_once() -> None:
    counted = Counted()
    x, y = values(3, 8), values(3, 8)
    for _ in range(3):
        assert np.array_equal(counted.function(x, y), x + y)
    assert counted.traces == 1
    assert np.array_equal(counted.function(x[:2], y[:2]), x[:2] + y[:2])
    assert counted.traces == 2
    assert np.array_equal(counted.function(x, y, twice=True), 2 * (x + y))
    assert counted.traces == 3
    counted.function(x, y)
    assert counted.traces == 3
    assert counted.function.__name__ == "function"
    assert counted.function.__doc__ == "Adds."


def test_results_are_the_callers_own() -> None:
    counted = Counted()
    x, y = values(3, 8), values(3, 8)
    first = counted.function(x, y)
    kept = first.copy()
    counted.function(y, y)
    assert np.array_equal(first, kept)


def test_results_come_in_the_shape_of_the_functions_result() -> None:
    @cs.jit
    def both(x: cs.Tensor) -> tuple[cs.Tensor, ...]:
        y = cs.silu(x)
        return x, y, cs.multiply(x, y), y

    x = values(2, 16)
    a, b, c, d = both(x)
    np.testing.assert_allclose(b, x / (1 + np.exp(-x)), atol=1e-6)
    assert np.array_equal(a, x)
    assert np.array_equal(c, x * b)
    assert np.array_equal(d, b)
    single = cs.jit(lambda x: (cs.silu(x),))(x)
    assert isinstance(single, tuple)
    assert len(single) == 1


def test_arrays_that_the_function_brings_are_constants_of_the_trace() -> None:
    weight = values(8)

    @cs.jit
    def scaled(x: cs.Tensor) -> cs.Tensor:
        return cs.rms_norm(x, weight, eps=1e-5)

    x = values(4, 8)
    first = scaled(x)
    weight[:] = 0
    assert np.array_equal(scaled(x), first)


def test_an_argument_that_is_not_used_is_no_harm() -> None:
    assert np.array_equal(cs.jit(lambda x, y: cs.add(x, x))(x := values(2, 8), np.arange(3)), x + x)


def test_strided_and_listed_arguments_are_arrays() -> None:
    add = Counted().function
    x = values(8, 4)
    assert np.array_equal(add(x.T, x.T), 2 * x.T)
    assert add(np.ones((1, 2), np.float32), np.array([[1, 2]], np.float32)).tolist() == [[2, 3]]


def test_a_jitted_function_inside_another_is_part_of_its_graph() -> None:
    inner = Counted()

    @cs.jit
    def outer(x: cs.Tensor) -> cs.Tensor:
        return cs.silu(inner.function(x, x, twice=True))

    x = values(2, 8)
    np.testing.assert_allclose(outer(x), 4 * x / (1 + np.exp(-4 * x)), atol=1e-6)
    (thunk,) = outer.plan(x).bound.schedule.thunks
    assert thunk.op == "chain f32 y0=add(x0,x0) y1=add(y0,y0) y2=silu(y1) -> y2"


def test_the_backend_is_the_one_asked_for_here_and_now() -> None:
    counted = Counted()
    x = values(3, 8)
    assert {c.backend for c in counted.function.plan(x, x).choices} == {"simd"}
    with cs.backend("scalar"):
        assert {c.backend for c in counted.function.plan(x, x).choices} == {"scalar"}
    assert counted.traces == 2
    assert {c.backend for c in Counted(backend="scalar").function.plan(x, x).choices} == {"scalar"}
    with pytest.raises(CamshaftError, match="'abacus'"):
        Counted(backend="abacus").function(x, x)


def test_constants_that_compare_equal_are_told_apart_by_type() -> None:
    seen: list[Any] = []

    @cs.jit
    def function(x: cs.Tensor, *, option: Any) -> cs.Tensor:
        seen.append(option)
        return cs.silu(x)

    for option in (1, True, 1.0, 1, "1"):
        function(values(1, 4), option=option)
    assert seen == [1, True, 1.0, "1"]
    with pytest.raises(
        PlanError, match=r"jit of function: option: unhashable type: 'set'; wanted arrays, and constants"
    ):
        function(values(1, 4), option={1})


@pytest.mark.parametrize("result", [None, 3, np.ones(2), "text"])
def test_a_result_that_is_no_tensor_of_the_trace_is_refused(result: Any) -> None:
    @cs.jit
    def function(x: cs.Tensor) -> Any:
        return result

    with pytest.raises(PlanError, match=r"jit of function: result is .*; wanted a tensor"):
        function(values(2, 2))


def test_a_tensor_that_escaped_its_trace_is_refused() -> None:
    escaped: list[cs.Tensor] = []

    @cs.jit
    def function(x: cs.Tensor) -> cs.Tensor:
        escaped.append(x)
        return cs.add(x, escaped[0])

    function(values(2, 8))
    with pytest.raises(ShapeError, match="wanted tensors of this graph"):
        function(values(3, 8))


def test_errors_of_ops_and_dtypes_come_through_and_spoil_nothing() -> None:
    counted = Counted()
    with pytest.raises(ShapeError, match=r"^add: got "):
        counted.function(values(2, 8), values(3, 8))
    with pytest.raises(ShapeError, match="no dtype"):
        counted.function(np.array(["a"]), np.array(["b"]))
    x = values(2, 8)
    assert np.array_equal(counted.function(x, x), x + x)


def test_two_python_threads_may_call_it() -> None:
    function = Counted(threads=1).function
    inputs = [values(4, 8) for _ in range(2)]
    wrong: list[int] = []

    def work(index: int) -> None:
        x = inputs[index]
        wrong.extend(index for _ in range(100) if not np.array_equal(function(x, x), x + x))

    runners = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    assert wrong == []


def test_numbers_are_weak_constants_and_numpys_scalars_are_arrays() -> None:
    seen: list[Any] = []

    @cs.jit
    def scaled(x: Any, by: Any) -> Any:
        seen.append(by)
        return x * by

    x = values(3).astype(np.float16)
    assert scaled(x, 2).dtype == scaled(x, 2.0).dtype == np.float16
    assert np.array_equal(scaled(x, by=2), x * 2)
    assert scaled(x, np.float32(2)).dtype == np.float32
    scaled(x, np.float32(3))
    assert np.signbit(scaled(np.ones(1), -0.0))[0] != np.signbit(scaled(np.ones(1), 0.0))[0]
    assert [type(by) for by in seen] == [int, float, int, cs.Tensor, float, float]
