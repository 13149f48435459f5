"""LLVM IR of a native call: around its quick part, of reads of its state, and of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from camshaft.eager.native import cpython_abi as layout
from camshaft.eager.native.state_layout import ROW, ROW_WORDS, ROWS_AT, WORDS
from camshaft.emit.llvm.builder import F64, I1, I32, I64, PTR, VOID, Builder, Module, Value


# Named tuples: to define a dataclass takes 0.5 ms of a start.
class Call(NamedTuple):
    """A call: CPython's arguments, the state, and the label of the code that calls the op's Python function."""

    b: Builder
    holder: Value
    args: Value
    n: Value
    names: Value
    state: Value
    slow: str

    def word(self, name: str, kind: str = PTR) -> Value:
        """A word of the state."""
        return self.b.load_word(self.state, WORDS.index(name), kind)

    def need(self, *conditions: Value) -> None:
        """Jumps to `slow` unless all are true."""
        self.b.goto_unless(self.b.all(*conditions), self.slow)

    def incref(self, held: Value) -> None:
        self.b.call_at(self.word("incref"), VOID, held)

    def decref(self, held: Value) -> None:
        self.b.call_at(self.word("decref"), VOID, held)


class Row(NamedTuple):
    """A row of the state, whose words have these names."""

    b: Builder
    at: Value
    names: tuple[str, ...]

    def word(self, name: str, kind: str = I64) -> Value:
        return self.b.load_word(self.at, self.names.index(name), kind)


def native_call(symbol: str, slot: int, write: Callable[[Call], None]) -> str:
    """The module of PyObject *symbol(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names), whose quick part
    `write` writes. `slot` is where `self` keeps the ndarray of its state, in bytes."""

    def body(b: Builder, holder: Value, args: Value, n: Value, names: Value) -> None:
        state = b.load_field(b.load_field(holder, slot, PTR), layout.DATA, PTR)
        call = Call(b, holder, args, n, names, state, b.label("slow"))
        write(call)
        b.open(call.slow)
        b.ret(b.call_at(call.word("vectorcall"), PTR, call.word("slow"), args, n, names))

    module = Module()
    module.define(body, PTR, PTR, PTR, I64, PTR, name=symbol, attributes="nounwind")
    return module.text()


# Elements up to which strided inputs are copied natively, one after the other, without releasing the GIL.
MOST_COPIED = 1 << 16


class Input(NamedTuple):
    """An ndarray's own fields, or those of a number: `single`. A Python number is `weak`; it is `real` or `whole`, and is put
    into `slot`, where `data` points, once its format is known."""

    held: Value
    type: Value
    slot: Value
    data: Value
    nd: Value
    dims: Value
    dtype: Value
    flags: Value
    real: Value
    whole: Value
    is_real: Value
    is_weak: Value
    single: Value
    order: Value


class Shape(NamedTuple):
    """What inputs of more than one element have in common: one of them, the sizes, and the memory-order flags."""

    like: Value
    dims: Value
    axes: Value
    total: Value
    order: Value


def given_out(call: Call, n: int) -> Value:
    """`out`, which comes after n inputs by position or as the only keyword; NULL where it was not given."""
    b, out = call.b, call.b.var(PTR, call.b.null())
    with b.if_(b.is_null(call.names)):
        with b.if_(b.eq(call.n, n + 1)):
            out.set(b.load_word(call.args, n, PTR))
        with b.else_():
            call.need(b.eq(call.n, n))
    with b.else_():
        name = b.load_field(call.names, layout.TUPLE_ITEMS, PTR)
        one = b.eq(b.load_field(call.names, layout.TUPLE_SIZE), 1)
        call.need(one, b.eq(name, call.word("out_name")), b.eq(call.n, n))
        out.set(b.load_word(call.args, n, PTR))
    return out.value


def read_input(call: Call, i: int) -> Input:
    """Argument i: an ndarray, a float, an int, or a NumPy scalar if a row knows its type."""
    b = call.b
    held, slot = b.load_word(call.args, i, PTR), b.alloca(F64)
    kind = b.load_field(held, layout.TYPE, PTR)
    data, dims, dtype = b.var(PTR, slot), b.var(PTR, b.null()), b.var(PTR, b.null())
    nd, flags = b.var(I32, 0), b.var(I32, -1)
    real, whole = b.var(F64, b.const(F64, 0.0)), b.var(I64, 0)
    is_real, is_weak = b.var(I1, 0), b.var(I1, 0)
    with b.if_(b.eq(kind, call.word("array_type"))):
        for field, offset in (
            (data, layout.DATA),
            (nd, layout.ND),
            (dims, layout.DIMENSIONS),
            (dtype, layout.DESCR),
            (flags, layout.FLAGS),
        ):
            field.set(b.load_field(held, offset, field.type))
    with b.else_():
        with b.if_(b.eq(kind, call.word("float_type"))):
            real.set(b.load_field(held, layout.FLOAT_VALUE, F64))
            is_real.set(1)
            is_weak.set(1)
        with b.else_():
            with b.if_(b.eq(kind, call.word("int_type"))):
                overflow = b.alloca(I32)
                whole.set(b.call_at(call.word("int_value"), I64, held, overflow))
                call.need(b.eq(b.load(I32, overflow), 0))
                real.set(b.cast("sitofp", whole.value, F64))
                is_weak.set(1)
            with b.else_():
                data.set(b.element(held, layout.SCALAR_VALUE, "i8"))
    found = {"data": data, "nd": nd, "dims": dims, "dtype": dtype, "flags": flags}
    found |= {"real": real, "whole": whole, "is_real": is_real, "is_weak": is_weak}
    values = {name: variable.value for name, variable in found.items()}
    single = b.eq(values["nd"], 0)
    return Input(held, kind, slot, **values, single=single, order=b.select(single, -1, values["flags"]))


def reference(call: Call, inputs: list[Input]) -> Input:
    """The first input that is more than one element, as far as its object and its sizes go."""
    b = call.b
    first = inputs[-1]
    for x in reversed(inputs[:-1]):
        chosen = {name: b.select(x.single, getattr(first, name), getattr(x, name)) for name in ("held", "dims", "nd")}
        first = first._replace(**chosen)
    b.goto_if(b.all(*(x.single for x in inputs)), call.slow)
    return first


def find_row(call: Call, inputs: list[Input]) -> Row:
    """The row of the inputs' dtypes; a Python number goes with any."""
    b, found = call.b, call.b.label("found")
    with b.for_(0, call.word("n_rows", I64)) as r:
        row = Row(b, b.element(call.state, r * ROW_WORDS + ROWS_AT), ROW)
        right = []
        for i, x in enumerate(inputs):
            strong = b.eq(x.dtype, row.word(f"dtype{i}", PTR)) | b.eq(x.type, row.word(f"scalar{i}", PTR))
            right.append(x.is_weak | strong)
        b.goto_if(b.all(*right), found)
    b.goto(call.slow)
    b.open(found)
    return row


