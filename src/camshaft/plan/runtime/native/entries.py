"""What others call of the executor: a run, alone or with workers, a worker's life, a spin, a copy."""

from __future__ import annotations

from camshaft.emit.llvm.builder import I32, I64, PTR, VOID, Builder, Module, Value
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.native.barrier import lines_of, pause, publish
from camshaft.plan.schedule import COPY_NBYTES_PER_PROGRAM

# The words of a control block that say what a run walks.
_RUN = ((layout.RECORDS, PTR), (layout.FIRST, I64), (layout.LAST, I64), (layout.FAILED, PTR))


def define_entries(m: Module, machine: str) -> None:
    """The exported functions, and `work`, which is one worker's part of a run."""

    def camshaft_spin(b: Builder, turns: Value) -> None:
        with b.for_(0, turns):
            pause(b, machine)

    m.define(camshaft_run_alone, VOID, PTR, I64, I64, PTR)
    m.define(work, VOID, PTR, I64, linkage="internal", attributes="noinline")
    m.define(camshaft_run, VOID, PTR, PTR, I64, I64, PTR)
    m.define(camshaft_stop, VOID, PTR)
    m.define(camshaft_worker, I64, PTR, I64)
    m.define(camshaft_spin, VOID, I64)
    m.define(camshaft_copy, VOID, PTR, I64, I64)


def camshaft_run_alone(b: Builder, records: Value, first: Value, last: Value, failed: Value) -> None:
    b.call("walk", b.null(), b.const(I64, 0), b.const(I64, 1), records, first, last, failed)


def work(b: Builder, control: Value, worker: Value) -> None:
    """A worker's part of the run that the control block describes."""
    run = (b.load_word(control, at, kind) for at, kind in _RUN)
    b.call("walk", control, worker, b.load_word(control, layout.WORKERS), *run)


def _summon(b: Builder, control: Value) -> None:
    """A run is published by its number; worker 0 is the caller."""
    run = b.element(control, layout.RUN_GENERATION)
    publish(b, control, run, b.load(I32, run, "monotonic") + 1, b.element(control, layout.RUN_SLEEPERS))


def camshaft_run(b: Builder, control: Value, *run: Value) -> None:
    for value, (at, _) in zip(run, _RUN, strict=True):
        b.store_word(value, control, at)
    b.call("say_core", control, b.const(I64, 0))
    _summon(b, control)
    b.call("work", control, b.const(I64, 0))


def camshaft_stop(b: Builder, control: Value) -> None:
    """Makes the workers return 0."""
    b.store_word(b.const(I64, 1), control, layout.STOP)
    _summon(b, control)


def camshaft_worker(b: Builder, control: Value, worker: Value) -> None:
    """Takes part in run after run; returns 1 to be moved to a core of its own, 0 at the end."""
    own = lines_of(b, control, worker)
    misses = b.element(own, layout.RUN_MISSES)
    run, sleepers = b.element(control, layout.RUN_GENERATION), b.element(control, layout.RUN_SLEEPERS)
    seen = b.var(I32, b.cast("trunc", b.load(I64, own), I32))
    with b.loop():
        b.call("await_", control, run, seen.value, sleepers, misses)
        seen.set(seen.value + 1)
        b.store(b.cast("zext", seen.value, I64), own)
        with b.if_(b.ne(b.load_word(control, layout.STOP), 0)):
            b.ret(b.const(I64, 0))
        b.call("say_core", control, worker)
        b.call("work", control, worker)
        with b.if_(b.call("shares_core", control, worker)):
            b.ret(b.const(I64, 1))


def camshaft_copy(b: Builder, args: Value, first: Value, last: Value) -> None:
    """A program moves one chunk. Arguments: source, destination, size, memmove."""
    source, destination = b.load(PTR, args), b.load_word(args, 1, PTR)
    start, stop = first * COPY_NBYTES_PER_PROGRAM, b.umin(last * COPY_NBYTES_PER_PROGRAM, b.load_word(args, 2))
    at = (b.element(base, start, "i8") for base in (destination, source))
    b.call_at(b.load_word(args, 3, PTR), PTR, *at, stop - start)
