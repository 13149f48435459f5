"""The clock of the executor's timed form, and the stamps that it writes, in ticks of the processor's counter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from camshaft.emit.llvm.builder import I32, I64, PTR, VOID, Builder, Module, Value
from camshaft.errors import PlanError
from camshaft.plan.runtime.native import layout

Clock: TypeAlias = Callable[[Builder], Value]


def _x86(b: Builder) -> Value:
    """The time-stamp counter, constant in rate on every CPU since 2008; lfence waits for earlier instructions."""
    b.intrinsic("llvm.x86.sse2.lfence", VOID)
    return b.intrinsic("llvm.readcyclecounter", I64)


def _arm(b: Builder) -> Value:
    """The generic timer: 10 to 40 ns a tick, 1 ns from Armv8.6 on.

    Programs cannot read AArch64's cycle counter, and LLVM's steady counter is the constant 0 there.
    """
    b.intrinsic("llvm.aarch64.isb", VOID, b.const(I32, 15))
    register = Value(b, "metadata", '!{!"cntvct_el0"}')
    return b.intrinsic("llvm.read_volatile_register.i64", I64, register)


def _riscv(b: Builder) -> Value:
    """The time register, which all cores share; programs cannot read RISC-V's cycle counter."""
    b.write("fence seq_cst")
    return b.intrinsic("llvm.readsteadycounter", I64)


_CLOCKS: dict[str, Clock] = {"x86_64": _x86, "aarch64": _arm, "arm64": _arm, "riscv64": _riscv}


def clock_of(machine: str) -> Clock:
    """Returns what reads the machine's clock in ticks, which timed.py calibrates. Raises PlanError if none is known."""
    if machine not in _CLOCKS:
        raise PlanError(f"no clock to time thunks by on {machine}; there is one on {', '.join(_CLOCKS)}")
    return _CLOCKS[machine]


class Stamps:
    """Writes a worker's stamps to the memory passed to `camshaft_stamps`. Created at the start of a run."""

    def __init__(self, b: Builder, clock: Clock, worker: Value) -> None:
        self._b, self._clock, self._stamp = b, clock, b.null()
        all_stamps, per_worker = (b.load(kind, b.address(name)) for name, kind in _STAMP_GLOBALS)
        self._mine = self._at(all_stamps, worker * per_worker)
        b.store(clock(b), self._at(self._mine, per_worker - 1))

    def begin(self, thunk: Value) -> None:
        """Stamps the start of a thunk, with 0 programs until `share`."""
        self._stamp = self._at(self._mine, thunk)
        self._b.store(self._clock(self._b), self._stamp)
        self._b.store_word(self._b.const(I64, 0), self._stamp, layout.SIZE)

    def share(self, start: Value, size: Value) -> None:
        self._b.store_word(size, self._stamp, layout.SIZE)
        self._b.store_word(start, self._stamp, layout.PLACE)

    def end(self) -> None:
        self._b.store_word(self._clock(self._b), self._stamp, layout.END)

    def _at(self, stamps: Value, index: Value) -> Value:
        return self._b.element(stamps, index * layout.STAMP_WORDS)


_STAMP_GLOBALS = (("stamps", PTR), ("stamps_per_worker", I64))


def define_stamps(m: Module, clock: Clock) -> None:
    """Defines the address of the stamps [workers, thunks + 1, STAMP_WORDS], camshaft_stamps to set it, and camshaft_clock."""
    for (name, kind), start in zip(_STAMP_GLOBALS, ("null", "0"), strict=True):
        m.global_(name, kind, start)

    def camshaft_stamps(b: Builder, stamps: Value, per_worker: Value) -> None:
        b.store(stamps, b.address("stamps"))
        b.store(per_worker, b.address("stamps_per_worker"))

    m.define(camshaft_stamps, VOID, PTR, I64)
    m.define(lambda b: b.ret(clock(b)), I64, name="camshaft_clock")
