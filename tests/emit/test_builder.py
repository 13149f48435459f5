"""The IR builder: each construct, compiled and run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from camshaft.backends.cpu.compile import assembly, compile_module, load_object
from camshaft.emit.llvm.builder import F32, F64, I1, I32, I64, PTR, VOID, Builder, Module, Value
from camshaft.errors import KernelError

CTYPES = {I64: ctypes.c_int64, I32: ctypes.c_int32, PTR: ctypes.c_void_p, F64: ctypes.c_double, VOID: None}


def built(body: Callable[..., None], result: str, *types: str) -> Callable[..., int]:
    """The function that `body` writes, compiled."""
    module = Module()
    module.define(body, result, *types, name="function")
    return loaded(module, result, *types)


def loaded(module: Module, result: str, *types: str) -> Callable[..., int]:
    library = load_object(compile_module(module.text()))
    function = ctypes.CFUNCTYPE(CTYPES[result], *(CTYPES[t] for t in types))(library.address("function"))
    return lambda *args: (library, function(*args))[1]


@pytest.mark.parametrize(
    ("write", "wanted"),
    [
        (lambda b, x, y: x + y, 17),
        (lambda b, x, y: x - 20, -3 - 5),
        (lambda b, x, y: (x * y) & 63, 60),
        (lambda b, x, y: x // y, 2),
        (lambda b, x, y: x % y, 2),
        (lambda b, x, y: (x | 3) ^ (x >> 1), 15 ^ 6),
        (lambda b, x, y: b.smin(x, b.const(I64, -1)), -1),
        (lambda b, x, y: b.umin(x, b.const(I64, -1)), 12),
        (lambda b, x, y: b.select(b.slt(x, y), x, y), 5),
        (lambda b, x, y: b.select(b.ult(y, x), 1, 2), 1),
        (lambda b, x, y: b.cast("sext", b.cast("trunc", x + 2**32, I32), I64), 12),
        (lambda b, x, y: b.cast("fptosi", b.cast("sitofp", x, F64), I64), 12),
        (lambda b, x, y: b.cast("zext", b.all(b.eq(x, 12), b.ne(y, x), b.sle(y, 5)), I64), 1),
        (lambda b, x, y: b.cast("zext", b.all(b.ule(x, 12), b.is_null(b.null()), b.const(I1, 0)), I64), 0),
    ],
)
def test_values(write: Callable[..., Value], wanted: int) -> None:
    x, y = (12, 5)
    assert built(lambda b, x, y: b.ret(write(b, x, y)), I64, I64, I64)(x, y) == wanted


def test_branches_set_variables_and_may_return() -> None:
    def sign(b: Builder, x: Value) -> None:
        found = b.var(I64, 0)
        with b.if_(b.slt(x, 0)):
            found.set(-1)
        with b.else_(), b.if_(b.ne(x, 0)):
            with b.if_(b.eq(x, 7)):
                b.ret(b.const(I64, 77))
            with b.else_():
                found.set(1)
        b.ret(found.value)

    function = built(sign, I64, I64)
    assert [function(x) for x in (-5, 0, 3, 7)] == [-1, 0, 1, 77]


def test_a_function_all_of_whose_branches_return() -> None:
    def pick(b: Builder, x: Value) -> None:
        with b.if_(b.eq(x, 1)):
            b.ret(b.const(I64, 10))
        with b.else_():
            b.ret(b.const(I64, 20))

    function = built(pick, I64, I64)
    assert [function(x) for x in (1, 2)] == [10, 20]


def test_else_without_its_if_is_an_error() -> None:
    def wrong(b: Builder, x: Value) -> None:
        with b.if_(b.eq(x, 1)):
            b.ret()
        b.store(x, b.alloca(I64))
        with b.else_():
            b.ret()

    with pytest.raises(KernelError, match="right after an if_"):
        Module().define(wrong, VOID, I64)


def test_loops_count_and_are_left() -> None:
    def steps(b: Builder, x: Value) -> None:
        """Turns of Collatz's sequence, and the sum of 0 ... turns - 1 added to it."""
        n, turns, total = b.var(I64, x), b.var(I64, 0), b.var(I64, 0)
        with b.loop() as done:
            b.goto_if(b.eq(n.value, 1), done)
            n.set(b.select(b.eq(n.value % 2, 0), n.value // 2, n.value * 3 + 1))
            turns.set(turns.value + 1)
        with b.for_(0, turns.value) as i:
            total.set(total.value + i)
        b.ret(turns.value * 1000 + total.value)

    function = built(steps, I64, I64)
    assert [function(x) for x in (1, 2, 6)] == [0, 1000, 8000 + 28]


def test_labels_are_jumped_to_from_anywhere() -> None:
    def checked(b: Builder, x: Value) -> None:
        slow = b.label("slow")
        b.goto_unless(b.slt(x, 100), slow)
        with b.for_(0, x) as i:
            b.goto_if(b.eq(i, 13), slow)
        b.ret(x)
        b.open(slow)
        b.ret(b.const(I64, -1))

    function = built(checked, I64, I64)
    assert [function(x) for x in (5, 14, 100)] == [5, -1, -1]


def test_memory_by_field_word_and_element() -> None:
    def move(b: Builder, words: Value) -> None:
        b.store_word(b.load_word(words, 1) + b.load_field(words, 8), words, 0)
        b.store(b.cast("fptrunc", b.load_word(words, 2, F64), F32), b.element(words, 24, "i8"))
        room = b.alloca("[2 x i64]", align=64)
        b.store_word(b.cast("ptrtoint", room, I64) & 63, words, 4)

    words = np.array([0, 21, 0, 0, 9], np.int64)
    words[2:3].view(np.float64)[0] = 2.5
    built(move, VOID, PTR)(words.ctypes.data)
    assert words[[0, 1, 4]].tolist() == [42, 21, 0]
    assert words[3:4].view(np.float32)[0] == 2.5


def test_atomics() -> None:
    def step(b: Builder, word: Value) -> None:
        seen = b.load(I32, word, "acquire")
        b.store(seen + 1, word, "seq_cst")
        before = b.fetch("add", word, b.const(I32, 5), "acq_rel")
        b.fetch("sub", word, b.const(I32, 1), "monotonic")
        b.ret(before)

    word = np.array([3], np.int32)
    assert built(step, I32, PTR)(word.ctypes.data) == 4
    assert word[0] == 8


def test_calls_by_name_and_by_address() -> None:
    module = Module()

    def twice(b: Builder, x: Value) -> None:
        b.ret(x * 2)

    def note(b: Builder, x: Value) -> None:
        b.store(x, b.address("last"))

    def function(b: Builder, other: Value, x: Value) -> None:
        b.call("note", b.call_at(other, I64, x) + b.call("twice", x))
        b.ret(b.load(I64, b.address("last")))

    module.global_("last", I64, "0")
    module.define(twice, I64, I64, linkage="internal", attributes="alwaysinline")
    module.define(note, VOID, I64, linkage="internal", attributes="noinline")
    module.define(function, I64, PTR, I64)
    negated = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda x: -x)
    assert loaded(module, I64, PTR, I64)(ctypes.cast(negated, ctypes.c_void_p).value, 21) == 21


def test_a_variadic_call_and_a_declared_function() -> None:
    def product(b: Builder, x: Value) -> None:
        b.module.declare("llvm.smul.with.overflow.i64", "{i64, i1}", I64, I64)
        pair = b.call("llvm.smul.with.overflow.i64", x, x)
        b.ret(b.line(I64, f"extractvalue {pair}, 0"))

    assert built(product, I64, I64)(7) == 49
    module = Module()
    module.define(lambda b, f, x: b.ret(b.call_at(f, I64, x, x, variadic=I64)), I64, PTR, I64, name="function")
    assert "call i64 (i64, ...)" in module.text()


def test_variables_become_registers() -> None:
    def total(b: Builder, words: Value, n: Value) -> None:
        found = b.var(I64, 0)
        with b.for_(0, n) as i:
            found.set(found.value ^ (b.load_word(words, i) >> found.value))
        b.ret(found.value)

    module = Module()
    module.define(total, I64, PTR, I64)
    assert "rsp" not in assembly(module.text())
