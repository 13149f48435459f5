"""The executor's module: it walks thunk records, laid out in layout.py, with all workers inside it, for every plan."""

from __future__ import annotations

import functools

from camshaft.emit.llvm.builder import I1, I32, I64, PTR, VOID, Builder, Module, Value
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.native.barrier import barrier, define_wait, lines_of
from camshaft.plan.runtime.native.clock import Clock, Stamps, clock_of, define_stamps
from camshaft.plan.runtime.native.entries import define_entries
from camshaft.plan.runtime.native.os_wait import WaitRow


def _programs(b: Builder, record: Value) -> Value:
    """constant * product of ceil(extent / divisor), and 0 where an extent is 0"""
    product = b.var(I64, b.load_word(record, layout.CONSTANT))
    factors = b.element(record, layout.FACTORS)
    with b.for_(0, b.load_word(record, layout.N_FACTORS)) as k:
        factor = b.element(factors, k * 2)
        extent = b.load(I64, b.load(PTR, factor))
        count = (extent - 1) // b.load_word(factor, 1) + 1
        product.set(product.value * b.select(b.eq(extent, 0), 0, count))
    return product.value


def _share(b: Builder, record: Value, worker: Value, workers: Value) -> tuple[Value, Value]:
    """A worker's first program of a record and how many it runs: contiguous, the remainder to the first workers counted from
    the thunk's home."""
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
    """Calls the record's kernel for `size` programs, if any."""
    with b.if_(b.slt(b.const(I64, 0), size)):
        args = b.load_word(record, layout.ARGS, PTR)
        own = b.element(args, worker * b.load_word(record, layout.STRIDE), "i8")
        b.call_at(b.load(PTR, record), VOID, own, start, start + size)


def _meet(b: Builder, control: Value, gate: Value, workers: Value, misses: Value, stay: Value) -> None:
    """The barrier, unless a worker is alone."""
    with b.if_(b.ne(workers, 1)):
        barrier(b, control, gate, b.cast("trunc", workers, I32), misses, stay)


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
    """A worker's part of the records from `first` on. After a failed host thunk the walk goes on, so that all workers meet at
    every barrier, but runs nothing."""
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


def executor_ir(row: WaitRow, machine: str, *, timed: bool = False) -> str:
    """The executor's module as IR text: it sleeps by `row` and pauses as `machine` (the triple's first part) does.

    `timed` gives the form that stamps what each worker does. PlanError for that on a machine whose clock is not known.
    """
    clock, m = clock_of(machine) if timed else None, Module()
    define_wait(m, row, machine)
    walk = functools.partial(_walk, clock=clock)
    m.define(walk, VOID, PTR, I64, I64, PTR, I64, I64, PTR, name="walk", linkage="internal", attributes="alwaysinline")
    define_entries(m, machine)
    if clock:
        define_stamps(m, clock)
    return m.text()
