"""Values in a C-family dialect: the instruction table by its column, structural values, names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from camshaft.emit.c_family.analysis import COLLECTIVES, EFFECTS
from camshaft.emit.c_family.context import Context
from camshaft.emit.c_family.text import Text, add, call, fill, integer, multiply
from camshaft.lang import ir
from camshaft.lang.atomics import ATOMICS
from camshaft.lang.dialects import Absent
from camshaft.lang.instructions import INSTRUCTIONS

# Longer expressions are split into named locals; the value of a store may be longer.
LONGEST_INLINE, LONGEST_STATEMENT = 88, 160
# Values whose text is a name or a number.
_FREE = frozenset({"const", "scalar", "program", "index", "lane", "lane_count"})


def define(ctx: Context, value: ir.Value) -> None:
    """Make the text of a value, and emit a named local if it needs a name."""
    if not ctx.uses.alive(value):
        return
    ctx.gathered = frozenset()
    text = expression(ctx, value)
    reads = ctx.gathered
    if value.op in EFFECTS and value not in ctx.uses.count:
        ctx.write_line(f"{text.code};", value.line)
    elif value.op in _FREE or (text.code.isidentifier() and not reads):
        ctx.texts[value] = text
    elif _is_inline(ctx, value, text):
        ctx.texts[value] = text
        if reads:
            ctx.pending[value] = reads
    else:
        let(ctx, value, text)


def _is_inline(ctx: Context, value: ir.Value, text: Text) -> bool:
    longest = LONGEST_STATEMENT if value in ctx.uses.by_statement else LONGEST_INLINE
    if value in ctx.source_names or len(text.code) > longest or value.op in COLLECTIVES | EFFECTS:
        return False
    return ctx.uses.once_in(value, ctx.here)


def let(ctx: Context, value: ir.Value, text: Text) -> None:
    """Emit a named constant for the value."""
    name = ctx.names.new(ctx.source_names.get(value, _plain_name(ctx, value)))
    typed = ctx.dialect.value_type(ctx, value)
    ctx.write_line(ctx.dialect.constant.format(name=name, type=typed, value=text.code), value.line)
    ctx.texts[value] = Text(name)


def _plain_name(ctx: Context, value: ir.Value) -> str:
    if value.op == "load":
        return f"{ctx.array_names[value.attr[0]]}_value"
    return f"v{len(ctx.names.taken)}"


def operand(ctx: Context, value: ir.Value) -> Text:
    """Return the text of an operand, and add what it reads to the current expression."""
    ctx.gathered |= ctx.pending.pop(value, frozenset())
    return ctx.texts[value]


def operands(ctx: Context, values: Iterable[ir.Value]) -> list[Text]:
    return [operand(ctx, v) for v in values]


def flush(ctx: Context, touched: frozenset[ir.Var | ir.Array] | None = None) -> None:
    """Emit the pending values that read what is about to change (None: anything may change)."""
    for value, reads in list(ctx.pending.items()):
        if touched is None or touched & reads:
            del ctx.pending[value]
            let(ctx, value, ctx.texts[value])


def expression(ctx: Context, value: ir.Value) -> Text:
    """Return the text of a value from the texts of its operands."""
    rule = ctx.dialect.values.get(value.op)
    if rule is None:
        raise ctx.fail(value.line, f"{ctx.dialect.column} has no rule for the value {value.op}")
    return rule(ctx, value)


def instruction(ctx: Context, value: ir.Value) -> Text:
    """Lower a row of the instruction table by this dialect's column."""
    given = operands(ctx, value.args)
    if value.op in ("floor_divide", "remainder"):
        divided = division(ctx, value, given)
        if divided is not None:
            return divided
    if value.op == "cast":
        return ctx.dialect.cast(ctx, value, given[0])
    if value.op == "multiply" and value.dtype.kind == "i" and any(o.code == "1" for o in given):
        return given[given[0].code == "1"]
    if value.op == "add":
        if value.dtype.is_integer and any(o.code == "0" for o in given):
            return add(*given)
        ctx.sums[value] = (given[0], given[1])
    return ctx.dialect.lowered(ctx, value.op, value, given)


