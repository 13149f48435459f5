"""Values in C: explicit vectors, conversions and memory, on the C family's base. The lower half of emit/c/module.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from camshaft.dtypes import DType, bf16, boolean, f16, f32, i32, u32
from camshaft.emit.c.functions import number
from camshaft.emit.c.helpers import library
from camshaft.emit.c.library import Form, memory_dtype
from camshaft.emit.c_family.emitter import CFamilyEmitter, Dialect
from camshaft.emit.c_family.text import ATOM, LOOSE, Text, call, fill, integer
from camshaft.lang import ir
from camshaft.lang.atomics import ATOMICS
from camshaft.lang.dialects import Absent
from camshaft.lang.instructions import INSTRUCTIONS, identity

_SHORT = {f16: "f16", bf16: "bf16"}
_KEYWORDS = """auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while asm typeof linux unix
    args first last linear rest program memcpy size_t zero"""
# The name of a 0 that the compiler knows nothing of (`rounded` of c_helpers.py).
ZERO = "zero"

C11 = Dialect(
    column="c",
    constant="const {type} {name} = {value};",
    variable="{type} {name} = {value};",
    loop="for ({type} {name} = {start}; {name} < {stop}; {name} += {step}) {{",
    barrier=(),  # there is one lane: nobody to wait for
    reserved=frozenset(_KEYWORDS.split()),
)


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
        code = f"{int(value)}{'u' if dtype.kind == 'u' else ''}{'LL' if large else ''}"
    return Text(code, LOOSE if code.startswith("-") else ATOM)


def form_of(value: ir.Value) -> Form:
    return Form(value.dtype, value.width)


class CValues(CFamilyEmitter):
    """Expressions of values; the helpers that they call gather in `lib`."""

    dialect: ClassVar[Dialect] = C11

    def __init__(self, kernel: ir.KernelIR) -> None:
        super().__init__(kernel, kernel.scratch)
        self.scratch = kernel.scratch
        self.lib = library()
        self.reads_zero = False

    def literal(self, value: float | int | bool, dtype: DType) -> Text:
        """A constant."""
        return literal(value, dtype)

    def spread(self, text: Text, arg: ir.Value, form: Form) -> Text:
        """An operand as a helper of a vector's form takes it: a scalar is repeated."""
        if not form.is_vector or arg.width > 1:
            return text
        return call(self.lib.need("splat", form), fill("-{0}", (text,)) if arg.dtype == boolean else text)

    # --- the instruction table -------------------------------------------------------------------------------------
    def use(self, function: str) -> str:
        """Helpers are named once they are in the library."""
        return function

    def helper_name(self, name: str, value: ir.Value) -> str:
        """The helper of an expansion, now in the library."""
        source = Form(value.args[0].dtype, value.width)
        if name == "bitcast":
            return self.lib.convert("bits", source, form_of(value))
        return self.lib.need(name, source)

    def lowered(self, op: str, value: ir.Value, operands: Sequence[Text]) -> Text:
        """As the base has it for scalars. Operators take vectors; what is a helper takes all operands as vectors."""
        if op == "bitcast" and value.args[0].dtype == value.dtype:
            return operands[0]
        if op == "rounded":
            self.reads_zero = True
            return call(self.helper_name(op, value), *operands, Text(ZERO))
        if value.width <= 1:
            return super().lowered(op, value, operands)
        if op == "select":
            return self.vector_select(value, operands)
        form = Form(value.args[0].dtype, value.width)
        cell = INSTRUCTIONS[op].c[form.dtype.kind]
        assert isinstance(cell, str)
        if cell.startswith("expand:"):
            name = self.helper_name(cell.removeprefix("expand:"), value)
            return call(name, *self.spread_all(value, operands, form))
        beside = form.dtype != boolean and any(arg.width > 1 for arg in value.args)
        text = fill(cell, operands if beside else self.spread_all(value, operands, form))
        return self.mask(text, form) if INSTRUCTIONS[op].result == "bool" else text

    def spread_all(self, value: ir.Value, operands: Sequence[Text], form: Form) -> list[Text]:
        return [self.spread(text, arg, form) for text, arg in zip(operands, value.args, strict=True)]

    def mask(self, text: Text, form: Form) -> Text:
        """What a comparison of vectors gives, as a mask of i32."""
        if not form.is_vector or form.element.nbytes == 4:
            return text
        return self.converted(text, form.of(boolean))

    def converted(self, text: Text, to: Form) -> Text:
        return Text(f"__builtin_convertvector({text.code}, {self.lib.type_of(to)})")

    def vector_select(self, value: ir.Value, operands: Sequence[Text]) -> Text:
        form, condition = form_of(value), operands[0]
        a, b = (self.spread(t, v, form) for t, v in zip(operands[1:], value.args[1:], strict=True))
        if value.args[0].width <= 1:
            return fill("{0} ? {1} : {2}", (condition, a, b))
        if form.element.nbytes != 4:
            condition = self.converted(condition, form.signed)
        return call(self.lib.need("choose", form), condition, a, b)

    # --- conversions -----------------------------------------------------------------------------------------------
    def cast(self, value: ir.Value, operand: Text) -> Text:
        """A conversion by value."""
        return self.cast_text(operand, Form(value.args[0].dtype, value.width), form_of(value))

    def cast_text(self, text: Text, source: Form, to: Form) -> Text:
        """Conversion by value. f16 and bf16 are f32 that were rounded to them."""
        if to.dtype in _SHORT and source.dtype != to.dtype:
            whole = self.cast_text(text, source, to.of(f32))
            return self.widened(self.narrowed(whole, to), to)
        a, b = source.element, to.element
        if a == b and (source.dtype == boolean) == (to.dtype == boolean):
            return text
        if to.dtype == boolean:
            return self.mask(fill("{0} != {1}", (text, literal(0, a))), source)
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

    # --- structural values -----------------------------------------------------------------------------------------
    def value_lane(self, value: ir.Value) -> Text:
        return integer(0)

    def value_lane_count(self, value: ir.Value) -> Text:
        return integer(1)

    value_subgroup_lanes = value_lane_count

    def value_reduce(self, value: ir.Value) -> Text:
        """Of the one lane: the value itself."""
        return self.operand(value.args[0])

    value_subgroup_reduce = value_reduce

    def value_shuffle(self, value: ir.Value) -> Text:
        operand, _ = self.operands(value.args)
        return operand

    def value_scan(self, value: ir.Value) -> Text:
        kind, exclusive = value.attr
        operand = self.operand(value.args[0])
        return literal(identity(kind, value.dtype.numpy), value.dtype) if exclusive else operand

    def value_splat(self, value: ir.Value) -> Text:
        return self.spread(self.operand(value.args[0]), value.args[0], form_of(value))

    def value_iota(self, value: ir.Value) -> Text:
        form = form_of(value)
        if not form.is_vector:
            return literal(0, value.dtype)
        elements = ", ".join(literal(i, form.element).code for i in range(value.width))
        return Text(f"({self.lib.type_of(form)}){{{elements}}}")

    def value_element(self, value: ir.Value) -> Text:
        vector = value.args[0]
        text = self.operand(vector)
        if vector.width <= 1:
            return text
        picked = Text(f"{text.at_least(ATOM)}[{value.attr}]")
        return fill("{0} != {1}", (picked, integer(0))) if value.dtype == boolean else picked

    def value_vector_sum(self, value: ir.Value) -> Text:
        (vector,) = value.args
        text = self.operand(vector)
        name = value.op.removeprefix("vector_")
        return call(self.lib.need(name, form_of(vector)), text) if vector.width > 1 else text

    value_vector_max = value_vector_sum

    # --- memory ----------------------------------------------------------------------------------------------------
    def address(self, array: ir.Array, at: Text) -> Text:
        return Text(f"&{self.array_names[array]}[{at.code}]")

    def read(self, array: ir.Array, at: Text, value: ir.Value) -> Text:
        """The element at a place, or as many as the value is wide."""
        counted = value.attr[2]
        stored = Form(memory_dtype(array.dtype), value.width)
        if stored.is_vector:
            count = [self.operand(value.args[-1])] if counted else []
            name = self.lib.need("load_first" if counted else "load", stored)
            return self.from_memory(call(name, self.address(array, at), *count), array.dtype, form_of(value))
        text = Text(f"{self.array_names[array]}[{at.code}]")
        read = self.from_memory(text, array.dtype, form_of(value))
        if not counted:
            return read
        some = fill("{0} < {1}", (integer(0), self.operand(value.args[-1])))
        return fill("{0} ? {1} : {2}", (some, read, literal(0, value.dtype)))

    def write(self, array: ir.Array, at: Text, value: Text, item: ir.Store) -> None:
        """Writes array[at] = value."""
        form = form_of(item.value)
        stored, text = form.of(memory_dtype(array.dtype)), self.to_memory(value, form, array.dtype)
        count = [] if item.count is None else [self.operand(item.count)]
        if stored.is_vector:
            name = self.lib.need("store_first" if count else "store", stored)
            self.write_line(f"{call(name, self.address(array, at), text, *count).code};", item.line)
            return
        guard = f"if ({fill('{0} < {1}', (integer(0), *count)).code}) " if count else ""
        self.write_line(f"{guard}{self.array_names[array]}[{at.code}] = {text.code};", item.line)

    def atomic(self, value: ir.Value, at: Text, operands: Sequence[Text]) -> Text:
        """An expression that changes an element and is the old one."""
        array, kind = value.attr
        cell, words = ATOMICS[kind].c[array.dtype.kind], (self.address(array, at), *operands)
        if isinstance(cell, Absent):
            raise self.fail(value.line, cell.reason)
        if cell.startswith("expand:"):
            return call(self.lib.need(cell.removeprefix("expand:"), Form(array.dtype, 0)), *words)
        return fill(cell, words)

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
