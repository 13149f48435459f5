"""Waiting in the executor's module: bounded spin, sleep, barrier, and detection of workers that share a core."""

from __future__ import annotations

from collections.abc import Callable

from camshaft.emit.llvm.builder import I1, I32, I64, PTR, VOID, Builder, Module, Value
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.native.os_wait import WaitRow


def pause(b: Builder, machine: str) -> None:
    """Writes one iteration of a spin; only a compiler barrier on machines without a known pause instruction."""
    if machine == "x86_64":
        b.intrinsic("llvm.x86.sse2.pause", VOID)
    elif machine in ("aarch64", "arm64"):  # isb is long enough to yield the core; yield is a no-op on most cores
        b.intrinsic("llvm.aarch64.isb", VOID, b.const(I32, 15))
    else:
        b.write('call void asm sideeffect "", "~{memory}"()')


def define_wait(m: Module, row: WaitRow, machine: str, clock: Callable[[Builder], Value] | None = None) -> None:
    """Defines system_wait, system_wake, await_, store_core, is_unmoved and shares_core. With a clock, await_ adds up ticks."""

    def system_wait(b: Builder, control: Value, word: Value, expected: Value) -> None:
        row.wait(b, b.load_word(control, layout.WAIT_FUNCTION, PTR), word, expected)

    def system_wake(b: Builder, control: Value, word: Value) -> None:
        row.wake(b, b.load_word(control, layout.WAKE_FUNCTION, PTR), word)

    def await_(b: Builder, control: Value, word: Value, seen: Value, sleepers: Value, misses: Value) -> None:
        _await(b, machine, clock, control, word, seen, sleepers, misses)

    for body, result, types in (
        (system_wait, VOID, (PTR, PTR, I32)),
        (system_wake, VOID, (PTR, PTR)),
        (store_core, VOID, (PTR, I64)),
        (is_unmoved, I1, (PTR,)),
        (shares_core, I1, (PTR, I64)),
        (await_, VOID, (PTR, PTR, I32, PTR, PTR)),
    ):
        m.define(body, result, *types, linkage="internal", attributes="noinline")


def _await(
    b: Builder,
    machine: str,
    clock: Callable[[Builder], Value] | None,
    control: Value,
    word: Value,
    seen: Value,
    sleepers: Value,
    misses: Value,
) -> None:
    """Returns once the word differs from `seen`: a bounded spin, then sleep.

    After 4 spins in a row that ended in sleep, the worker it waits for probably needs this core: only every 16th spin is long
    then. No wake is lost: the sleeper increments `sleepers` before it reads the word again, the waker writes the word before
    it reads `sleepers`, both sequentially consistent. The time after a short spin is added to the worker's ticks waited.
    """
    missed = b.load(I64, misses)
    patient = b.ult(missed, 4) | b.eq(missed & 15, 0)
    long, short = b.load_word(control, layout.SPIN_BOUND), b.load_word(control, layout.SHORT_SPIN_BOUND)
    bound, turn = b.select(patient, long, short), b.var(I64, 0)
    timed_from, began = b.umin(bound, short), b.var(I64, 0)
    sleep = b.label("sleep")
    with b.loop():
        with b.if_(b.ne(b.load(I32, word, "acquire"), seen)):
            b.store(b.const(I64, 0), misses)
            if clock:
                with b.if_(b.ult(timed_from, turn.value)):
                    _add_waited(b, clock, misses, began.value)
            b.ret()
        turns = turn.value
        if clock:
            with b.if_(b.eq(turns, timed_from)):
                began.set(clock(b))
        with b.if_(b.ule(bound, turns)):
            _caller_spins_on(b, control, turns, misses, sleep)
        pause(b, machine)
        turn.set(turns + 1)
    b.open(sleep)
    b.store(missed + 1, misses)
    b.fetch("add", sleepers, b.const(I32, 1), "seq_cst")
    with b.loop() as woken:
        b.goto_if(b.ne(b.load(I32, word, "seq_cst"), seen), woken)
        b.call("system_wait", control, word, seen)
    b.fetch("sub", sleepers, b.const(I32, 1), "seq_cst")
    if clock:
        _add_waited(b, clock, misses, began.value)


