"""When a pool's caller runs alone: while workers that wait for a core cost more time than they save.

A worker that another process keeps off its core stops everyone at the next barrier until it runs again, 3 to 30 ms. Results
have the same bits for any number of workers, so the caller may do their part. It adds up what each run with all workers saved
or lost against a run alone. After a loss the next runs are alone for 4 to 64 times as long, longer each time, then it tries
again with all. The clock is not stopped while a thread waits for its core, and that is what counts here.

Only short runs are judged and run alone, of records whose last run was short: a stall costs a long run little, and a first run
pays for other things too. A prompt of 250 ms that ran alone because one run before it had lost 20 ms took twice as long.
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


def key_of(b: Builder, records: Value, first: Value, last: Value) -> Value:
    """Returns the key of a run of records, the same for equal arguments."""
    return b.cast("ptrtoint", records, I64) + first * 0x10001 + last * 0x1000003


def is_alone(b: Builder, control: Value, key: Value, now: Value) -> Value:
    """Returns whether a run that begins now is one for the caller alone."""
    return _was_short(b, control, key) & b.slt(now, b.load_word(_account(b, control), layout.ALONE_UNTIL))


def remember(b: Builder, control: Value, key: Value, ticks: Value) -> None:
    """Stores the ticks that the caller worked in its last run with this key."""
    entry = _entry(b, control, key)
    b.store_word(key, entry, layout.RUN_KEY)
    b.store_word(ticks, entry, layout.RUN_TICKS)


def _was_short(b: Builder, control: Value, key: Value) -> Value:
    entry = _entry(b, control, key)
    short = b.slt(b.load_word(entry, layout.RUN_TICKS), b.load_word(control, layout.SHORT_RUN_TICKS))
    return short & b.eq(b.load_word(entry, layout.RUN_KEY), key)


def _entry(b: Builder, control: Value, key: Value) -> Value:
    """Returns the address of the entry in the table of runs where a key belongs; the entry may hold a different key."""
    place = key * 0x61C8864680B583EB >> 64 - layout.RUNS_BITS
    return b.element(control, place * layout.RUN_ENTRY_WORDS + layout.RUNS)


def _account(b: Builder, control: Value) -> Value:
    return lines_of(b, control, b.const(I64, 0))


def judge(b: Builder, control: Value, key: Value, began: Value, ended: Value) -> None:
    """Adds a short run with all workers to the balance of ticks; sets ALONE_UNTIL when the balance is negative.

    loss = caller's wait - its own work * other workers: alone it would have done the parts of all, which are about equal.
    gain = least work of a worker * workers - run time: a worker that was off its core counts neither as work nor as a saving.
    """
    own, workers = _account(b, control), b.load_word(control, layout.WORKERS)
    spent, waited, before = ended - began, b.load_word(own, layout.WAITED), _was_short(b, control, key)
    remember(b, control, key, spent - waited)
    with b.if_(b.eq(before & _was_short(b, control, key), 0)):
        b.ret()
    balance = b.load_word(own, layout.BALANCE)
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
