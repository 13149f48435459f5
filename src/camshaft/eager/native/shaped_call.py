"""The function that CPython calls for an op whose kernels are compiled for each shape.

As call.py's, but what was compiled is found by the inputs' dtypes and shapes: their words are hashed to one row of a table and
compared with it. A row names the output and the steps: entries with the places of their arguments. Inputs are contiguous and
`out` lies apart from them, or just where one does that the row lets be written; anything else, and a row that is another
shape's, goes to the op's Python function.
"""

from __future__ import annotations

from camshaft.eager.native import cpython_abi as layout
from camshaft.eager.native.call_state import ROWS_AT, Call, Row, native_call
from camshaft.eager.native.output import Output, Span, made_or_given
from camshaft.eager.native.shape_table import (
    ATTRIBUTE_WORDS,
    KEY_WORDS,
    MOST_ATTRIBUTES,
    MOST_AXES,
    MULTIPLIER,
    N_BASES,
    ROW,
    ROW_BITS,
    ROW_WORDS,
)
from camshaft.eager.native.shaped_run import run_row
from camshaft.emit.llvm.builder import I1, I32, I64, PTR, VOID, Value

_USABLE = layout.C_ORDER | layout.ALIGNED


def shaped_ir(symbol: str, n: int, slot: int) -> str:
    """The function for n inputs. `slot` is where `self` keeps the ndarray of its state, in bytes."""
    return native_call(symbol, slot, lambda call: _shaped(call, n))


def _shaped(call: Call, n: int) -> None:
    b, n_words = call.b, n * KEY_WORDS + ATTRIBUTE_WORDS
    key, bases = b.alloca(f"[{n_words} x i64]"), b.alloca(f"[{N_BASES} x i64]")
    b.intrinsic("llvm.memset.p0.i64", VOID, key, b.const("i8", 0), b.const(I64, 8 * n_words), b.const(I1, 0))
    out = _given_out(call, n, key)
    data = [_input(call, i, b.element(key, i * KEY_WORDS)) for i in range(n)]
    for i, value in enumerate(data):
        b.store_word(value, bases, i)
    row = _find(call, n, key)
    run_row(call, row, _output(call, row, out, data), bases)


def _given_out(call: Call, n: int, key: Value) -> Value:
    """`out` or NULL: by keyword, after n inputs by position, beside a few attributes, which are a part of the key."""
    b, out, place = call.b, call.b.var(PTR, call.b.null()), call.b.var(I64, n * KEY_WORDS)
    call.need(b.eq(call.n, n))
    with b.if_(b.ne(call.names, b.null())):
        count, out_name = b.load_field(call.names, layout.TUPLE_SIZE), call.word("out_name")
        call.need(b.ule(count, MOST_ATTRIBUTES + 1))
        items, values = b.element(call.names, layout.TUPLE_ITEMS, "i8"), b.element(call.args, n)
        with b.for_(0, count) as i:
            name, value = b.load_word(items, i, PTR), b.load_word(values, i, PTR)
            with b.if_(b.eq(name, out_name)):
                out.set(value)
            with b.else_():
                at = place.value
                call.need(b.ult(at, n * KEY_WORDS + ATTRIBUTE_WORDS))
                b.store_word(name, key, at)
                b.store_word(value, key, at + 1)
                place.set(at + 2)
    return out.value


def _input(call: Call, i: int, key: Value) -> Value:
    """The address of an exact ndarray, contiguous, with few axes, whose part of the key is written."""
    b, x = call.b, call.b.load_word(call.args, i, PTR)
    call.need(b.eq(b.load_field(x, layout.TYPE, PTR), call.word("array_type")))
    axes, dims = b.cast("zext", b.load_field(x, layout.ND, I32), I64), b.load_field(x, layout.DIMENSIONS, PTR)
    call.need(b.eq(b.load_field(x, layout.FLAGS, I32) & _USABLE, _USABLE), b.ule(axes, MOST_AXES))
    b.store_word(b.load_field(x, layout.DESCR), key, 0)
    b.store_word(axes, key, 1)
    with b.for_(0, axes) as axis:
        b.store_word(b.load_word(dims, axis), key, axis + 2)
    return b.load_field(x, layout.DATA, PTR)


def _find(call: Call, n: int, key: Value) -> Row:
    """The row that the key's hash names, or the one beside it, which must have the very key."""
    b, hashed = call.b, call.b.const(I64, 0)
    names = [f"key{i}" for i in range(n * KEY_WORDS)] + [f"attribute{i}" for i in range(ATTRIBUTE_WORDS)]
    words = [b.load_word(key, i) for i in range(len(names))]
    for word in words:
        hashed = (hashed ^ word) * (MULTIPLIER - 2**64)
    index = hashed >> (64 - ROW_BITS)
    probed = b.var(I64, index)
    with b.loop() as found:
        row = Row(b, b.element(call.state, probed.value * ROW_WORDS + ROWS_AT), ROW)
        differs = b.const(I64, 0)
        for name, word in zip(names, words, strict=True):
            differs = differs | (word ^ row.word(name))
        b.goto_if(b.eq(differs, 0), found)
        call.need(b.eq(probed.value, index))
        probed.set(index ^ 1)
    return row


def _output(call: Call, row: Row, out: Value, data: list[Value]) -> Output:
    """`out`, which overlaps no input, or a new array of the row's dtype and sizes."""
    b, dtype, axes = call.b, row.word("out_dtype", PTR), row.word("out_axes")
    sizes = b.element(row.at, ROW.index("out_size0"))

    def made() -> Value:
        empty = call.word("empty")
        call.need(b.ne(empty, b.null()), b.ne(call.word("scalar_of"), b.null()))
        call.incref(dtype)
        return b.call_at(empty, PTR, b.cast("trunc", axes, I32), sizes, dtype, b.const(I32, 0))

    def apart(place: Value) -> None:
        span = Span.of(b, place, row.word("out_nbytes"))
        in_place = [b.ne(row.word(f"in_place{i}"), 0) for i in range(len(data))]
        call.need(*(span.clear_of(x, row.word(f"nbytes{i}"), in_place[i]) for i, x in enumerate(data)))

    return made_or_given(call, out, dtype, axes, sizes, layout.C_ORDER, made, apart)
