"""Calls of a table that never enter the interpreter, once their shapes and attributes were seen, and those that must."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from camshaft import DispatchTable, table
from camshaft.eager.native import cpython_abi
from camshaft.eager.native.state_layout import row_indexes
from camshaft.eager.native_call import _attribute_words, _key
from camshaft.eager.shapes.shaped_call import FIRST_USES
from tests.eager.table.left_behind import leaks

F32 = np.float32
RNG = np.random.default_rng(5)
needs_native = pytest.mark.skipif(cpython_abi.refusal() is not None, reason=str(cpython_abi.refusal()))


def draw(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(F32)


def python_calls(call: Callable[[], object]) -> list[str]:
    """The Python functions that a call enters."""
    seen: list[str] = []

    def note(frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is not call.__code__:  # type: ignore[attr-defined]
            seen.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


@needs_native
@pytest.mark.parametrize("dtype", [F32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8])
def test_the_common_case_never_enters_the_interpreter(dtype: Any) -> None:
    add, a = table().add, np.arange(60).astype(dtype)
    grid = a.reshape(3, 20)
    fortran, out = np.asfortranarray(grid), np.empty_like(grid)
    zero = np.array(3, dtype)
    for call in (
        lambda: add(a, a, out=a),
        lambda: add(a, a, a),
        lambda: add(a, a),
        lambda: add(grid, grid, out=out),
        lambda: add(fortran, fortran, out=fortran),
        lambda: add(fortran, fortran),
        lambda: add(a, zero, out=a),
        lambda: add(zero, a),
        lambda: add(a, zero[()]),
    ):
        call()
        assert python_calls(call) == []
    assert python_calls(lambda: add(a[::2], a[1::2])) == []
    assert python_calls(lambda: add(grid, fortran, out=grid)) == []
    if dtype in (F32, np.float64):
        assert python_calls(lambda: add(a, 2.0)) == []
    if dtype not in (np.float16, ml_dtypes.bfloat16):
        assert python_calls(lambda: add(2, a)) == []


@needs_native
def test_rows_and_columns_that_repeat_never_enter_the_interpreter_again() -> None:
    x, row, column, add = draw(6, 5), draw(5), draw(6, 1), table().add
    for y in (row, column):
        wanted = x + y
        for _ in range(4):
            np.testing.assert_array_equal(table().add(x, y), wanted)
            np.testing.assert_array_equal(table().add(y, x), wanted)
        out = np.empty_like(x)
        same = x.copy()
        assert python_calls(lambda y=y, out=out: add(x, y, out=out)) == []
        np.testing.assert_array_equal(out, wanted)
        assert python_calls(lambda y=y, same=same: add(same, y, out=same)) == []
        np.testing.assert_array_equal(same, wanted)
        np.testing.assert_array_equal(add(y, same, out=same), wanted + y)
    square = draw(5, 5)
    first = square[0]
    wanted = square + first
    for _ in range(4):
        np.testing.assert_array_equal(table().add(square, first), wanted)
    np.testing.assert_array_equal(table().add(square, first, out=square), wanted)


@needs_native
def test_shapes_that_were_seen_never_enter_the_interpreter() -> None:
    a, b, out = draw(5, 7), draw(7, 3), np.empty((5, 3), F32)
    call = table().matmul
    for _ in range(FIRST_USES + 1):
        call(a, b)
    assert python_calls(lambda: call(a, b)) == []
    assert python_calls(lambda: call(a, b, out=out)) == []
    np.testing.assert_allclose(call(a, b), a @ b, rtol=1e-5)
    assert python_calls(lambda: call(a, b[:, ::-1])) == []  # copied


@needs_native
def test_two_outputs_never_enter_the_interpreter() -> None:
    x, call = draw(3, 40), table().top_k
    for _ in range(FIRST_USES + 1):
        call(x, k=5)
    assert python_calls(lambda: call(x, k=5)) == []
    values, indexes = found = call(x, k=5)
    assert type(found) is tuple
    order = np.argsort(-x, axis=-1, kind="stable")[:, :5]
    np.testing.assert_array_equal(indexes, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))
    assert (values.dtype, indexes.dtype) == (F32, np.int32)
    out = np.empty((3, 5), F32), np.empty((3, 5), np.int32)
    assert call(x, k=5, out=out)[0] is out[0]
    np.testing.assert_array_equal(out[1], order)
    references, blocks = leaks(lambda: call(x, k=5), [x, values.dtype, indexes.dtype], 1000)
    assert max(references) <= 2
    assert blocks < 100


@needs_native
def test_what_is_not_exact_goes_to_python_with_the_same_arguments() -> None:
    class Mine(np.ndarray):
        pass

    a = np.arange(16, dtype=F32)
    unusual: dict[str, tuple[Any, Any]] = {
        "subclass": (a.view(Mine), a),
        "large and strided": (np.arange(160000, dtype=F32)[::2], np.ones(80000, F32)),
        "swapped": (a.astype(">f4"), a),
        "mixed": (a.astype(np.float64), a),
        "misaligned": (np.zeros(65, np.uint8)[1:].view(F32), a),
        "list": (a.tolist(), a),
        "row": (a.reshape(4, 4), a[:4]),
    }
    for name, (x, y) in unusual.items():
        got = table().add(x, y)
        assert type(got) is np.ndarray
        np.testing.assert_array_equal(got, np.add(np.asarray(x), y), err_msg=name)
        assert "run" in python_calls(lambda x=x, y=y: table().add(x, y)), name


def test_without_native_calls_everything_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpython_abi, "refusal", lambda: "this interpreter is another one")
    slow = DispatchTable(None)
    a, out = draw(3, 20), np.empty((3, 20), F32)
    assert inspect.ismethod(slow.add)
    assert slow.add(a, a, out=out) is out
    np.testing.assert_array_equal(out, a + a)
    np.testing.assert_array_equal(slow.add(a, a, a), 2 * out / 2)
    np.testing.assert_allclose(slow.matmul(out, out.T), out @ out.T, rtol=1e-5)


@needs_native
def test_two_shapes_whose_keys_name_one_row_both_stay_native() -> None:
    places: dict[int, list[np.ndarray]] = {}
    for n in range(1, 2000):
        x = np.ones((n, 3), F32)
        met = places.setdefault(row_indexes(_key([x]) + _attribute_words({}))[0], [])
        met.append(x)
        if len(met) == 2:
            break
    t = table()
    for _ in range(3):
        for x in met:
            assert t.max(x) == 1.0
    assert [python_calls(lambda x=x: t.max(x)) for x in met] == [[], []]


@needs_native
def test_attributes_that_were_seen_never_enter_the_interpreter() -> None:
    x, w = draw(6, 40), draw(40)
    t = table()
    calls: list[tuple[Callable[[], Any], Any]] = [
        (lambda: t.sum(x, axes=0), x.sum(0)),
        (lambda: t.sum(x, axis=0), x.sum(0)),
        (lambda: t.sum(x, axes=1), x.sum(1)),
        (lambda: t.max(x, axis=(0, 1), keepdims=True), x.max(keepdims=True)),
        (lambda: t.max(x), x.max()),
        (lambda: t.matmul(x, x, transpose_b=True), x @ x.T),
        (lambda: t.rms_norm(x, w, eps=0.5), x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.5) * w),
        (lambda: t.rms_norm(x, w, eps=0.25), x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.25) * w),
    ]
    for _ in range(FIRST_USES + 1):
        for call, wanted in calls:
            got = call()
            assert type(got) is type(wanted)
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    for call, _ in calls:
        assert python_calls(call) == []
    left, blocks = leaks(calls[0][0], [x, 0, t.sum], 5000)
    assert max(left) < 20
    left, blocks = leaks(calls[4][0], [x, np.float32, t.max], 5000)
    assert max(left) < 20
    assert blocks < 1000
