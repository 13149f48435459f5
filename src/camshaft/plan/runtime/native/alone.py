"""When a pool's caller runs alone: while workers that wait for a core cost more time than they save.

A worker that another process keeps off its core stops everyone at the next barrier until it runs again, 3 to 30 ms. Results
have the same bits for any number of workers, so the caller may do their part. It adds up what each run with all workers saved
or lost against a run alone. After a loss the next runs are alone for 4 to 64 times as long, longer each time, then it tries
again with all. The clock is not stopped while a thread waits for its core, and that is what counts here.
"""

from __future__ import annotations

from collections.abc import Callable

from camshaft.emit.llvm.builder import I64, Builder, Value
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.native.barrier import lines_of

# Savings count up to this many times the last run: a rare stall on a quiet machine stays below them.
MOST_SAVED_RUNS = 32
LEAST_ALONE, MOST_ALONE = 4, 64

Clock = Callable[[Builder], Value]


def _x86(b: Builder) -> Value:
    return b.intrinsic("llvm.readcyclecounter", I64)


def _arm(b: Builder) -> Value:
    register = Value(b, "metadata", '!{!"cntvct_el0"}')
    return b.intrinsic("llvm.read_volatile_register.i64", I64, register)


def _riscv(b: Builder) -> Value:
    return b.intrinsic("llvm.readsteadycounter", I64)


# As clock.py's, without a fence: a few ns of error do not matter. Machines without one always run with all workers.
_CLOCKS: dict[str, Clock] = {"x86_64": _x86, "aarch64": _arm, "arm64": _arm, "riscv64": _riscv}


def fast_clock(machine: str) -> Clock | None:
    """Returns what reads the machine's clock, or None."""
    return _CLOCKS.get(machine)


def is_alone(b: Builder, control: Value, now: Value) -> Value:
    """Returns whether a run that begins now is one for the caller alone."""
    return b.slt(now, b.load_word(_account(b, control), layout.ALONE_UNTIL))


def _account(b: Builder, control: Value) -> Value:
    return lines_of(b, control, b.const(I64, 0))


def judge(b: Builder, control: Value, began: Value, ended: Value) -> None:
    """Adds a run with all workers to the balance of ticks; sets ALONE_UNTIL when the balance is negative.

    loss = caller's wait - its own work * other workers: alone it would have done the parts of all, which are about equal.
    gain = least work of a worker * workers - run time: a worker that was off its core counts neither as work nor as a saving.
    """
    own, workers = _account(b, control), b.load_word(control, layout.WORKERS)
    balance, spent = b.load_word(own, layout.BALANCE), ended - began
    waited = b.load_word(own, layout.WAITED)
    loss = waited - (spent - waited) * (workers - 1)
    with b.if_(b.slt(b.const(I64, 0), loss)):
        _lose(b, own, balance - loss, ended)
        b.ret()
    longest = b.var(I64, waited)
    with b.for_(1, workers) as worker:
        theirs = b.load(I64, b.element(lines_of(b, control, worker), layout.WAITED), "monotonic")
        longest.set(_greater(b, longest.value, theirs))
    gain = _greater(b, (spent - longest.value) * workers - spent, b.const(I64, 0))
    b.store_word(b.smin(balance + gain, spent * MOST_SAVED_RUNS), own, layout.BALANCE)
    alone = b.load_word(own, layout.ALONE)
    b.store_word(alone - (alone >> 6), own, layout.ALONE)
    b.ret()


def _lose(b: Builder, own: Value, balance: Value, ended: Value) -> None:
    b.store_word(balance, own, layout.BALANCE)
    with b.if_(b.slt(balance, b.const(I64, 0))):
        owed = b.const(I64, 0) - balance
        longer = _greater(b, b.load_word(own, layout.ALONE) * 2, owed * LEAST_ALONE)
        alone = b.smin(longer, owed * MOST_ALONE)
        b.store_word(alone, own, layout.ALONE)
        b.store_word(ended + alone, own, layout.ALONE_UNTIL)
        b.store_word(b.const(I64, 0), own, layout.BALANCE)


def _greater(b: Builder, a: Value, other: Value) -> Value:
    return b.select(b.slt(a, other), other, a)
