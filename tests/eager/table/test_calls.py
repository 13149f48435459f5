"""What a table's functions are: builtins that check natively, count references rightly, bear threads, and know their limits."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import camshaft as cs
from camshaft import DispatchTable, table
from camshaft.eager import choices, elementwise_call, native_call
from camshaft.eager.native import cpython_abi
from camshaft.eager.native.shaped_call import row_indexes
from camshaft.eager.native_call import _attribute_words, _key
from camshaft.eager.shapes import launches
from camshaft.eager.shapes.shaped_call import FIRST_USES
from camshaft.errors import CamshaftError

F32 = np.float32
RNG = np.random.default_rng(5)
# Elements that are shared among workers, and those of a call that lets go of the interpreter's lock.
SHARED, RELEASED = 1 << 18, 5000
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


def test_functions_tell_who_they_are() -> None:
    add = table().add
    assert add.__name__ == "add"
    assert "y = a + b" in add.__doc__
    assert "out=None" in str(inspect.signature(add))
    assert add.__self__.choice(draw(2, 3), draw(2, 3)).op.name == "add"
    assert table().choice("add", draw(2), draw(2)).device.name == "cpu"


def leaks(call: Callable[[], object], watched: list[Any], n: int) -> tuple[list[int], int]:
    """How many references to the watched objects, and how many blocks of memory, n calls leave behind."""
    for _ in range(50):
        call()
    gc.collect()
    before, blocks = [sys.getrefcount(x) for x in watched], sys.getallocatedblocks()
    for _ in range(n):
        call()
    gc.collect()
    left = [sys.getrefcount(x) - n_before for x, n_before in zip(watched, before, strict=True)]
    return left, sys.getallocatedblocks() - blocks


@pytest.mark.full
def test_100_000_calls_leave_no_reference_behind() -> None:
    a, b, out = draw(16), draw(16), draw(16)
    m, product = draw(4, 4), draw(4, 4)
    frozen = draw(16)
    frozen.flags.writeable = False

    def fails() -> None:
        with pytest.raises(CamshaftError):
            table().add(a, b, out=frozen)

    t = table()
    watched = [a, b, out, m, product, frozen, a.dtype, 1.5, t.add, t.matmul, np.ndarray, None]
    calls: list[tuple[Callable[[], object], int]] = [
        (lambda: t.add(a, b, out=out), 100_000),
        (lambda: t.add(a, b), 100_000),
        (lambda: t.add(a, 1.5, out), 20_000),
        (lambda: t.matmul(m, m, out=product), 20_000),
        (lambda: t.matmul(m, m), 20_000),
        (lambda: t.add(a, b[::-1]), 20_000),
        (lambda: t.add(a, 300, out=out), 20_000),
        (lambda: t.add(a.reshape(4, 4), b[:4]), 1000),
        (fails, 1000),
    ]
    for call, n in calls:
        left, blocks = leaks(call, watched, n)
        assert max(left) < 20, left
        assert blocks < n // 2


@pytest.mark.parametrize("value", [200, -3, 300, 0, 2**31, 2**63, 2**64, -(2**63), True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64, F32, np.float64])
def test_python_ints_take_the_arrays_dtype_or_are_refused(value: int, dtype: Any) -> None:
    x, out = np.arange(5).astype(dtype), np.zeros(5, dtype)

    def outcome(add: Callable[..., np.ndarray]) -> list[Any] | str:
        try:
            return add(x, value, out=out).tolist()
        except OverflowError as error:
            return str(error)

    assert outcome(table().add) == outcome(np.add)


@pytest.mark.parametrize("n", [3, 100, RELEASED, SHARED])
def test_threads_call_at_once(n: int) -> None:
    a, b = draw(n), draw(n)
    wanted = {"add": a + b, "multiply": a * b}
    wrong: list[str] = []

    def work(name: str) -> None:
        function, out = getattr(table(), name), np.empty(n, F32)
        for _ in range(20):
            function(a, b, out=out)
            if not (np.array_equal(out, wanted[name]) and np.array_equal(function(a, b), wanted[name])):
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in (*wanted, *wanted)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("n", [SHARED, SHARED + 13, 3 * SHARED - 1])
@pytest.mark.parametrize("shift", [0, 1, 3])
def test_large_calls_use_the_workers_and_any_start(n: int, shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []

    def run(address: int, n: int = 1) -> None:
        used.append(n)
        launches.run_launches(address, n)

    monkeypatch.setattr(elementwise_call, "run_launches", run)
    monkeypatch.setattr(native_call, "run_launches", run)
    monkeypatch.setattr(launches, "_threads", lambda: 2)
    fresh = DispatchTable(None)
    a, b, out = (draw(n + shift)[shift:] for _ in range(3))
    for _ in range(2):
        fresh.add(a, b, out=out)
        np.testing.assert_array_equal(out, a + b)
    fresh.add(a, 2.0, out=out)
    np.testing.assert_array_equal(out, a + F32(2))
    assert used == [1, 1, 1]


def test_many_shapes_share_few_rows() -> None:
    """Rows are found by a hash of 64: later shapes take the rows of earlier ones."""
    for _ in range(2):
        for m in range(1, 10):
            for n in range(1, 10):
                a, b = draw(m, 3), draw(3, n)
                np.testing.assert_allclose(table().matmul(a, b), a @ b, rtol=1e-4, atol=1e-5)


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


@pytest.mark.full
def test_new_values_for_each_call_do_not_fill_the_memory() -> None:
    x, w = draw(2, 8), draw(8)
    for i in range(50):
        eps = float(f"0.{i + 1}")
        np.testing.assert_allclose(
            table().rms_norm(x, w, eps=eps), x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w, rtol=1e-4
        )


def test_a_host_thunk_may_call_the_table_whose_workers_its_plan_has() -> None:
    seen = []

    def mine(x: Any, out: Any) -> None:
        a = np.ones(4 * SHARED, F32)
        seen.append(float(table().add(a, a).sum()))
        out[:] = x

    graph = cs.Graph()
    x = graph.input("x", (4,), "f32")
    (y,) = graph.custom(mine, [x], [((4,), "f32")], name="mine")
    graph.output("y", y)
    with cs.compile(graph, threads=2) as plan:
        plan.run(x=np.ones(4, F32))
    assert seen == [8.0 * SHARED]


def test_ever_new_shapes_and_attributes_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "MOST_REMEMBERED", 8)
    monkeypatch.setattr(native_call, "MOST_PREPARED", 0)
    t = DispatchTable(None)
    x = draw(40, 2)
    for _ in range(2):
        for n in range(1, 21):
            np.testing.assert_allclose(t.sum(x[:n], axis=0), x[:n].sum(0), rtol=1e-5)
            np.testing.assert_allclose(t.softcap(x, cap=1.0 + n), (1.0 + n) * np.tanh(x / (1.0 + n)), rtol=1e-5)
            for _ in range(4):
                np.testing.assert_array_equal(t.add(x[:n], x[0]), x[:n] + x[0])
    for op in (t.sum, t.softcap, t.add):
        held = op.__self__
        assert max(len(held._calls), len(held._resolved), len(held._kernels), len(held.choices._by_kind)) <= 8
    np.testing.assert_array_equal(t.add(x, x), x + x)