def _add_waited(b: Builder, clock: Callable[[Builder], Value], misses: Value, began: Value) -> None:
    ticks = b.load_word(misses, layout.WAITED_AFTER_MISSES) + clock(b) - began
    b.store_word(ticks, misses, layout.WAITED_AFTER_MISSES)


def _caller_spins_on(b: Builder, control: Value, turns: Value, misses: Value, sleep: str) -> None:
    """Jumps to `sleep` unless this is the caller (worker 0), still on the core where its run began.

    A KVM guest wakes a sleeper on the waker's core; from then on the two share it, which costs 8 us per wait.
    """
    is_caller = b.eq(misses, b.element(control, layout.CALLER_MISSES))
    longest = b.load_word(control, layout.CALLER_SPIN_BOUND)
    b.goto_unless(is_caller & b.ult(turns, longest), sleep)
    b.goto_unless(b.call("is_unmoved", control), sleep)


def publish(b: Builder, control: Value, word: Value, value: Value, sleepers: Value) -> None:
    """Stores the word's new value and wakes the workers that sleep on it."""
    b.store(value, word, "seq_cst")
    with b.if_(b.ne(b.load(I32, sleepers, "seq_cst"), 0)):
        b.call("system_wake", control, word)


def barrier(b: Builder, control: Value, following: Value, workers: Value, misses: Value, stay: Value) -> None:
    """The last worker to arrive publishes generation `following`. Without `stay` the others don't wait (end of a run)."""
    arrived, generation = b.element(control, layout.ARRIVED), b.element(control, layout.GENERATION)
    sleepers = b.element(control, layout.SLEEPERS)
    here = b.fetch("add", arrived, b.const(I32, 1), "acq_rel") + 1
    with b.if_(b.eq(here, workers)):
        b.store(b.const(I32, 0), arrived, "monotonic")
        publish(b, control, generation, following, sleepers)
    with b.else_(), b.if_(stay):
        b.call("await_", control, generation, following - 1, sleepers, misses)


def lines_of(b: Builder, control: Value, worker: Value) -> Value:
    """Returns the address of a worker's lines in the control block."""
    return b.element(control, worker * layout.WORDS_PER_WORKER + layout.WORKER_LINES)


def _core(b: Builder, function: Value) -> Value:
    return b.cast("sext", b.call_at(function, I32), I64)


def store_core(b: Builder, control: Value, worker: Value) -> None:
    """Stores the number of the worker's core, for shares_core of other workers and is_unmoved."""
    function = b.load_word(control, layout.CORE_FUNCTION, PTR)
    with b.if_(b.ne(function, b.null())):
        core, stored = _core(b, function), b.element(lines_of(b, control, worker), layout.CORE)
        with b.if_(b.ne(b.load(I64, stored), core)):
            b.store(core, stored, "monotonic")


def is_unmoved(b: Builder, control: Value) -> None:
    """Returns whether the caller is still on the core where its run began."""
    core = _core(b, b.load_word(control, layout.CORE_FUNCTION, PTR))
    b.ret(b.eq(b.load_word(control, layout.CALLER_CORE), core))


def shares_core(b: Builder, control: Value, worker: Value) -> None:
    """Returns whether a worker with a lower number is on the same core; the worker then leaves the executor to be moved.

    KVM guests see halted cores as busy and put two workers on one, which costs 30 us per barrier.
    """
    function = b.load_word(control, layout.CORE_FUNCTION, PTR)
    with b.if_(b.ne(function, b.null())):
        core = _core(b, function)
        with b.for_(0, worker) as other:
            theirs = b.load(I64, b.element(lines_of(b, control, other), layout.CORE), "monotonic")
            with b.if_(b.eq(theirs, core)):
                b.ret(b.const(I1, 1))
    b.ret(b.const(I1, 0))
