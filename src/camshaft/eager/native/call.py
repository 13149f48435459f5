"""LLVM IR of the functions that CPython calls for an elementwise op on arrays: check, launch, return.

The common case is exact ndarrays of native dtypes and one shape, contiguous in the same order, with 0-d arrays and Python numbers
among them, and an `out` that overlaps none or starts where an input does. Anything else goes to the op's Python function with the
same arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from camshaft.eager.native import cpython_abi as layout
from camshaft.eager.native.inputs import (
    Call,
    Input,
    Row,
    Shape,
    agreed,
    copied_call,
    find_row,
    given_out,
    native_call,
    read_input,
    reference,
)
from camshaft.eager.native.output import Output, Span, drop, made_or_given, returned, shared, unlocked
from camshaft.eager.native.state_layout import AS_F32, AS_F64, ENTRIES
from camshaft.emit.llvm.builder import F32, I32, I64, PTR, VOID, Builder, Value


def flat_ir(symbol: str, n: int, slot: int) -> str:
    """The function for n inputs. `slot` is where `self` keeps the ndarray of its state, in bytes."""
    return native_call(symbol, slot, lambda call: _flat(call, symbol, n))


def _flat(call: Call, symbol: str, n: int) -> None:
    b, out = call.b, given_out(call, n)
    inputs = [read_input(call, i) for i in range(n)]
    first = reference(call, inputs)
    row = find_row(call, inputs)
    shape = agreed(call, inputs, first, row)
    with b.if_(b.eq(shape.order, 0)):
        copied_call(call, symbol, inputs, out, shape)
    output = _output(call, inputs, out, shape, row)
    _store_numbers(b, inputs, row)
    entry = _entry(call, inputs, row, output)
    ran = _run(_Launch(call, inputs, row, shape, output, entry))
    returned(call, output, ran, output.array)


def _entry(call: Call, inputs: list[Input], row: Row, output: Output) -> Value:
    """The kernel for the set of inputs that have one element."""
    b, index = call.b, call.b.const(I64, ENTRIES)
    for i, x in enumerate(inputs):
        index = index + b.select(x.single, 1 << i, 0)
    entry = b.load_word(row.at, index, PTR)
    with b.if_(b.is_null(entry)):
        drop(call, output)
        b.goto(call.slow)
    return entry


def _output(call: Call, inputs: list[Input], out: Value, shape: Shape, row: Row) -> Output:
    """`out`, if it starts where an input does or overlaps none; or a new array in the inputs' memory order."""
    b, dtype = call.b, row.word("out_dtype", PTR)

    def made() -> Value:
        new_like, order = call.word("new_like"), b.const(I32, layout.KEEP_ORDER)
        call.need(b.ne(new_like, b.null()))
        call.incref(dtype)
        return b.call_at(new_like, PTR, shape.like, order, dtype, b.const(I32, 0))

    def apart(data: Value) -> None:
        each = row.word("out_nbytes")
        span = Span.of(b, data, shape.total * each)
        safe = []
        for i, x in enumerate(inputs):
            nbytes = row.word(f"nbytes{i}")
            in_place = b.eq(nbytes, each) & (x.single ^ 1)
            safe.append(span.clear_of(x.data, b.select(x.single, nbytes, shape.total * nbytes), in_place))
        call.need(*safe)

    return made_or_given(call, out, dtype, shape.axes, shape.dims, shape.order, made, apart)


def _store_numbers(b: Builder, inputs: list[Input], row: Row) -> None:
    """Python numbers in the row's format."""
    number = row.word("number")
    with b.if_(b.eq(number, AS_F32)):
        for x in inputs:
            b.store(b.cast("fptrunc", x.real, F32), x.slot)
    with b.else_():
        with b.if_(b.eq(number, AS_F64)):
            for x in inputs:
                b.store(x.real, x.slot)
        with b.else_():
            for x in inputs:
                b.store(x.whole, x.slot)


class _Launch(NamedTuple):
    call: Call
    inputs: list[Input]
    row: Row
    shape: Shape
    output: Output
    entry: Value


def _run(x: _Launch) -> Value:
    """Runs on this thread, on this thread without the GIL, or on the pool; returns false with a Python error set. A small array
    is one program."""
    b, n = x.call.b, len(x.inputs)
    block, total = b.alloca(f"[{n + 2} x i64]", align=64), b.alloca(I64)
    for i, value in enumerate((*(item.data for item in x.inputs), x.output.data, total)):
        b.store_word(value, block, i)
    b.store(x.shape.total, total)

    def run(programs: Value) -> None:
        b.call_at(x.entry, VOID, block, b.const(I64, 0), programs)

    one, ran = b.const(I64, 1), b.var("i1", 1)
    with b.if_(b.ult(x.shape.total, x.row.word("release"))):
        run(one)
    with b.else_():
        lead = _lead(x, block, total, lambda: run(one))
        rest = x.shape.total - lead
        b.store(rest, total)
        programs = (rest - 1) // x.row.word("block") + 1
        with b.if_(b.ult(x.shape.total, x.row.word("share"))):
            unlocked(x.call, lambda: run(programs))
        with b.else_():
            launch = b.alloca("[3 x i64]", align=16)
            for i, value in enumerate((x.entry, block, programs)):
                b.store_word(value, launch, i)
            ran.set(shared(x.call, launch, one))
    return ran.value


def _lead(x: _Launch, block: Value, total: Value, run: Callable[[], None]) -> Value:
    """Runs the elements before the output's first whole cache line alone and returns their number: 64-byte vectors across lines
    cost 7% of an add."""
    b = x.call.b
    nbytes = (b.const(I64, 0) - b.cast("ptrtoint", x.output.data, I64)) & 63
    lead = nbytes // x.row.word("out_nbytes")
    with b.if_(b.ne(lead, 0)):
        b.store(lead, total)
        run()
        for i, item in enumerate(x.inputs):
            skipped = b.select(item.single, 0, lead * x.row.word(f"nbytes{i}"))
            b.store_word(b.element(item.data, skipped, "i8"), block, i)
        b.store_word(b.element(x.output.data, nbytes, "i8"), block, len(x.inputs))
    return lead
