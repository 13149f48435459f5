"""LLVM IR of the function that CPython calls for an op with a kernel per shape: look up, launch, return.

Unlike call.py's, it hashes the inputs' dtypes and shapes to one of two rows of a table and compares them. A row has the
output's dtype and sizes, those of a second one if there is one, and the steps: entries with the places of their arguments.
Inputs are contiguous, or small and copied first; `out`, of an op with one output, overlaps none, or starts where an input does
that the row allows to be overwritten. All else, and shapes without a row, goes to the op's Python function.
"""

from __future__ import annotations

from camshaft.eager.native import cpython_abi as layout
from camshaft.eager.native.inputs import MOST_COPIED, Call, Row, call_with_copies, native_call
from camshaft.eager.native.output import Output, Span, drop, made_or_given, returned, shared, unlocked
from camshaft.eager.native.state_layout import (
    ATTRIBUTE_WORDS,
    KEY_WORDS,
    LAUNCH_WORDS,
    MOST_ARGUMENTS,
    MOST_ATTRIBUTES,
    MOST_AXES,
    MOST_STEPS,
    MULTIPLIER,
    N_BASES,
    NO_BASE,
    OUT_BASE,
    ROWS_AT,
    SCRATCH_BASE,
    SHAPED_ROW,
    SHAPED_ROW_BITS,
    SHAPED_ROW_WORDS,
    STEP_WORDS,
)
from camshaft.emit.llvm.builder import I1, I32, I64, PTR, VOID, Builder, Value

_USABLE = layout.C_ORDER | layout.ALIGNED


def shaped_ir(symbol: str, n: int, slot: int) -> str:
    """The function for n inputs. `slot` is where `self` keeps the ndarray of its state, in bytes."""
    return native_call(symbol, slot, lambda call: _shaped(call, symbol, n))


def _copied_call(call: Call, symbol: str, n: int) -> None:
    """A small call with arrays that are not contiguous is the same call with contiguous copies of them."""
    b, new_copy, total = call.b, call.word("new_copy"), call.b.var(I64, 0)
    call.need(b.eq(call.n, n), b.ne(new_copy, b.null()))
    inputs = [b.load_word(call.args, i, PTR) for i in range(n)]
    call.need(*(b.eq(b.load_field(x, layout.TYPE, PTR), call.word("array_type")) for x in inputs))
    flags = [b.load_field(x, layout.FLAGS, I32) for x in inputs]
    every = b.const(I32, layout.C_ORDER)
    for own in flags:
        every = every & own
    with b.if_(b.eq(every, 0)):
        for x in inputs:
            axes, dims = b.cast("zext", b.load_field(x, layout.ND, I32), I64), b.load_field(x, layout.DIMENSIONS, PTR)
            size = b.var(I64, 1)
            with b.for_(0, axes) as axis:
                size.set(size.value * b.load_word(dims, axis))
            total.set(total.value + size.value)
        call.need(b.ult(total.value, MOST_COPIED), *(b.ne(own & layout.ALIGNED, 0) for own in flags))
        _call_with_copies(call, symbol, inputs, flags)


def _call_with_copies(call: Call, symbol: str, inputs: list[Value], flags: list[Value]) -> None:
    b, named = call.b, call.b.var(I64, 0)
    with b.if_(b.ne(call.names, b.null())):
        named.set(b.load_field(call.names, layout.TUPLE_SIZE))
    call.need(b.ule(named.value, MOST_ATTRIBUTES + 1))
    args = b.alloca(f"[{len(inputs) + MOST_ATTRIBUTES + 1} x ptr]")
    with b.for_(0, named.value) as keyword:
        place = keyword + len(inputs)
        b.store_word(b.load_word(call.args, place, PTR), args, place)
    call_with_copies(call, symbol, args, list(zip(inputs, flags, strict=True)))


def _shaped(call: Call, symbol: str, n: int) -> None:
    _copied_call(call, symbol, n)
    b, n_words = call.b, n * KEY_WORDS + ATTRIBUTE_WORDS
    key, bases = b.alloca(f"[{n_words} x i64]"), b.alloca(f"[{N_BASES} x i64]")
    b.intrinsic("llvm.memset.p0.i64", VOID, key, b.const("i8", 0), b.const(I64, 8 * n_words), b.const(I1, 0))
    out = _given_out(call, n, key)
    data = [_input(call, i, b.element(key, i * KEY_WORDS)) for i in range(n)]
    for i, value in enumerate(data):
        b.store_word(value, bases, i)
    row = _find(call, n, key)
    call.need(b.is_null(out) | b.is_null(row.word("second_dtype", PTR)))
    run_row(call, row, _with_second(call, row, _output(call, row, out, data), bases), bases)


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
    """The row at the key's hash, or the one beside it, whichever has this key."""
    b, hashed = call.b, call.b.const(I64, 0)
    names = [f"key{i}" for i in range(n * KEY_WORDS)] + [f"attribute{i}" for i in range(ATTRIBUTE_WORDS)]
    words = [b.load_word(key, i) for i in range(len(names))]
    for word in words:
        hashed = (hashed ^ word) * (MULTIPLIER - 2**64)
    index = hashed >> (64 - SHAPED_ROW_BITS)
    probed = b.var(I64, index)
    with b.loop() as found:
        row = Row(b, b.element(call.state, probed.value * SHAPED_ROW_WORDS + ROWS_AT), SHAPED_ROW)
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
    sizes = b.element(row.at, SHAPED_ROW.index("out_size0"))

    def made() -> Value:
        call.need(b.ne(call.word("empty"), b.null()), b.ne(call.word("scalar_of"), b.null()))
        return _empty(call, dtype, axes, sizes)

    def apart(place: Value) -> None:
        span = Span.of(b, place, row.word("out_nbytes"))
        in_place = [b.ne(row.word(f"in_place{i}"), 0) for i in range(len(data))]
        call.need(*(span.clear_of(x, row.word(f"nbytes{i}"), in_place[i]) for i, x in enumerate(data)))

    return made_or_given(call, out, dtype, axes, sizes, layout.C_ORDER, made, apart)


