"""What a table's functions are: builtins that count references rightly, bear threads, and know their limits."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft import DispatchTable, table
from camshaft.eager import choices, elementwise_call, native_call
from camshaft.eager.shapes import launches
from camshaft.errors import CamshaftError
from tests.eager.table.left_behind import leaks

F32 = np.float32
RNG = np.random.default_rng(5)
# Elements that are shared among workers, and those of a call that lets go of the interpreter's lock.
SHARED, RELEASED = 1 << 18, 5000


def draw(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(F32)


def test_functions_tell_who_they_are() -> None:
    add = table().add
    assert add.__name__ == "add"
    assert "y = a + b" in add.__doc__
    assert "out=None" in str(inspect.signature(add))
    assert add.__self__.choice(draw(2, 3), draw(2, 3)).op.name == "add"
    assert table().choice("add", draw(2), draw(2)).device.name == "cpu"


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
    monkeypatch.setattr(launches, "eager_threads", lambda: 2)
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
