"""Compile and load the native executor, one per process."""

from __future__ import annotations

import ctypes
import functools
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from camshaft.backends.cpu.compile import NativeLibrary, host_target, load_object
from camshaft.plan.runtime.native.os_wait import WaitAddresses, WaitRow, find_wait_row
from camshaft.store.files import digest_of
from camshaft.store.kernels import CachedKernel
from camshaft.store.store import store

_ADDRESS, _INTEGER = ctypes.c_void_p, ctypes.c_int64
Native = Callable[..., int | None]


@dataclass(frozen=True)
class NativeExecutor:
    """The executor's entries. ctypes calls them without the GIL.

    run_alone(records, first, last, failed) runs on the calling thread only. run(control, records, first, last, failed) runs with
    a pool's workers, or alone while that is faster (alone.py), run_all always with the workers. worker(control, index) is one of
    them: it returns 0 after stop(control), and 1 if its thread should move to another core and call it again. `copy_address` is
    the entry of copy thunks, `pause_ns` the time of one spin iteration, `ticks_per_ns` the rate of the clock by which short runs
    are judged (0 without one), `key` the object's second key in the store.
    """

    row: WaitRow
    wake: WaitAddresses
    run_alone: Native
    run: Native
    run_all: Native
    worker: Native
    stop: Native
    copy_address: int
    pause_ns: float
    ticks_per_ns: float
    library: NativeLibrary = field(repr=False)
    key: str = ""


@dataclass(frozen=True)
class TimedExecutor:
    """The executor's timed form: `stamps(address, per_worker)` sets where the next run's stamps go, `clock()` reads ticks."""

    executor: NativeExecutor
    stamps: Native
    clock: Callable[[], int]


def _function(library: NativeLibrary, name: str, *types: type, result: type | None = None) -> Native:
    return ctypes.CFUNCTYPE(result, *types)(library.address(name))


def _rates(spin: Native, turns: int = 2000) -> tuple[float, float]:
    """Returns the nanoseconds of one spin iteration, 2 to 60 depending on the CPU, and the clock's ticks per nanosecond, both of
    the fastest of five measurements."""
    elapsed_ns, ticks = float("inf"), 0
    for _ in range(5):
        start = time.perf_counter_ns()
        counted = spin(turns) or 0
        elapsed_ns, ticks = min((elapsed_ns, ticks), (time.perf_counter_ns() - start, counted))
    elapsed_ns = max(elapsed_ns, 0.1 * turns)
    return elapsed_ns / turns, ticks / elapsed_ns


def build_executor(object_code: bytes, row: WaitRow, wake: WaitAddresses, key: str = "") -> NativeExecutor:
    """Loads the object that `executor_ir(row, machine)` was compiled to."""
    library = load_object(object_code)
    pause_ns, ticks_per_ns = _rates(_function(library, "camshaft_spin", _INTEGER, result=_INTEGER))
    walk = (_ADDRESS, _INTEGER, _INTEGER, _ADDRESS)
    return NativeExecutor(
        row=row,
        wake=wake,
        run_alone=_function(library, "camshaft_run_alone", *walk),
        run=_function(library, "camshaft_run", _ADDRESS, *walk),
        run_all=_function(library, "camshaft_run_all", _ADDRESS, *walk),
        worker=_function(library, "camshaft_worker", _ADDRESS, _INTEGER, result=_INTEGER),
        stop=_function(library, "camshaft_stop", _ADDRESS),
        copy_address=library.address("camshaft_copy"),
        pause_ns=pause_ns,
        ticks_per_ns=ticks_per_ns,
        library=library,
        key=key,
    )


def memmove_address() -> int:
    """Returns the address of the C library's memmove."""
    return ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0


_executor_key = ""


def set_executor_key(key: str) -> None:
    """Sets the second key of this process's executor in the store, which loads it without generating its IR."""
    global _executor_key
    _executor_key = key


def _executor_object(row: WaitRow) -> tuple[str, bytes]:
    """Returns the second key and the object of the ordinary executor."""
    data = store().kernels.object(_executor_key) if _executor_key else None
    if data is not None:
        return _executor_key, data
    found = _found(row, timed=False)
    return found.second, found.data


def _found(row: WaitRow, *, timed: bool) -> CachedKernel:
    """Returns the executor's object, whose IR is written only if the store does not have it."""
    from camshaft.backends.cpu.device import object_found  # a start with a cached schedule imports neither
    from camshaft.lang.kernel import files_digest

    machine = host_target().triple.split("-")[0]

    def source() -> str:
        from camshaft.plan.runtime.native.executor import executor_ir

        return executor_ir(row, machine, timed=timed)

    # All that the text depends on; emit/llvm/ and the target are part of every key.
    signature = digest_of("executor", row.name, platform.machine(), timed, files_digest("plan/runtime/native/*.py"))
    return object_found(signature, source)


@functools.cache
def native_executor() -> NativeExecutor:
    """Returns this process's executor, loaded on the first call from the object in the store."""
    row, wake = find_wait_row()
    key, data = _executor_object(row)
    return build_executor(data, row, wake, key)


@functools.cache
def timed_executor() -> TimedExecutor:
    """Returns this process's executor in its timed form, loaded on the first call. Raises PlanError without a clock."""
    row, wake = find_wait_row()
    made = build_executor(_found(row, timed=True).data, row, wake)
    return TimedExecutor(
        made,
        _function(made.library, "camshaft_stamps", _ADDRESS, _INTEGER),
        ctypes.CFUNCTYPE(_INTEGER)(made.library.address("camshaft_clock")),
    )
