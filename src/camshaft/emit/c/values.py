"""Values in C: constants, the instruction table, conversions, explicit vectors; collectives of one lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from camshaft.dtypes import DType, bf16, boolean, f16, f32, i32, u32
from camshaft.emit.c.functions import number
from camshaft.emit.c.helpers import library
from camshaft.emit.c.library import Form, Library
from camshaft.emit.c_family import values
from camshaft.emit.c_family.context import Context
from camshaft.emit.c_family.text import ATOM, LOOSE, Text, call, fill, integer
from camshaft.emit.c_family.values import operand, operands
from camshaft.lang import ir
from camshaft.lang.instructions import INSTRUCTIONS, identity

SHORT = {f16: "f16", bf16: "bf16"}
# The name of a 0 that is opaque to the compiler (`rounded` of emit/c/helpers.py).
ZERO = "zero"


@dataclass
class CContext(Context):
    """`lib` collects the helpers that are called; `reads_zero`: ZERO is used."""

    lib: Library = field(default_factory=library)
    reads_zero: bool = False


def literal(value: float | int | bool, dtype: DType) -> Text:
    """Returns an exact constant of a dtype."""
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


def spread(ctx: CContext, text: Text, arg: ir.Value, form: Form) -> Text:
    """Return an operand as a vector helper takes it: a scalar is repeated."""
    if not form.is_vector or arg.width > 1:
        return text
    return call(ctx.lib.need("splat", form), fill("-{0}", (text,)) if arg.dtype == boolean else text)


# --- the instruction table -------------------------------------------------------------------------------------


def helper(ctx: CContext, name: str, value: ir.Value) -> str:
    """Add the helper of an expansion to the library and return its name."""
    source = Form(value.args[0].dtype, value.width)
    if name == "bitcast":
        return ctx.lib.convert("bits", source, form_of(value))
    return ctx.lib.need(name, source)


def lowered(ctx: CContext, op: str, value: ir.Value, operands: Sequence[Text]) -> Text:
    """Fill the operands into a cell. Operators accept vectors and scalars; helpers take all operands as vectors."""
    if op == "bitcast" and value.args[0].dtype == value.dtype:
        return operands[0]
    if op == "rounded":
        ctx.reads_zero = True
        return call(helper(ctx, op, value), *operands, Text(ZERO))
    if value.width <= 1:
        return values.lowered(ctx, op, value, operands)
    if op == "select":
        return vector_select(ctx, value, operands)
    form = Form(value.args[0].dtype, value.width)
    cell = INSTRUCTIONS[op].c[form.dtype.kind]
    assert isinstance(cell, str)
    if cell.startswith("expand:"):
        name = helper(ctx, cell.removeprefix("expand:"), value)
        return call(name, *spread_all(ctx, value, operands, form))
    mixes = form.dtype != boolean and any(arg.width > 1 for arg in value.args)
    text = fill(cell, operands if mixes else spread_all(ctx, value, operands, form))
    return mask(ctx, text, form) if INSTRUCTIONS[op].result == "bool" else text


def spread_all(ctx: CContext, value: ir.Value, operands: Sequence[Text], form: Form) -> list[Text]:
    return [spread(ctx, text, arg, form) for text, arg in zip(operands, value.args, strict=True)]


def mask(ctx: CContext, text: Text, form: Form) -> Text:
    """Convert the result of a vector comparison to a mask of i32."""
    if not form.is_vector or form.element.nbytes == 4:
        return text
    return converted(ctx, text, form.of(boolean))


def converted(ctx: CContext, text: Text, to: Form) -> Text:
    return Text(f"__builtin_convertvector({text.code}, {ctx.lib.type_of(to)})")


def vector_select(ctx: CContext, value: ir.Value, operands: Sequence[Text]) -> Text:
    form, condition = form_of(value), operands[0]
    a, b = (spread(ctx, t, v, form) for t, v in zip(operands[1:], value.args[1:], strict=True))
    if value.args[0].width <= 1:
        return fill("{0} ? {1} : {2}", (condition, a, b))
    if form.element.nbytes != 4:
        condition = converted(ctx, condition, form.signed)
    return call(ctx.lib.need("choose", form), condition, a, b)


# --- conversions -----------------------------------------------------------------------------------------------


def cast(ctx: CContext, value: ir.Value, text: Text) -> Text:
    """A conversion by value."""
    return cast_text(ctx, text, Form(value.args[0].dtype, value.width), form_of(value))


def cast_text(ctx: CContext, text: Text, source: Form, to: Form) -> Text:
    """Converts by value. f16 and bf16 are stored as rounded f32."""
    if to.dtype in SHORT and source.dtype != to.dtype:
        whole = cast_text(ctx, text, source, to.of(f32))
        return widened(ctx, narrowed(ctx, whole, to), to)
    a, b = source.element, to.element
    if a == b and (source.dtype == boolean) == (to.dtype == boolean):
        return text
    if to.dtype == boolean:
        return mask(ctx, fill("{0} != {1}", (text, literal(0, a))), source)
    if a.is_float and b.is_integer:
        return saturated(ctx, text, source, to)
    if not to.is_vector:
        return fill(f"({ctx.lib.type_of(to)}){{0}}", (text,))
    text = fill("-{0}", (text,)) if source.dtype == boolean else text
    return converted(ctx, text, to)


def saturated(ctx: CContext, text: Text, source: Form, to: Form) -> Text:
    ctx.lib.type_of(to)
    if source.element == f32 and to.element == i32 and source.is_vector:
        return call(ctx.lib.need("truncate", source), text)
    return call(ctx.lib.convert("to", source, to), text)


def narrowed(ctx: CContext, text: Text, form: Form) -> Text:
    """f32 to the bits of an f16 or bf16, as u32."""
    return call(ctx.lib.need(f"narrow_{SHORT[form.dtype]}", form.of(u32)), text)


def widened(ctx: CContext, text: Text, form: Form) -> Text:
    return call(ctx.lib.need(f"widen_{SHORT[form.dtype]}", form.of(u32)), text)


# --- structural values -----------------------------------------------------------------------------------------


def reduce(ctx: CContext, value: ir.Value) -> Text:
    """A reduction over one lane is the value itself."""
    return operand(ctx, value.args[0])


def shuffle(ctx: CContext, value: ir.Value) -> Text:
    given, _ = operands(ctx, value.args)
    return given


def scan(ctx: CContext, value: ir.Value) -> Text:
    kind, exclusive = value.attr
    given = operand(ctx, value.args[0])
    return literal(identity(kind, value.dtype.numpy), value.dtype) if exclusive else given


def splat(ctx: CContext, value: ir.Value) -> Text:
    return spread(ctx, operand(ctx, value.args[0]), value.args[0], form_of(value))


def iota(ctx: CContext, value: ir.Value) -> Text:
    form = form_of(value)
    if not form.is_vector:
        return literal(0, value.dtype)
    elements = ", ".join(literal(i, form.element).code for i in range(value.width))
    return Text(f"({ctx.lib.type_of(form)}){{{elements}}}")


def element(ctx: CContext, value: ir.Value) -> Text:
    vector = value.args[0]
    text = operand(ctx, vector)
    if vector.width <= 1:
        return text
    picked = Text(f"{text.at_least(ATOM)}[{value.attr}]")
    return fill("{0} != {1}", (picked, integer(0))) if value.dtype == boolean else picked


def vector_reduce(ctx: CContext, value: ir.Value) -> Text:
    (vector,) = value.args
    text = operand(ctx, vector)
    name = value.op.removeprefix("vector_")
    return call(ctx.lib.need(name, form_of(vector)), text) if vector.width > 1 else text


VALUES: dict[str, Callable[[CContext, ir.Value], Text]] = {
    **values.COMMON_VALUES,
    "lane": lambda ctx, value: integer(0),
    "lane_count": lambda ctx, value: integer(1),
    "subgroup_lanes": lambda ctx, value: integer(1),
    "reduce": reduce,
    "subgroup_reduce": reduce,
    "shuffle": shuffle,
    "scan": scan,
    "splat": splat,
    "iota": iota,
    "element": element,
    "vector_sum": vector_reduce,
    "vector_max": vector_reduce,
}
