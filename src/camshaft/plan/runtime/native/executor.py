"""The executor as LLVM IR: all workers walk the same thunk records (layout.py). One module serves every plan."""

from __future__ import annotations

import functools

from camshaft.emit.llvm.builder import I1, I32, I64, PTR, VOID, Builder, Module, Value
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.native.alone import Clock as FastClock
from camshaft.plan.runtime.native.alone import fast_clock, is_alone, judge, key_of, remember
from camshaft.plan.runtime.native.barrier import barrier, define_wait, lines_of, pause, publish
from camshaft.plan.runtime.native.clock import Clock, Stamps, clock_of, define_stamps
from camshaft.plan.runtime.native.os_wait import WaitRow

# The control words that describe a run.
_RUN = ((layout.RECORDS, PTR), (layout.FIRST, I64), (layout.LAST, I64), (layout.FAILED, PTR))


def executor_ir(row: WaitRow, machine: str, *, timed: bool = False) -> str:
    """Returns the executor's module as IR text. Workers sleep by `row`; `machine` is the first part of the target triple.

    `timed` returns the form that stamps each worker's part of each thunk. Raises PlanError if the machine has no known clock.
    """
    clock, m = clock_of(machine) if timed else None, Module()
    judged = None if timed else fast_clock(machine)  # stamps are those of all workers
    define_wait(m, row, machine, judged)
    walk = functools.partial(_walk, clock=clock)
    m.define(walk, VOID, PTR, I64, I64, PTR, I64, I64, PTR, name="walk", linkage="internal", attributes="alwaysinline")
    _define_entries(m, machine, judged)
    if clock:
        define_stamps(m, clock)
    return m.text()


def dynamic_ir() -> str:
    """Returns the module of `camshaft_take(args, first, last)`, the entry of a dynamic launch."""
    module = Module()
    module.define(camshaft_take, VOID, PTR, I64, I64)
    return module.text()


def _walk(
    b: Builder,
    control: Value,
    worker: Value,
    workers: Value,
    records: Value,
    first: Value,
    last: Value,
    failed: Value,
    *,
    clock: Clock | None,
) -> None:
    """Runs a worker's part of records [first, last).

    After a failed host thunk it runs nothing more but still meets the other workers at every barrier.
    """
    stamps = Stamps(b, clock, worker) if clock else None
    misses = b.element(lines_of(b, control, worker), layout.MISSES)
    gate, broken = b.var(I32, 0), b.var(I1, 0)
    with b.if_(b.ne(workers, 1)):
        gate.set(b.load(I32, b.element(control, layout.GENERATION), "monotonic"))
    with b.for_(first, last) as i:
        record = b.element(records, i * layout.RECORD_WORDS)
        with b.if_(b.ne(b.load_word(record, layout.WAIT), 0) & b.ne(i, first)):
            gate.set(gate.value + 1)
            _meet(b, control, gate.value, workers, misses, b.const(I1, 1))
            broken.set(b.ne(b.load(I64, failed, "monotonic"), 0))
        if stamps:
            stamps.begin(i)
        with b.if_(b.eq(broken.value, 0)):
            start, size = _share(b, record, worker, workers)
            if stamps:
                stamps.share(start, size)
            _launch(b, record, worker, start, size)
        if stamps:
            stamps.end()
    _meet(b, control, gate.value + 1, workers, misses, b.eq(worker, 0))


def _meet(b: Builder, control: Value, gate: Value, workers: Value, misses: Value, stay: Value) -> None:
    """A barrier, unless there is only one worker."""
    with b.if_(b.ne(workers, 1)):
        barrier(b, control, gate, b.cast("trunc", workers, I32), misses, stay)


def _programs(b: Builder, record: Value) -> Value:
    """constant * product of ceil(extent / divisor), and 0 if an extent is 0"""
    product = b.var(I64, b.load_word(record, layout.CONSTANT))
    factors = b.element(record, layout.FACTORS)
    with b.for_(0, b.load_word(record, layout.N_FACTORS)) as k:
        factor = b.element(factors, k * 2)
        extent = b.load(I64, b.load(PTR, factor))
        count = (extent - 1) // b.load_word(factor, 1) + 1
        product.set(product.value * b.select(b.eq(extent, 0), 0, count))
    return product.value


def _share(b: Builder, record: Value, worker: Value, workers: Value) -> tuple[Value, Value]:
    """Returns the first of a worker's programs of a record, and their number.

    Shares are contiguous; the remainder goes to the first workers, counted from the thunk's home.
    """
    n, home = _programs(b, record), b.load_word(record, layout.HOME)
    start, size = b.var(I64, 0), b.var(I64, n)
    with b.if_(b.ne(workers, 1) & b.sle(b.const(I64, 0), home)):
        after = worker - home
        place = b.select(b.slt(after, 0), after + workers, after)
        with b.if_(b.sle(n, workers)):
            start.set(place)
            size.set(b.cast("zext", b.slt(place, n), I64))
        with b.else_():
            even, rest = n // workers, n % workers
            start.set(place * even + b.umin(place, rest))
            size.set(even + b.cast("zext", b.slt(place, rest), I64))
    return start.value, size.value


