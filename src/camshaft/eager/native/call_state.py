"""The state of a native call: its layout, and LLVM IR that reads its fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from camshaft.eager.native import cpython_abi as layout
from camshaft.emit.llvm.builder import I64, PTR, VOID, Builder, Module, Value

# The state, int64 words: functions and objects of CPython and NumPy, then a row for each dtype that has a kernel.
WORDS = (
    "n_rows",
    "array_type",
    "float_type",
    "int_type",
    "int_value",
    "new_copy",
    "slow",
    "out_name",
    "vectorcall",
    "incref",
    "decref",
    "save_thread",
    "restore_thread",
    "new_like",
    "pool",
    "long_from_address",
    "empty",
    "scalar_of",
    "take_memory",
    "free_memory",
    "new_tuple",
)
ROWS_AT, ROW_WORDS = 24, 24
# A row: dtypes and types of scalars (by their address) and bytes an element of inputs and output, elements of a program; from how
# many elements on the lock is released, and the work shared; how a Python number is stored, and the ints that can be; then an
# entry for each set of inputs that are one element (bit i for input i).
ROW = (
    "dtype0",
    "dtype1",
    "dtype2",
    "out_dtype",
    "scalar0",
    "scalar1",
    "scalar2",
    "nbytes0",
    "nbytes1",
    "nbytes2",
    "out_nbytes",
    "block",
    "release",
    "share",
    "number",
    "least",
    "most",
)
ENTRIES = len(ROW)
NO_FLOAT, AS_F32, AS_F64 = range(3)  # ints are stored as 8 bytes, of which the first are those of a narrower one


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
