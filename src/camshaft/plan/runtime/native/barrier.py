"""Waiting: the bounded spin, the sleep, the barrier, and who shares a core. Functions of the executor's module."""

from __future__ import annotations

from camshaft.emit.llvm.builder import I1, I32, I64, PTR, VOID, Builder, Module, Value
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.native.os_wait import WaitRow


def pause(b: Builder, machine: str) -> None:
    """One turn of a spin, cheap for others; a compiler barrier where no instruction for that is known."""
    if machine == "x86_64":
        b.intrinsic("llvm.x86.sse2.pause", VOID)
    elif machine in ("aarch64", "arm64"):  # waits long enough to leave the core to others; yield is a no-op on most
        b.intrinsic("llvm.aarch64.isb", VOID, b.const(I32, 15))
    else:
        b.write('call void asm sideeffect "", "~{memory}"()')


def define_wait(m: Module, row: WaitRow, machine: str) -> None:
    """The functions system_wait, system_wake, await, say_core, is_unmoved and shares_core."""

    def system_wait(b: Builder, control: Value, word: Value, expected: Value) -> None:
        row.wait(b, b.load_word(control, layout.WAIT_FUNCTION, PTR), word, expected)

    def system_wake(b: Builder, control: Value, word: Value) -> None:
        row.wake(b, b.load_word(control, layout.WAKE_FUNCTION, PTR), word)

    def await_(b: Builder, control: Value, word: Value, seen: Value, sleepers: Value, misses: Value) -> None:
        _await(b, machine, control, word, seen, sleepers, misses)

    for body, result, types in (
        (system_wait, VOID, (PTR, PTR, I32)),
        (system_wake, VOID, (PTR, PTR)),
        (say_core, VOID, (PTR, I64)),
        (is_unmoved, I1, (PTR,)),
        (shares_core, I1, (PTR, I64)),
        (await_, VOID, (PTR, PTR, I32, PTR, PTR)),
    ):
        m.define(body, result, *types, linkage="internal", attributes="noinline")


def _await(b: Builder, machine: str, control: Value, word: Value, seen: Value, sleepers: Value, misses: Value) -> None:
    """Returns once the word is no longer `seen`: a bounded spin, then sleep.

    A worker whose spins end in sleep again and again (its core is wanted by the one it waits for) spins long only every 16th
    time. The sleeper counts itself before it looks again, and the waker changes the word before it looks at the count, both
    sequentially consistent: no wake is lost.
    """
    missed = b.load(I64, misses)
    patient = b.ult(missed, 4) | b.eq(missed & 15, 0)
    long, short = b.load_word(control, layout.SPIN_BOUND), b.load_word(control, layout.SHORT_SPIN_BOUND)
    bound, turn = b.select(patient, long, short), b.var(I64, 0)
    lie_down = b.label("lie_down")
    with b.loop():
        with b.if_(b.ne(b.load(I32, word, "acquire"), seen)):
            b.store(b.const(I64, 0), misses)
            b.ret()
        turns = turn.value
        with b.if_(b.ule(bound, turns)):
            _go_on_spinning(b, control, turns, misses, lie_down)
        pause(b, machine)
        turn.set(turns + 1)
    b.open(lie_down)
    b.store(missed + 1, misses)
    b.fetch("add", sleepers, b.const(I32, 1), "seq_cst")
    with b.loop() as woken:
        b.goto_if(b.ne(b.load(I32, word, "seq_cst"), seen), woken)
        b.call("system_wait", control, word, seen)
    b.fetch("sub", sleepers, b.const(I32, 1), "seq_cst")


def _go_on_spinning(b: Builder, control: Value, turns: Value, misses: Value, lie_down: str) -> None:
    """The caller (worker 0) goes on while it is on the core where its run began: who sleeps is woken on the waker's core in a
    guest of KVM, and from then on the two share it, 8 us a wait."""
    is_caller = b.eq(misses, b.element(control, layout.CALLER_MISSES))
    longest = b.load_word(control, layout.CALLER_SPIN_BOUND)
    b.goto_unless(is_caller & b.ult(turns, longest), lie_down)
    b.goto_unless(b.call("is_unmoved", control), lie_down)


def publish(b: Builder, control: Value, word: Value, value: Value, sleepers: Value) -> None:
    """The word's new value, and a wake for those who sleep on it."""
    b.store(value, word, "seq_cst")
    with b.if_(b.ne(b.load(I32, sleepers, "seq_cst"), 0)):
        b.call("system_wake", control, word)


def barrier(b: Builder, control: Value, following: Value, workers: Value, misses: Value, stay: Value) -> None:
    """The last to arrive opens generation `following`; `stay` false leaves without waiting for others (the end of a run)."""
    arrived, generation = b.element(control, layout.ARRIVED), b.element(control, layout.GENERATION)
    sleepers = b.element(control, layout.SLEEPERS)
    here = b.fetch("add", arrived, b.const(I32, 1), "acq_rel") + 1
    with b.if_(b.eq(here, workers)):
        b.store(b.const(I32, 0), arrived, "monotonic")
        publish(b, control, generation, following, sleepers)
    with b.else_(), b.if_(stay):
        b.call("await_", control, generation, following - 1, sleepers, misses)


def lines_of(b: Builder, control: Value, worker: Value) -> Value:
    """Where a worker's own words begin."""
    return b.element(control, worker * layout.WORDS_PER_WORKER + layout.WORKER_LINES)


def _core(b: Builder, function: Value) -> Value:
    return b.cast("sext", b.call_at(function, I32), I64)


def say_core(b: Builder, control: Value, worker: Value) -> None:
    """Notes which core a worker is on, for others and for the end of a run."""
    function = b.load_word(control, layout.CORE_FUNCTION, PTR)
    with b.if_(b.ne(function, b.null())):
        core, said = _core(b, function), b.element(lines_of(b, control, worker), layout.CORE)
        with b.if_(b.ne(b.load(I64, said), core)):
            b.store(core, said, "monotonic")


def is_unmoved(b: Builder, control: Value) -> None:
    """Whether the caller is still on the core where its run began."""
    core = _core(b, b.load_word(control, layout.CORE_FUNCTION, PTR))
    b.ret(b.eq(b.load_word(control, layout.CALLER_CORE), core))


def shares_core(b: Builder, control: Value, worker: Value) -> None:
    """Whether a worker is on the core of one before it. It then leaves the executor after the run and is moved: guests of KVM
    see halted cores as taken and stack two workers on one, 30 us a barrier."""
    function = b.load_word(control, layout.CORE_FUNCTION, PTR)
    with b.if_(b.ne(function, b.null())):
        core = _core(b, function)
        with b.for_(0, worker) as other:
            theirs = b.load(I64, b.element(lines_of(b, control, other), layout.CORE), "monotonic")
            with b.if_(b.eq(theirs, core)):
                b.ret(b.const(I1, 1))
    b.ret(b.const(I1, 0))