def _launch(b: Builder, record: Value, worker: Value, start: Value, size: Value) -> None:
    """Calls the record's kernel if `size` is above 0."""
    with b.if_(b.slt(b.const(I64, 0), size)):
        args = b.load_word(record, layout.ARGS, PTR)
        own = b.element(args, worker * b.load_word(record, layout.STRIDE), "i8")
        b.call_at(b.load(PTR, record), VOID, own, start, start + size)


def _define_entries(m: Module, machine: str, clock: FastClock | None) -> None:
    """Defines the exported functions, and `work`, a worker's part of a run."""

    def camshaft_spin(b: Builder, turns: Value) -> None:
        """Pauses `turns` times. Returns the ticks that it took, 0 without a clock."""
        began = clock(b) if clock else b.const(I64, 0)
        with b.for_(0, turns):
            pause(b, machine)
        b.ret(clock(b) - began if clock else began)

    m.define(camshaft_run_alone, VOID, PTR, I64, I64, PTR)
    m.define(work, VOID, PTR, I64, linkage="internal", attributes="noinline")
    if clock:
        m.define(judge, VOID, PTR, I64, I64, I64, linkage="internal", attributes="noinline")
    for name, judged in (("camshaft_run", clock), ("camshaft_run_all", None)):
        m.define(functools.partial(_run, clock=judged), VOID, PTR, PTR, I64, I64, PTR, name=name)
    m.define(camshaft_stop, VOID, PTR)
    m.define(camshaft_worker, I64, PTR, I64)
    m.define(camshaft_spin, I64, I64)
    m.define(camshaft_copy, VOID, PTR, I64, I64)


def camshaft_run_alone(b: Builder, records: Value, first: Value, last: Value, failed: Value) -> None:
    b.call("walk", b.null(), b.const(I64, 0), b.const(I64, 1), records, first, last, failed)


def work(b: Builder, control: Value, worker: Value) -> None:
    """A worker's part of the run in the control block."""
    b.store_word(b.const(I64, 0), lines_of(b, control, worker), layout.WAITED)
    run = (b.load_word(control, at, kind) for at, kind in _RUN)
    b.call("walk", control, worker, b.load_word(control, layout.WORKERS), *run)


def _start_run(b: Builder, control: Value) -> None:
    """Publishes the next run number, which wakes the workers."""
    run = b.element(control, layout.RUN_GENERATION)
    publish(b, control, run, b.load(I32, run, "monotonic") + 1, b.element(control, layout.RUN_SLEEPERS))


def _run(b: Builder, control: Value, *run: Value, clock: FastClock | None) -> None:
    """Runs records with all workers, of which the calling thread is worker 0. With a clock it may run them alone (alone.py)."""
    if clock:
        began, key = clock(b), key_of(b, *run[:3])
        with b.if_(is_alone(b, control, key, began)):
            b.call("camshaft_run_alone", *run)
            remember(b, control, key, clock(b) - began)
            b.ret()
    for value, (at, _) in zip(run, _RUN, strict=True):
        b.store_word(value, control, at)
    b.call("store_core", control, b.const(I64, 0))
    _start_run(b, control)
    b.call("work", control, b.const(I64, 0))
    if clock:
        b.call("judge", control, key, began, clock(b))


def camshaft_stop(b: Builder, control: Value) -> None:
    """Makes the workers return 0."""
    b.store_word(b.const(I64, 1), control, layout.STOP)
    _start_run(b, control)


def camshaft_worker(b: Builder, control: Value, worker: Value) -> None:
    """Takes part in every run. Returns 1 if the thread should move to another core, 0 after camshaft_stop."""
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
        b.call("store_core", control, worker)
        b.call("work", control, worker)
        with b.if_(b.call("shares_core", control, worker)):
            b.ret(b.const(I64, 1))


def camshaft_copy(b: Builder, args: Value, first: Value, last: Value) -> None:
    """Copies one chunk per program. Arguments: source, destination, nbytes, memmove."""
    source, destination = b.load(PTR, args), b.load_word(args, 1, PTR)
    start, stop = (
        first * layout.COPY_NBYTES_PER_PROGRAM,
        b.umin(last * layout.COPY_NBYTES_PER_PROGRAM, b.load_word(args, 2)),
    )
    at = (b.element(base, start, "i8") for base in (destination, source))
    b.call_at(b.load_word(args, 3, PTR), PTR, *at, stop - start)


def camshaft_take(b: Builder, args: Value, first: Value, last: Value) -> None:
    """Runs the next few programs of a dynamic launch until none are left.

    Equal shares would be as slow as the slowest worker, which may share its core: the threads of NumPy's BLAS keep spinning for
    a while after a matrix product.
    """
    launch, taken = b.load_word(args, layout.DYNAMIC_LAUNCH, PTR), b.element(args, layout.DYNAMIC_NEXT)
    code, block, programs = b.load(PTR, launch), b.load_word(launch, 1, PTR), b.load_word(launch, 2)
    even = programs // b.load_word(args, layout.DYNAMIC_PARTS)
    few = b.select(b.ult(even, 2), 1, even)
    with b.loop() as done:
        start = b.fetch("add", taken, few, "monotonic")
        b.goto_unless(b.slt(start, programs), done)
        b.call_at(code, VOID, block, start, b.smin(start + few, programs))
