"""How a worker sleeps and is woken on each operating system."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from camshaft.errors import PlanError

if TYPE_CHECKING:  # not imported when the executor is loaded from the store
    from camshaft.emit.llvm.builder import Builder, Value

# Numbers of the futex system call; newer architectures share the generic table.
FUTEX_NUMBERS = {
    "x86_64": 202,
    "aarch64": 98,
    "riscv64": 98,
    "loongarch64": 98,
    "ppc64le": 221,
    "s390x": 238,
}
FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE = 128, 129
ULOCK_COMPARE_AND_WAIT, ULOCK_WAKE_ALL = 1, 257
WAKE_ALL = 2**31 - 1


@dataclass(frozen=True)
class WaitAddresses:
    """Addresses of the system's functions that wait while a 32-bit word has a value and wake all threads waiting on it."""

    wait: int
    wake: int


@dataclass(frozen=True)
class WaitRow:
    """One way to sleep. `wait(b, function, word, expected)` and `wake(b, function, word)` write the system's calls.

    `expected` is an i32. A wait may return early; the executor reads the word again. `find` returns the addresses, or None if
    this system lacks them.
    """

    name: str
    find: Callable[[], WaitAddresses | None]
    wait: Callable[[Builder, Value, Value, Value], object]
    wake: Callable[[Builder, Value, Value], object]


def _symbol(library: ctypes.CDLL, name: str) -> int | None:
    try:
        function = getattr(library, name)
    except AttributeError:
        return None
    return ctypes.cast(function, ctypes.c_void_p).value


def _pair(library: ctypes.CDLL, wait: str, wake: str) -> WaitAddresses | None:
    found = _symbol(library, wait), _symbol(library, wake)
    return WaitAddresses(found[0], found[1]) if found[0] and found[1] else None


def _find_futex() -> WaitAddresses | None:
    if not sys.platform.startswith("linux") or platform.machine() not in FUTEX_NUMBERS:
        return None
    return _pair(ctypes.CDLL(None), "syscall", "syscall")


def _find_windows() -> WaitAddresses | None:
    if sys.platform != "win32":
        return None
    return _pair(ctypes.WinDLL("kernelbase"), "WaitOnAddress", "WakeByAddressAll")


def _find_darwin(wait: str, wake: str) -> Callable[[], WaitAddresses | None]:
    return lambda: _pair(ctypes.CDLL(None), wait, wake) if sys.platform == "darwin" else None


def _find_yield() -> WaitAddresses | None:
    if sys.platform == "win32":
        return None
    return _pair(ctypes.CDLL(None), "sched_yield", "sched_yield")


def futex_row(number: int) -> WaitRow:
    """Returns Linux's row for an architecture with this number of the futex system call."""

    def call(b: Builder, function: Value, word: Value, operation: int, value: Value) -> None:
        how = b.const("i64", operation), value, *[b.const("i64", 0)] * 3
        b.call_at(function, "i64", b.const("i64", number), word, *how, variadic="i64")

    return WaitRow(
        "futex",
        _find_futex,
        lambda b, function, word, seen: call(b, function, word, FUTEX_WAIT_PRIVATE, _wide(b, seen)),
        lambda b, function, word: call(b, function, word, FUTEX_WAKE_PRIVATE, b.const("i64", WAKE_ALL)),
    )


def _wide(b: Builder, expected: Value) -> Value:
    return b.cast("zext", expected, "i64")


def _wait_on_address(b: Builder, function: Value, word: Value, expected: Value) -> None:
    compared = b.alloca("i32")
    b.store(expected, compared)
    b.call_at(function, "i32", word, compared, b.const("i64", 4), b.const("i32", -1))


def _os_sync(b: Builder, function: Value, word: Value, *value: Value) -> None:
    b.call_at(function, "i32", word, *value, b.const("i64", 4), b.const("i32", 0))


def _ulock(b: Builder, function: Value, operation: int, word: Value, value: Value, *timeout: Value) -> None:
    b.call_at(function, "i32", b.const("i32", operation), word, value, *timeout)


def core_address() -> int:
    """Returns the address of `int sched_getcpu(void)`, or 0 on systems other than Linux."""
    if not sys.platform.startswith("linux"):
        return 0
    return _symbol(ctypes.CDLL(None), "sched_getcpu") or 0


WAIT_ROWS = (
    futex_row(FUTEX_NUMBERS.get(platform.machine(), 0)),
    WaitRow(
        "wait_on_address",
        _find_windows,
        _wait_on_address,
        lambda b, function, word: b.call_at(function, "void", word),
    ),
    WaitRow(
        "os_sync",  # macOS 14.4 and newer
        _find_darwin("os_sync_wait_on_address", "os_sync_wake_by_address_all"),
        lambda b, function, word, seen: _os_sync(b, function, word, _wide(b, seen)),
        _os_sync,
    ),
    WaitRow(
        "ulock",  # macOS before 14.4
        _find_darwin("__ulock_wait", "__ulock_wake"),
        lambda b, function, word, seen: _ulock(
            b, function, ULOCK_COMPARE_AND_WAIT, word, _wide(b, seen), b.const("i32", 0)
        ),
        lambda b, function, word: _ulock(b, function, ULOCK_WAKE_ALL, word, b.const("i64", 0)),
    ),
    WaitRow(
        "yield",  # does not sleep: idle workers use their cores
        _find_yield,
        lambda b, function, word, seen: b.call_at(function, "i32"),
        lambda b, function, word: None,
    ),
)


def find_wait_row() -> tuple[WaitRow, WaitAddresses]:
    """Returns the first row that this system supports, with its addresses. Raises PlanError if there is none."""
    for row in WAIT_ROWS:
        addresses = row.find()
        if addresses is not None:
            return row, addresses
    wanted = ", ".join(row.name for row in WAIT_ROWS)
    raise PlanError(f"no way to let workers sleep on {sys.platform}/{platform.machine()}; looked for: {wanted}")
