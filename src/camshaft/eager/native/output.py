"""LLVM IR that makes the output of a native call and launches its kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from camshaft.eager.native import cpython_abi as layout
from camshaft.eager.native.inputs import Call, same_sizes
from camshaft.emit.llvm.builder import I1, I32, I64, PTR, VOID, Builder, Operand, Value

_USABLE = layout.ALIGNED | layout.WRITEABLE
_MASK = (_USABLE | layout.COPY_BACK | layout.WARN) - (1 << 32)


class Output(NamedTuple):
    """The array that is returned, its data, and the caller's `out`, or NULL. `second`: an array that is returned beside it, or
    NULL; None where there never is one."""

    array: Value
    data: Value
    given: Value
    second: Value | None = None


class Span(NamedTuple):
    """The bytes of an output."""

    b: Builder
    first: Value
    end: Value

    @classmethod
    def of(cls, b: Builder, data: Value, nbytes: Value) -> Span:
        first = b.cast("ptrtoint", data, I64)
        return cls(b, first, first + nbytes)

    def clear_of(self, data: Value, nbytes: Value, in_place: Value) -> Value:
        """Whether an input ends before the output, begins after it, or starts with it and the kernel may work `in_place`."""
        b, other = self.b, Span.of(self.b, data, nbytes)
        beside = b.ule(other.end, self.first) | b.ule(self.end, other.first)
        return beside | (b.eq(other.first, self.first) & in_place)


def made_or_given(
    call: Call,
    out: Value,
    dtype: Value,
    axes: Value,
    sizes: Value,
    order: Operand,
    make: Callable[[], Value],
    need_apart: Callable[[Value], None],
) -> Output:
    """`out` if it is an array of this dtype, these sizes and one of these orders that `need_apart` finds away from the inputs;
    without one, what `make` makes."""
    b, array, data = call.b, call.b.var(PTR, out), call.b.var(PTR, out)
    with b.if_(b.is_null(out)):
        made = make()
        with b.if_(b.is_null(made)):
            b.ret(b.null())
        array.set(made)
        data.set(b.load_field(made, layout.DATA, PTR))
    with b.else_():
        call.need(b.eq(b.load_field(out, layout.TYPE, PTR), call.word("array_type")))
        flags = b.load_field(out, layout.FLAGS, I32)
        call.need(
            b.eq(b.load_field(out, layout.DESCR, PTR), dtype),
            b.eq(flags & _MASK, _USABLE),
            b.ne(flags & order, 0),
            b.eq(b.cast("zext", b.load_field(out, layout.ND, I32), I64), axes),
        )
        same_sizes(call, axes, sizes, b.load_field(out, layout.DIMENSIONS, PTR))
        data.set(b.load_field(out, layout.DATA, PTR))
        need_apart(data.value)
    return Output(array.value, data.value, out)


def unlocked(call: Call, run: Callable[[], None]) -> None:
    """Runs without the GIL."""
    b, restore = call.b, call.word("restore_thread")
    thread = b.call_at(call.word("save_thread"), PTR)
    run()
    b.call_at(restore, VOID, thread)


def shared(call: Call, launches: Value, n: Value) -> Value:
    """Has the pool run n launches, whose address is a multiple of 16: its last bits say how many they are. False
    with Python's error set."""
    b, ran = call.b, call.b.var(I1, 0)
    address = b.call_at(call.word("long_from_address"), PTR, b.element(launches, n, "i8"))
    with b.if_(b.ne(address, b.null())):
        asked = b.alloca(PTR)
        b.store(address, asked)
        answer = b.call_at(call.word("vectorcall"), PTR, call.word("pool"), asked, b.const(I64, 1), b.null())
        call.decref(address)
        with b.if_(b.ne(answer, b.null())):
            call.decref(answer)
            ran.set(1)
    return ran.value


def drop(call: Call, output: Output) -> None:
    """Releases the arrays that were made here."""
    with call.b.if_(call.b.is_null(output.given)):
        call.decref(output.array)
    if output.second is not None:
        with call.b.if_(call.b.ne(output.second, call.b.null())):
            call.decref(output.second)


def returned(call: Call, output: Output, ran: Value, fresh: Value) -> None:
    """Ends the call: with NULL where it did not run, with the caller's `out`, with both arrays, or with `fresh`."""
    b = call.b
    with b.if_(b.eq(ran, 0)):
        drop(call, output)
        b.ret(b.null())
    with b.if_(b.ne(output.given, b.null())):
        call.incref(output.array)
        b.ret(output.array)
    if output.second is not None:
        with b.if_(b.ne(output.second, b.null())):
            b.ret(_pair(call, output, output.second))
    b.ret(fresh)


def _pair(call: Call, output: Output, second: Value) -> Value:
    """A tuple that takes over both arrays; NULL without memory for it."""
    b = call.b
    made = b.call_at(call.word("new_tuple"), PTR, b.const(I64, 2))
    with b.if_(b.is_null(made)):
        drop(call, output)
        b.ret(made)
    items = b.element(made, layout.TUPLE_ITEMS, "i8")
    b.store_word(output.array, items, 0)
    b.store_word(second, items, 1)
    return made
