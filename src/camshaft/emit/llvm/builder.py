"""Builds functions in LLVM IR: typed values, variables, and `if_`, `else_`, `loop` and `for_` as blocks of Python.

It writes text, which LLVM parses faster than Python can build an IR of objects. Variables are allocas at the function's entry;
LLVM's passes turn them into registers, so no function here writes a phi.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from camshaft.emit.llvm.basic_blocks import BasicBlocks

VOID, PTR, I1, I32, I64, F32, F64 = "void", "ptr", "i1", "i32", "i64", "float", "double"
_NBYTES = {I32: 4, I64: 8, PTR: 8}


def _operator(opcode: str) -> Callable[[Value, Operand], Value]:
    return lambda self, other: self.builder.op(opcode, self, other)


class Value:
    """An operand: LLVM's type, and a name or literal. Integers wrap; `//`, `%` and `>>` are unsigned."""

    __slots__ = ("builder", "name", "type")
    __add__, __sub__, __mul__ = _operator("add"), _operator("sub"), _operator("mul")
    __floordiv__, __mod__, __rshift__ = _operator("udiv"), _operator("urem"), _operator("lshr")
    __and__, __or__, __xor__ = _operator("and"), _operator("or"), _operator("xor")

    def __init__(self, builder: Builder, kind: str, name: str) -> None:
        self.builder, self.type, self.name = builder, kind, name

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


Operand: TypeAlias = Value | int


class Variable:
    """A mutable variable of one type, read as `value` and written with `set`."""

    __slots__ = ("at", "builder", "type")

    def __init__(self, builder: Builder, kind: str, at: Value) -> None:
        self.builder, self.type, self.at = builder, kind, at

    @property
    def value(self) -> Value:
        return self.builder.load(self.type, self.at)

    def set(self, value: Operand) -> None:
        self.builder.store(self.builder.lift(value, self.type), self.at)


def _comparison(predicate: str) -> Callable[[Builder, Value, Operand], Value]:
    def compare(self: Builder, a: Value, b: Operand) -> Value:
        return self.line(I1, f"icmp {predicate} {a}, {self.lift(b, a.type).name}")

    return compare


def _access(text: str, kind: str, atomic: str) -> str:
    return f"atomic {text} {atomic}, align {_NBYTES[kind]}" if atomic else text


class Module:
    """Functions under construction, which call each other by name, and their declarations."""

    def __init__(self) -> None:
        self.results: dict[str, str] = {}
        self.declarations: dict[str, str] = {}
        self._functions: list[str] = []

    def declare(self, name: str, result: str, *types: str) -> None:
        """Declare a function of LLVM or of another module."""
        self.results[name] = result
        self.declarations[name] = f"declare {result} @{name}({', '.join(types)})"

    def global_(self, name: str, kind: str, start: str) -> None:
        """Add a variable of the module; its address is `Builder.address(name)`."""
        self.declarations[name] = f"@{name} = internal global {kind} {start}"

    def define(
        self,
        body: Callable[..., None],
        result: str,
        *types: str,
        name: str = "",
        linkage: str = "",
        attributes: str = "",
    ) -> None:
        """Add the function that `body(builder, *parameters)` writes, named `name` or like `body`. A void one need not return."""
        name = name or body.__name__
        self.results[name] = result
        builder = Builder(self)
        parameters = [Value(builder, kind, builder.fresh()) for kind in types]
        body(builder, *parameters)
        head = " ".join(part for part in ("define", linkage, result) if part)
        text = f"{head} @{name}({', '.join(map(str, parameters))}) {attributes}"
        self._functions.append(f"{text} {{\n{builder.text(result)}}}\n")

    def text(self) -> str:
        return "\n".join([*self.declarations.values(), *self._functions])