def same_sizes(call: Call, axes: Value, wanted: Value, *others: Value) -> Value:
    """The product of the sizes; all must be those of `wanted`."""
    b, total = call.b, call.b.var(I64, 1)
    with b.for_(0, axes) as axis:
        size = b.load_word(wanted, axis)
        total.set(total.value * size)
        call.need(*(b.eq(b.load_word(dims, axis), size) for dims in others))
    return total.value


def agreed(call: Call, inputs: list[Input], first: Input, row: Row) -> Shape:
    """Numbers that the row takes, aligned arrays, the same sizes and at least one element."""
    b = call.b
    takes_real = b.ne(row.word("number"), 0)
    least, most = row.word("least"), row.word("most")
    fine = []
    for x in inputs:
        held = b.select(x.is_real, takes_real, b.sle(least, x.whole) & b.sle(x.whole, most))
        fine += [held | (x.is_weak ^ 1), b.ne(x.flags & layout.ALIGNED, 0), x.single | b.eq(x.nd, first.nd)]
    call.need(*fine)
    axes, order = b.cast("zext", first.nd, I64), b.const(I32, layout.C_ORDER | layout.F_ORDER)
    total = same_sizes(call, axes, first.dims, *(b.select(x.single, first.dims, x.dims) for x in inputs))
    for x in inputs:
        order = order & x.order
    call.need(b.ne(total, 0))
    return Shape(first.held, first.dims, axes, total, order)


def copied_call(call: Call, symbol: str, inputs: list[Input], out: Value, shape: Shape) -> None:
    """A small call with strided inputs is the same call with contiguous copies of them."""
    b = call.b
    call.need(b.ult(shape.total, MOST_COPIED), b.ne(call.word("new_copy"), b.null()))
    args = b.alloca(f"[{len(inputs) + 1} x ptr]")
    b.store_word(out, args, len(inputs))
    call_with_copies(call, symbol, args, [(x.held, x.order) for x in inputs])


def call_with_copies(call: Call, symbol: str, args: Value, inputs: Sequence[tuple[Value, Value]]) -> None:
    """Returns the call of `symbol` with `args`, whose first places it sets: to each input, or to a contiguous copy of it if its
    flags say that its elements are in another order. What follows in `args` is set already."""
    b, new_copy, given = call.b, call.word("new_copy"), []
    for i, (held, flags) in enumerate(inputs):
        copy = b.var(PTR, held)
        with b.if_(b.ne(flags & layout.C_ORDER, 0)):
            call.incref(held)
        with b.else_():
            copy.set(b.call_at(new_copy, PTR, held, b.const(I32, 0)))
        given.append(copy.value)
        b.store_word(given[-1], args, i)
    answer = b.var(PTR, b.null())
    with b.if_(b.all(*(b.ne(x, b.null()) for x in given))):
        answer.set(b.call(symbol, call.holder, args, call.n, call.names))
    for one in given:
        with b.if_(b.ne(one, b.null())):
            call.decref(one)
    b.ret(answer.value)