def lowered(ctx: Context, op: str, value: ir.Value, operands: Sequence[Text]) -> Text:
    """Fill the operands into the cell of instruction `op`."""
    kind = value.args[1 if op == "select" else 0].dtype.kind
    cell = INSTRUCTIONS[op].column(ctx.dialect.column)[kind]
    if isinstance(cell, Absent):
        raise ctx.fail(value.line, cell.reason)
    if cell.startswith("expand:"):
        return call(ctx.dialect.helper(ctx, cell.removeprefix("expand:"), value), *operands)
    return fill(cell.replace("{T}", ctx.type_name(value.dtype)), operands)


def helper(ctx: Context, name: str, value: ir.Value) -> str:
    """Return the function of an expansion and record its use."""
    return ctx.use(helper_name(name, value))


def helper_name(name: str, value: ir.Value) -> str:
    """The helper of an expansion: NAME_dtype, for conversions NAME_from_to."""
    source = value.args[0].dtype.name
    return f"{name}_{source}_{value.dtype.name}" if name in ("cast", "bitcast") else f"{name}_{source}"


def cast(ctx: Context, value: ir.Value, operand: Text) -> Text:
    """A conversion by value."""
    return ctx.dialect.lowered(ctx, "cast", value, (operand,))


def division(ctx: Context, value: ir.Value, operands: Sequence[Text]) -> Text | None:
    """Divide by a constant without the helper: plain for non-negative numbers, a shift or a mask for powers of two."""
    a, b = value.args
    if b.op != "const" or b.attr <= 0 or value.dtype.kind != "i":
        return None
    is_quotient = value.op == "floor_divide"
    if ctx.nonnegative(a):
        return fill("{0} / {1}" if is_quotient else "{0} % {1}", operands)
    if b.attr & (b.attr - 1):
        return None
    if is_quotient:
        return ctx.dialect.lowered(ctx, "shift_right", value, (operands[0], integer(b.attr.bit_length() - 1)))
    return ctx.dialect.lowered(ctx, "and", value, (operands[0], integer(b.attr - 1)))


# --- structural values -------------------------------------------------------------------------------------------


def const(ctx: Context, value: ir.Value) -> Text:
    return ctx.literal(value.attr, value.dtype)


def program(ctx: Context, value: ir.Value) -> Text:
    return Text(ctx.program_names[value.attr])


def scalar(ctx: Context, value: ir.Value) -> Text:
    return Text(ctx.scalar_names[value.attr])


def lane(ctx: Context, value: ir.Value) -> Text:
    return Text("lane")


def var_get(ctx: Context, value: ir.Value) -> Text:
    ctx.gathered |= {value.attr}
    return Text(ctx.var_names[value.attr])


def load(ctx: Context, value: ir.Value) -> Text:
    array, _gather, counted = value.attr
    at = linear(ctx, array, value.args[:-1] if counted else value.args)
    ctx.gathered |= {array}
    return ctx.dialect.read(ctx, array, at, value)


def atomic(ctx: Context, value: ir.Value) -> Text:
    array, kind = value.attr
    count = ATOMICS[kind].operands
    given, at = operands(ctx, value.args[:count]), linear(ctx, array, value.args[count:])
    flush(ctx, frozenset({array}))
    return ctx.dialect.atomic(ctx, value, at, given)


def atomic_cell(ctx: Context, value: ir.Value) -> str:
    """Return the dialect's cell of an atomic."""
    array, kind = value.attr
    cell = ATOMICS[kind].column(ctx.dialect.column)[array.dtype.kind]
    if isinstance(cell, Absent):
        raise ctx.fail(value.line, cell.reason)
    return cell


def linear(ctx: Context, array: ir.Array, indices: Sequence[ir.Value]) -> Text:
    """Return the element's row-major index in its array."""
    total = integer(0)
    for index, stride in zip(indices, array.strides, strict=True):
        total = add(total, multiply(operand(ctx, index), stride))
    return total


COMMON_VALUES: dict[str, Callable[[Context, ir.Value], Text]] = {
    **dict.fromkeys(INSTRUCTIONS, instruction),
    "const": const,
    "program": program,
    "scalar": scalar,
    "lane": lane,
    "var_get": var_get,
    "load": load,
    "atomic": atomic,
}
