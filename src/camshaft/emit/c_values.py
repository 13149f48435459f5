"""Values in C: rows of the instruction table and structural ones, as expressions. The lower half of emit/c_body.py."""

from __future__ import annotations

from collections.abc import Callable

from camshaft.dtypes import DType, bf16, boolean, f16, f32, i32, u32
from camshaft.emit.c_family_text import ATOM, LOOSE, Text, add, call, fill, integer, multiply
from camshaft.emit.c_functions import library, number
from camshaft.emit.c_library import Form, memory_dtype
from camshaft.errors import KernelError
from camshaft.lang import ir
from camshaft.lang.instructions import INSTRUCTIONS

_SHORT = {f16: "f16", bf16: "bf16"}
_SUFFIX = {"u32": "u", "u64": "u", "i64": "", "i32": ""}


def literal(value: float | int | bool, dtype: DType) -> Text:
    """A constant of that dtype, exact."""
    if dtype == boolean:
        return Text("1" if value else "0")
    if dtype.is_float:
        code = number(float(value), Form(dtype, 0))
    elif int(value) == -(1 << (dtype.bits - 1)):
        code = f"INT{dtype.bits}_MIN"
    else:
        large = dtype.nbytes == 8 and abs(int(value)) >= 1 << 31
        code = f"{int(value)}{_SUFFIX.get(dtype.name, '')}{'LL' if large else ''}"
    return Text(code, LOOSE if code.startswith("-") else ATOM)


def form_of(value: ir.Value) -> Form:
    return Form(value.dtype, value.width)


