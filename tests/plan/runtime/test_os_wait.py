"""The sleep table: every row's calls have the system's argument order, every target's module compiles."""

from __future__ import annotations

import ctypes
import itertools
import platform
import threading
import time
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
import pytest
from plan_kernels import chain_plan

from camshaft.backends.cpu.compile import compile_module, host_target
from camshaft.errors import PlanError
from camshaft.plan.runtime import workers
from camshaft.plan.runtime.native import os_wait
from camshaft.plan.runtime.native.executor import executor_ir
from camshaft.plan.runtime.native.library import NativeExecutor, build_executor, native_executor
from camshaft.plan.runtime.native.os_wait import (
    FUTEX_NUMBERS,
    WAIT_ROWS,
    WaitAddresses,
    WaitRow,
    find_wait_row,
    futex_row,
)
from camshaft.plan.runtime.workers import WorkerPool
from tests.support.quick import full, quick_of

I32, I64, AT = ctypes.c_int32, ctypes.c_int64, ctypes.POINTER(ctypes.c_int32)
ROWS = {row.name: row for row in WAIT_ROWS}
calls: list[tuple[int, ...]] = []


def _pause(*arguments: int) -> int:
    """A stand-in for a system's wait: it may return at any time."""
    calls.append(arguments)
    time.sleep(0.0005)
    return 0


def _wait_on_address(word: object, expected: object, size: int, timeout: int) -> int:
    behind = word[0] - expected[0]  # type: ignore[index]  # 1 where it was woken meanwhile
    return _pause(0 if behind in (0, 1) else behind, size, timeout)


def _os_sync_wait(word: object, value: int, size: int, flags: int) -> int:
    return _pause(size, flags)


def _ulock_wait(operation: int, word: object, value: int, timeout: int) -> int:
    return _pause(operation, timeout)


def _woken(*arguments: object) -> int:
    return 0


FAKES: dict[str, tuple[Callable[..., int], tuple[type, ...], tuple[type, ...], tuple[int, ...]]] = {
    "wait_on_address": (_wait_on_address, (AT, AT, I64, I32), (AT,), (0, 4, -1)),
    "os_sync": (_os_sync_wait, (AT, I64, I64, I32), (AT, I64, I32), (4, 0)),
    "ulock": (_ulock_wait, (I32, AT, I64, I32), (I32, AT, I64), (1, 0)),
}


def executor(row: WaitRow, addresses: WaitAddresses) -> NativeExecutor:
    """An executor that sleeps by this row."""
    machine = host_target().triple.split("-")[0]
    return build_executor(compile_module(executor_ir(row, machine)), row, addresses)


def run_chain_on(native: NativeExecutor, monkeypatch: pytest.MonkeyPatch, spin_ns: int) -> None:
    """A chain on 2 workers of a pool of its own that uses this executor."""
    monkeypatch.setattr(workers, "SPIN_NS", spin_ns)
    pool = WorkerPool(2, lambda: native)
    plan, out, wanted = chain_plan(20, 3, 2)
    plan._runner = pool
    for _ in range(20):
        out[:] = 0
        plan.run()
        assert np.array_equal(out, wanted)
    pool.stop()


@pytest.mark.parametrize("name", quick_of(FAKES, ["os_sync"]))
def test_rows_of_other_systems_call_with_the_right_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wait, wait_types, wake_types, seen = FAKES[name]
    waiter, waker = ctypes.CFUNCTYPE(I32, *wait_types)(wait), ctypes.CFUNCTYPE(I32, *wake_types)(_woken)
    addresses = WaitAddresses(*(ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (waiter, waker)))
    calls.clear()
    run_chain_on(executor(ROWS[name], addresses), monkeypatch, spin_ns=0)
    assert set(calls) == {seen}


@pytest.mark.parametrize("moves", [False, True])
def test_the_caller_sleeps_only_when_it_was_moved(moves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sleeps may be woken on the core of who wakes it. Where the caller's core stays the same it spins: for a minute here."""
    sleepers, asked = set(), itertools.count()

    def wait(operation: int, word: object, value: int, timeout: int) -> int:
        sleepers.add(threading.get_ident())
        return _pause(operation, timeout)

    core = ctypes.CFUNCTYPE(I32)(lambda: next(asked) if moves else 0)
    waiter, waker = ctypes.CFUNCTYPE(I32, *FAKES["ulock"][1])(wait), ctypes.CFUNCTYPE(I32, *FAKES["ulock"][2])(_woken)
    addresses = WaitAddresses(*(ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (waiter, waker)))
    monkeypatch.setattr(workers, "core_address", lambda: ctypes.cast(core, ctypes.c_void_p).value or 0)
    monkeypatch.setattr(workers, "available_cores", lambda: 2)
    monkeypatch.setattr(workers, "CALLER_SPIN_NS", 60e9)
    run_chain_on(executor(ROWS["ulock"], addresses), monkeypatch, spin_ns=0)
    assert (threading.get_ident() in sleepers) == moves
    assert sleepers - {threading.get_ident()}  # the worker


def test_the_yield_row_works(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ROWS["yield"].find()
    if addresses is None:
        pytest.skip("this system has no sched_yield")
    run_chain_on(executor(ROWS["yield"], addresses), monkeypatch, spin_ns=0)


def test_this_system_sleeps_in_its_kernel() -> None:
    row, addresses = find_wait_row()
    if platform.system() in ("Linux", "Darwin", "Windows"):
        assert row.name != "yield"
    assert addresses.wait
    assert addresses.wake
    assert native_executor().row == row


def test_a_system_without_a_row_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os_wait, "WAIT_ROWS", tuple(WaitRow(r.name, lambda: None, "", "") for r in WAIT_ROWS))
    with pytest.raises(PlanError, match=r"no way to let workers sleep.*futex.*yield"):
        find_wait_row()


@pytest.mark.parametrize(
    "triple", [full("aarch64-unknown-linux-gnu"), "arm64-apple-macosx14", full("riscv64-unknown-linux-gnu")]
)
@pytest.mark.parametrize("name", ROWS)
def test_the_module_compiles_for_other_machines(triple: str, name: str) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = triple.split("-")[0]
    row = futex_row(FUTEX_NUMBERS.get(machine, 98)) if name == "futex" else ROWS[name]
    module = llvm.parse_assembly(executor_ir(row, machine))
    module.verify()
    assert llvm.Target.from_triple(triple).create_target_machine(opt=2).emit_object(module)
