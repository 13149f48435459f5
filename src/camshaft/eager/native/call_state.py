"""LLVM IR of a native call around its quick part, and of reads of its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from camshaft.eager.native import cpython_abi as layout
from camshaft.eager.native.state_layout import WORDS
from camshaft.emit.llvm.builder import I64, PTR, VOID, Builder, Module, Value


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