class ValueWriter:
    """Expressions of values whose operands have theirs in `texts`; what they call gathers in `lib`."""

    def __init__(self, kernel: ir.KernelIR) -> None:
        self.kernel, self.lib = kernel, library()
        self.texts: dict[ir.Value, Text] = {}
        self.var_names: dict[ir.Var, str] = {}
        self.array_names: dict[ir.Array, str] = {}
        self.scalar_names: list[str] = []

    def fail(self, line: int, message: str) -> KernelError:
        return KernelError(f"kernel {self.kernel.name}, line {line}: {message}")

    def value(self, value: ir.Value) -> Text:
        """The expression of a value."""
        if value.op in INSTRUCTIONS:
            return self.instruction(value)
        return _STRUCTURAL[value.op](self, value)

    def spread(self, arg: ir.Value, form: Form) -> Text:
        """An operand as a helper of a vector's form takes it: a scalar is repeated."""
        text = self.texts[arg]
        if not form.is_vector or arg.width > 1:
            return text
        return call(self.lib.need("splat", form), text if arg.dtype != boolean else fill("-{0}", (text,)))

    # --- the instruction table -------------------------------------------------------------------------------------
    def instruction(self, value: ir.Value) -> Text:
        special = _INSTRUCTIONS.get(value.op)
        if special is not None:
            return special(self, value)
        source = value.args[0].dtype
        cell = INSTRUCTIONS[value.op].c[source.kind]
        if not isinstance(cell, str):
            raise self.fail(value.line, cell.reason)
        operand = Form(source, value.width)
        if cell.startswith("expand:"):
            name = self.lib.need(cell.removeprefix("expand:"), operand)
            return call(name, *(self.spread(a, operand) for a in value.args))
        operands = [self.operand(a, operand) for a in value.args]
        if operand.is_vector and all(a.width <= 1 for a in value.args):
            operands[0] = self.spread(value.args[0], operand)
        text = fill(cell, operands)
        return self.narrow_mask(text, operand) if INSTRUCTIONS[value.op].result == "bool" else text

    def operand(self, arg: ir.Value, form: Form) -> Text:
        """An operator's operand: a scalar beside a vector needs no more, but for a boolean."""
        return self.spread(arg, form) if arg.dtype == boolean else self.texts[arg]

    def narrow_mask(self, text: Text, form: Form) -> Text:
        """What a comparison of vectors gives, as a mask of i32."""
        if not form.is_vector or form.element.nbytes == 4:
            return text
        return self.converted(text, form.of(boolean))

    def converted(self, text: Text, to: Form) -> Text:
        return Text(f"__builtin_convertvector({text.code}, {self.lib.type_of(to)})")

    def select(self, value: ir.Value) -> Text:
        condition, a, b = value.args
        form = form_of(value)
        if condition.width <= 1:
            return fill("{0} ? {1} : {2}", (self.texts[condition], self.spread(a, form), self.spread(b, form)))
        mask = self.texts[condition]
        if form.element.nbytes != 4:
            mask = self.converted(mask, form.signed)
        return call(self.lib.need("choose", form), mask, self.spread(a, form), self.spread(b, form))

    def cast(self, value: ir.Value) -> Text:
        (arg,) = value.args
        return self.cast_text(self.texts[arg], Form(arg.dtype, value.width), form_of(value))

    def cast_text(self, text: Text, source: Form, to: Form) -> Text:
        """Conversion by value. f16 and bf16 are f32 that were rounded to them."""
        if to.dtype in _SHORT and source.dtype != to.dtype:
            whole = self.cast_text(text, source, to.of(f32))
            return self.widened(self.narrowed(whole, to), to)
        a, b = source.element, to.element
        if a == b and (source.dtype == boolean) == (to.dtype == boolean):
            return text
        if to.dtype == boolean:
            return self.narrow_mask(fill("{0} != {1}", (text, literal(0, a))), source)
        if a.is_float and b.is_integer:
            return self.saturated(text, source, to)
        if not to.is_vector:
            return fill(f"({self.lib.type_of(to)}){{0}}", (text,))
        text = fill("-{0}", (text,)) if source.dtype == boolean else text
        return self.converted(text, to)

    def saturated(self, text: Text, source: Form, to: Form) -> Text:
        self.lib.type_of(to)
        if source.element == f32 and to.element == i32 and source.is_vector:
            return call(self.lib.need("truncate", source), text)
        return call(self.lib.convert("to", source, to), text)

    def narrowed(self, text: Text, form: Form) -> Text:
        """f32 to the bits of an f16 or bf16, as u32."""
        return call(self.lib.need(f"narrow_{_SHORT[form.dtype]}", form.of(u32)), text)

    def widened(self, text: Text, form: Form) -> Text:
        return call(self.lib.need(f"widen_{_SHORT[form.dtype]}", form.of(u32)), text)

    def bitcast(self, value: ir.Value) -> Text:
        source, to = Form(value.args[0].dtype, value.width), form_of(value)
        if source.element == to.element:
            return self.texts[value.args[0]]
        return call(self.lib.convert("bits", source, to), self.texts[value.args[0]])

    # --- structural values -----------------------------------------------------------------------------------------
    def splat(self, value: ir.Value) -> Text:
        return self.spread(value.args[0], form_of(value))

    def iota(self, value: ir.Value) -> Text:
        form = form_of(value)
        if not form.is_vector:
            return literal(0, value.dtype)
        elements = ", ".join(literal(i, form.element).code for i in range(value.width))
        return Text(f"({self.lib.type_of(form)}){{{elements}}}")

    def element(self, value: ir.Value) -> Text:
        vector = value.args[0]
        text = self.texts[vector]
        if vector.width <= 1:
            return text
        picked = Text(f"{text.at_least(ATOM)}[{value.attr}]")
        return fill("{0} != {1}", (picked, integer(0))) if value.dtype == boolean else picked

    def vector_reduce(self, value: ir.Value) -> Text:
        (vector,) = value.args
        if vector.width <= 1:
            return self.texts[vector]
        return call(self.lib.need(value.op.removeprefix("vector_"), form_of(vector)), self.texts[vector])

    # --- memory ----------------------------------------------------------------------------------------------------
    def place(self, array: ir.Array, indices: tuple[ir.Value, ...]) -> Text:
        """The linear index of array[indices]."""
        total = integer(0)
        for index, stride in zip(indices, array.strides, strict=True):
            total = add(total, multiply(self.texts[index], stride))
        return total

    def address(self, array: ir.Array, indices: tuple[ir.Value, ...]) -> Text:
        return Text(f"&{self.array_names[array]}[{self.place(array, indices).code}]")

    def load(self, value: ir.Value) -> Text:
        array, _, counted = value.attr
        indices = value.args[:-1] if counted else value.args
        stored = Form(memory_dtype(array.dtype), value.width)
        if stored.is_vector:
            at, name = self.address(array, indices), self.lib.need("load_first" if counted else "load", stored)
            text = call(name, at, self.texts[value.args[-1]]) if counted else call(name, at)
        else:
            text = Text(f"{self.array_names[array]}[{self.place(array, indices).code}]")
        read = self.from_memory(text, array.dtype, form_of(value))
        if counted and not stored.is_vector:
            return fill("{0} ? {1} : {2}", (self.some(value.args[-1]), read, literal(0, value.dtype)))
        return read

    def some(self, count: ir.Value) -> Text:
        """Whether a vector of one element has it."""
        return Text(f"({self.texts[count].code} > 0)")

    def from_memory(self, text: Text, dtype: DType, to: Form) -> Text:
        """An element as its array has it, or a vector of them, as a value."""
        stored = to.of(memory_dtype(dtype))
        if dtype in _SHORT:
            return self.widened(self.cast_text(text, stored, to.of(u32)), to.of(dtype))
        return self.cast_text(text, stored, to)

    def to_memory(self, text: Text, value: Form, dtype: DType) -> Text:
        """A value as an array of the dtype has it."""
        stored = value.of(memory_dtype(dtype))
        if dtype in _SHORT:
            return self.cast_text(self.narrowed(text, value.of(dtype)), value.of(u32), stored)
        return self.cast_text(text, value, stored)


_INSTRUCTIONS: dict[str, Callable[[ValueWriter, ir.Value], Text]] = {
    "select": ValueWriter.select,
    "cast": ValueWriter.cast,
    "bitcast": ValueWriter.bitcast,
}
_STRUCTURAL: dict[str, Callable[[ValueWriter, ir.Value], Text]] = {
    "const": lambda w, v: literal(v.attr, v.dtype),
    "program": lambda w, v: Text(f"program{v.attr}"),
    "scalar": lambda w, v: Text(w.scalar_names[v.attr]),
    "lane": lambda w, v: integer(0),
    "lane_count": lambda w, v: integer(1),
    "load": ValueWriter.load,
    "var_get": lambda w, v: Text(w.var_names[v.attr]),
    "reduce": lambda w, v: w.texts[v.args[0]],
    "splat": ValueWriter.splat,
    "iota": ValueWriter.iota,
    "element": ValueWriter.element,
    "vector_sum": ValueWriter.vector_reduce,
    "vector_max": ValueWriter.vector_reduce,
}