def _empty(call: Call, dtype: Value, axes: Value, sizes: Value) -> Value:
    """A new array, or NULL with Python's error set."""
    b = call.b
    call.incref(dtype)
    return b.call_at(call.word("empty"), PTR, b.cast("trunc", axes, I32), sizes, dtype, b.const(I32, 0))


def _with_second(call: Call, row: Row, output: Output, bases: Value) -> Output:
    """The output with the row's second one, if it has one, whose data is then a base."""
    b, second, dtype = call.b, call.b.var(PTR, call.b.null()), row.word("second_dtype", PTR)
    with b.if_(b.ne(dtype, b.null())):
        made = _empty(call, dtype, row.word("second_axes"), b.element(row.at, SHAPED_ROW.index("second_size0")))
        with b.if_(b.is_null(made)):
            drop(call, output)
            b.ret(made)
        second.set(made)
        b.store_word(b.load_field(made, layout.DATA, PTR), bases, OUT_BASE + 1)
    return output._replace(second=second.value)


def run_row(call: Call, row: Row, output: Output, bases: Value) -> None:
    """Runs the row's steps and returns the output. The row is read first: once the GIL is released, another shape may take it."""
    b = call.b
    scratch_nbytes, n_steps, release, share, axes = (
        row.word(name) for name in ("scratch_nbytes", "n_steps", "release", "share", "out_axes")
    )
    steps = row.word("steps", PTR)
    b.store_word(output.data, bases, OUT_BASE)
    b.store_word(b.const(I64, 0), bases, NO_BASE)
    scratch = _scratch(call, output, scratch_nbytes, bases)
    launches = _launches(b, steps, n_steps, bases)
    ran = b.var(I1, 1)
    with b.if_(b.ne(share, 0)):
        ran.set(shared(call, launches, n_steps))
    with b.else_():
        with b.if_(b.eq(release, 0)):
            _run_steps(b, launches, n_steps)
        with b.else_():
            unlocked(call, lambda: _run_steps(b, launches, n_steps))
    with b.if_(b.ne(scratch, b.null())):
        b.call_at(call.word("free_memory"), VOID, scratch)
    with b.if_(b.all(ran.value, b.is_null(output.given), b.eq(axes, 0))):
        b.ret(b.call_at(call.word("scalar_of"), PTR, output.array))  # takes over the array
    returned(call, output, ran.value, output.array)


def _scratch(call: Call, output: Output, nbytes: Value, bases: Value) -> Value:
    """Memory allocated for this call alone, or NULL if it needs none."""
    b, taken = call.b, call.b.var(PTR, call.b.null())
    with b.if_(b.ne(nbytes, 0)):
        taken.set(b.call_at(call.word("take_memory"), PTR, nbytes))
        with b.if_(b.is_null(taken.value)):
            drop(call, output)
            b.goto(call.slow)
        b.store_word((b.cast("ptrtoint", taken.value, I64) + 63) & -64, bases, SCRATCH_BASE)
    return taken.value


def _launches(b: Builder, steps: Value, n_steps: Value, bases: Value) -> Value:
    """The steps as launches, each with its argument block: bases with bytes added."""
    launches = b.alloca(f"[{MOST_STEPS * LAUNCH_WORDS} x i64]", align=16)
    blocks = b.alloca(f"[{MOST_STEPS * MOST_ARGUMENTS} x i64]", align=64)
    with b.for_(0, n_steps) as s:
        step = b.element(steps, s * STEP_WORDS)
        block, launch = b.element(blocks, s * MOST_ARGUMENTS), b.element(launches, s * LAUNCH_WORDS)
        for word, value in enumerate((b.load(PTR, step), block, b.load_word(step, 1))):
            b.store_word(value, launch, word)
        pairs = b.element(step, 3)
        with b.for_(0, b.load_word(step, 2)) as i:
            pair = b.element(pairs, i * 2)
            b.store_word(b.load_word(bases, b.load(I64, pair)) + b.load_word(pair, 1), block, i)
    return launches


def _run_steps(b: Builder, launches: Value, n: Value) -> None:
    with b.for_(0, n) as i:
        launch = b.element(launches, i * LAUNCH_WORDS)
        block, programs = b.load_word(launch, 1, PTR), b.load_word(launch, 2)
        b.call_at(b.load(PTR, launch), VOID, block, b.const(I64, 0), programs)
