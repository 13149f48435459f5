"""Calls of new shapes take sizes from formulas: they are rarely prepared, and give the bits of calls that are."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from camshaft import DispatchTable, table
from camshaft.eager import elementwise_call
from camshaft.eager.native import cpython_abi
from camshaft.eager.shapes import shaped_call
from camshaft.eager.shapes.size_formulas import Recording, Unrecorded, number
from camshaft.errors import ShapeError

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(9)


def draw(*shape: int, dtype: str = "f4") -> Array:
    return RNG.normal(size=shape).astype(dtype)


def test_formulas_hold_where_comparisons_have_the_same_answers() -> None:
    recording = Recording([6, 40])
    rows, columns = recording.sizes
    longest = max(rows, columns)
    blocks = -(-columns // 16) if columns > 8 else 0
    formulas = recording.function((rows * columns, blocks, (longest, 7)))
    assert formulas(6, 40) == (240, 3, (40, 7))
    assert formulas(5, 33) == (165, 3, (33, 7))
    assert formulas(50, 40) is None  # rows are longest
    assert formulas(2, 8) is None  # no blocks


@pytest.mark.parametrize("use", [operator.index, int, float, hash, range, lambda x: np.zeros(x), lambda x: {5: 1}[x]])
def test_what_needs_the_number_fixes_the_size(use: Any) -> None:
    recording = Recording([5])
    use(recording.sizes[0])
    formulas = recording.function(recording.sizes[0] + 1)
    assert formulas(5) == 6
    assert formulas(6) is None


def test_neutral_operands_and_numbers() -> None:
    (size,) = Recording([5]).sizes
    assert all(same is size for same in (1 * size, size * 1, size + 0, size - 0, size // 1))
    assert number((size, 3, (2 - size, 12 % size, 1 << size))) == (5, 3, (-3, 2, 32))
    assert isinstance(size, int)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), np.int64(3)])
def test_a_value_without_a_literal_is_not_recorded(value: Any) -> None:
    recording = Recording([5])
    with pytest.raises(Unrecorded):
        recording.function((recording.sizes[0], value))


def calls(t: DispatchTable, i: int, j: int, k: int) -> list[Array]:
    x, y = draw(j, k), draw(i, j, k)
    half, double = x.astype("f2"), x.astype("f8")
    return [
        t.softmax(x),
        t.softmax(y),
        t.rms_norm(x, x[0], eps=1e-5),
        t.layer_norm(x, x[0], x[-1], eps=1e-5),
        t.rms_norm(half, half[0], eps=1e-5),
        t.sum(x, axis=1),
        t.sum(double, axis=0),
        t.mean(y, axis=(0, 2), keepdims=True),
        t.max(half),
        t.argmax(x),
        t.add(x, x[0]),
        t.multiply(x, x[:, :1].copy()),
        t.subtract(y, x),
        t.divide(double[:, :1].copy(), double[:1]),
        t.transpose(x),
        t.transpose(y, axes=(1, 2, 0)),
        t.concat(x, half[:, :3].astype("f4"), axis=1),
        t.sum(x[::2], axis=1),
        t.softmax(x.T),
    ]


@pytest.mark.full
def test_bits_are_those_of_calls_that_are_prepared() -> None:
    known = table()
    shapes = [tuple(int(n) for n in RNG.integers(1, (8, 40, 300))) for _ in range(8)]
    for shape in [*shapes, (1, 1, 1), (2, 1, 5), (2, 5, 1)]:
        state = RNG.bit_generator.state
        found = calls(known, *shape)
        RNG.bit_generator.state = state
        for one, wanted in zip(found, calls(DispatchTable(None), *shape), strict=True):
            assert (type(one), one.shape, one.dtype, one.tobytes()) == (
                type(wanted), wanted.shape, wanted.dtype, wanted.tobytes(),
            )  # fmt: skip


def counted(made: Any, calls: list[Any]) -> Any:
    def call(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return made(*given, **named)

    return call


def test_few_calls_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    t = DispatchTable(None)
    prepared: list[Any] = []
    for module, name in ((shaped_call, "prepare"), (elementwise_call, "_prepared")):
        monkeypatch.setattr(module, name, counted(getattr(module, name), prepared))
    for _ in range(30):
        calls(t, *(int(n) for n in RNG.integers(2, (8, 40, 300))))
    n_first = len(prepared)
    for _ in range(30):
        calls(t, *(int(n) for n in RNG.integers(2, (8, 40, 300))))
    assert len(prepared) - n_first < 12  # of 570 calls
    assert n_first < 150


def test_attributes_without_a_hash_are_converted_as_before() -> None:
    for n in range(2, 5):
        np.testing.assert_allclose(
            table().sum(np.ones((n, n, 3)), axis=[0, 1]),  # type: ignore[arg-type]
            np.full(3, n * n),
        )


def test_arrays_that_formulas_do_not_cover_are_called_in_the_ordinary_way() -> None:
    t = DispatchTable(None)
    for n in range(3, 6):
        assert t.sum(np.ones((n, n + 1)), axis=1).tolist() == [n + 1.0] * n
    assert t.sum(np.ones((0, 4)), axis=1).shape == (0,)
    assert t.sum(np.ones((4, 0)), axis=1).tolist() == [0.0] * 4
    assert t.sum(np.ones((3, 2), ">f8"), axis=1).tolist() == [2.0] * 3
    assert t.sum([[1.0, 2.0]], axis=1).tolist() == [3.0]
    out = np.zeros(7)
    assert t.sum(np.ones((7, 2)), axis=1, out=out) is out
    assert out.tolist() == [2.0] * 7
    with pytest.raises(np.exceptions.AxisError):
        t.sum(np.ones((9, 2)), axis=2)


def _sum_rows(view: Array) -> None:
    table().sum(view, axis=1)


def python_calls(call: Callable[[], object]) -> list[str]:
    """The functions of eager calls in Python that a call enters."""
    entered: list[str] = []
    sys.setprofile(lambda frame, event, arg: entered.append(frame.f_code.co_name) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [name for name in entered if name in ("run", "call")]


@pytest.mark.skipif(cpython_abi.refusal() is not None, reason=str(cpython_abi.refusal()))
def test_small_views_are_copied_without_the_interpreter() -> None:
    x, sums = draw(30, 24), table().sum
    for view in (x[::2], x.T, x[:, ::3], x[::-1], x[:, ::-1], x[:, 3:7], np.broadcast_to(x[0], (5, 24))):
        wanted = sums(view.copy(), axis=1)
        for _ in range(4):
            assert sums(view, axis=1).tobytes() == wanted.tobytes()
        assert python_calls(functools.partial(_sum_rows, view)) == []
    row = x[:, 0]
    square = draw(30, 30)
    out = square[:, 0]  # overlaps a copied operand
    wanted = square.sum(axis=1)
    assert table().sum(square.T, axis=0, out=out) is out
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)
    counts = sys.getrefcount(row), sys.getrefcount(x)
    for _ in range(100):
        table().sum(x.T, axis=1)
        table().dot(row, row)
    assert (sys.getrefcount(row), sys.getrefcount(x)) == counts
    with pytest.raises(np.exceptions.AxisError):
        table().sum(x.T, axis=2)


@pytest.mark.parametrize(
    ("op", "attrs", "other"),
    [
        ("sum", {"axis": 1}, {"axis": 1.0}),
        ("argmax", {"axis": 1}, {"axis": 1.0}),
        ("transpose", {"axes": (1, 0)}, {"axes": (1.0, 0)}),
        ("slice", {"starts": (0, 1), "sizes": (2, 2)}, {"starts": (0.0, 1), "sizes": (2, 2)}),
        ("softcap", {"cap": 30.0}, {"cap": 30}),
    ],
)
def test_an_equal_attribute_of_another_type_is_another_call(op: str, attrs: Any, other: Any) -> None:
    call = getattr(table(), op)
    for rows in (3, 4, 5):
        call(draw(rows, 6), **attrs)
    for rows in (5, 9):
        with pytest.raises((ShapeError, TypeError)):
            call(draw(rows, 6), **other)