class Builder(BasicBlocks):
    """Writes one function, block after block. Python integers become constants of the required type."""

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.module = module

    # --- text --------------------------------------------------------------------------------------------------------
    def line(self, kind: str, text: str) -> Value:
        """Write an instruction and return its result."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return Value(self, kind, name)

    def text(self, result: str) -> str:
        if not self._closed:
            self.write("ret void" if result == VOID else "unreachable")
        return "\n".join(["entry:", *self.allocas, *self.lines, ""])

    # --- values ------------------------------------------------------------------------------------------------------
    def const(self, kind: str, value: int | float) -> Value:
        return Value(self, kind, str(value))

    def null(self) -> Value:
        return Value(self, PTR, "null")

    def lift(self, value: Operand, kind: str) -> Value:
        return value if isinstance(value, Value) else self.const(kind, value)

    def op(self, opcode: str, a: Value, b: Operand) -> Value:
        return self.line(a.type, f"{opcode} {a}, {self.lift(b, a.type).name}")

    def cast(self, opcode: str, value: Value, kind: str) -> Value:
        """Convert a value. `opcode`: zext, sext, trunc, sitofp, fptrunc, ptrtoint ..."""
        return self.line(kind, f"{opcode} {value} to {kind}")

    eq, ne = _comparison("eq"), _comparison("ne")
    ult, ule = _comparison("ult"), _comparison("ule")
    slt, sle = _comparison("slt"), _comparison("sle")

    def is_null(self, pointer: Value) -> Value:
        return self.eq(pointer, self.null())

    def select(self, condition: Value, a: Operand, b: Operand) -> Value:
        """One of two values; two constants are i64."""
        kind = next((x.type for x in (a, b) if isinstance(x, Value)), I64)
        return self.line(kind, f"select {condition}, {self.lift(a, kind)}, {self.lift(b, kind)}")

    def all(self, first: Value, *others: Value) -> Value:
        for other in others:
            first = first & other
        return first

    # --- memory ------------------------------------------------------------------------------------------------------
    def alloca(self, kind: str, align: int = 0) -> Value:
        """Allocate stack space for a value of the type, for the whole function."""
        name = self.fresh()
        self.allocas.append(f"  {name} = alloca {kind}" + (f", align {align}" if align else ""))
        return Value(self, PTR, name)

    def var(self, kind: str, start: Operand) -> Variable:
        made = Variable(self, kind, self.alloca(kind))
        made.set(start)
        return made

    def address(self, name: str) -> Value:
        """The address of a variable of the module."""
        return Value(self, PTR, f"@{name}")

    def element(self, pointer: Value, index: Operand, kind: str = I64) -> Value:
        """The address of an element of an array of `kind`."""
        return self.line(PTR, f"getelementptr {kind}, {pointer}, {self.lift(index, I64)}")

    def load(self, kind: str, pointer: Value, atomic: str = "") -> Value:
        """Load a value. `atomic`: LLVM's memory ordering, or empty for an ordinary load."""
        return self.line(kind, f"load {_access(f'{kind}, {pointer}', kind, atomic)}")

    def store(self, value: Value, pointer: Value, atomic: str = "") -> None:
        self.write(f"store {_access(f'{value}, {pointer}', value.type, atomic)}")

    def fetch(self, opcode: str, pointer: Value, value: Value, ordering: str) -> Value:
        """Apply `opcode` (add, sub) with `value` to the memory atomically and return the old value."""
        return self.line(value.type, f"atomicrmw {opcode} {pointer}, {value} {ordering}")

    def load_field(self, pointer: Value, offset_nbytes: int, kind: str = I64) -> Value:
        return self.load(kind, self.element(pointer, offset_nbytes, "i8"))

    def load_word(self, pointer: Value, index: Operand, kind: str = I64) -> Value:
        """An element of an array of 64-bit words."""
        return self.load(kind, self.element(pointer, index))

    def store_word(self, value: Value, pointer: Value, index: Operand) -> None:
        self.store(value, self.element(pointer, index))

    # --- calls -------------------------------------------------------------------------------------------------------
    def call(self, name: str, *arguments: Value) -> Value:
        """Call a function that the module defines or declares."""
        return self._call(self.module.results[name], f"@{name}", arguments)

    def call_at(self, function: Value, result: str, *arguments: Value, variadic: str = "") -> Value:
        """Call a function by its address. `variadic`: the types that C declares before `...`."""
        return self._call(result, function.name, arguments, f" ({variadic}, ...)" if variadic else "")

    def intrinsic(self, name: str, result: str, *arguments: Value) -> Value:
        """Declare and call a function of LLVM."""
        self.module.declare(name, result, *(a.type for a in arguments))
        return self.call(name, *arguments)

    def _call(self, result: str, callee: str, arguments: tuple[Value, ...], signature: str = "") -> Value:
        text = f"call {result}{signature} {callee}({', '.join(map(str, arguments))})"
        if result != VOID:
            return self.line(result, text)
        self.write(text)
        return Value(self, VOID, "")

    def smin(self, a: Value, b: Value) -> Value:
        return self.intrinsic(f"llvm.smin.{a.type}", a.type, a, b)

    def umin(self, a: Value, b: Value) -> Value:
        return self.intrinsic(f"llvm.umin.{a.type}", a.type, a, b)

    # --- control flow ------------------------------------------------------------------------------------------------
    @contextmanager
    def for_(self, start: Operand, stop: Operand) -> Iterator[Value]:
        """Count an i64 from start to stop (signed comparison)."""
        counter = self.var(I64, start)
        with self.loop() as done:
            i = counter.value
            self.goto_unless(self.slt(i, stop), done)
            yield i
            counter.set(i + 1)
