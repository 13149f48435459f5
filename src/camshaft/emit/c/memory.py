"""Arrays in C: loads, stores and atomics of elements and vectors, and their conversion from and to the form in memory."""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.dtypes import DType, u32
from camshaft.emit.c.library import Form, memory_dtype
from camshaft.emit.c.values import SHORT, CContext, cast_text, form_of, literal, narrowed, widened
from camshaft.emit.c_family.text import Text, call, fill, integer
from camshaft.emit.c_family.values import atomic_cell, operand
from camshaft.lang import ir


def address(ctx: CContext, array: ir.Array, at: Text) -> Text:
    return Text(f"&{ctx.array_names[array]}[{at.code}]")


def read(ctx: CContext, array: ir.Array, at: Text, value: ir.Value) -> Text:
    """Return a load of one element, or of as many as the value is wide."""
    counted = value.attr[2]
    stored = Form(memory_dtype(array.dtype), value.width)
    if stored.is_vector:
        count = [operand(ctx, value.args[-1])] if counted else []
        name = ctx.lib.need("load_first" if counted else "load", stored)
        return from_memory(ctx, call(name, address(ctx, array, at), *count), array.dtype, form_of(value))
    text = Text(f"{ctx.array_names[array]}[{at.code}]")
    found = from_memory(ctx, text, array.dtype, form_of(value))
    if not counted:
        return found
    some = fill("{0} < {1}", (integer(0), operand(ctx, value.args[-1])))
    return fill("{0} ? {1} : {2}", (some, found, literal(0, value.dtype)))


def write(ctx: CContext, array: ir.Array, at: Text, value: Text, item: ir.Store) -> None:
    """Emit array[at] = value."""
    form = form_of(item.value)
    stored, text = form.of(memory_dtype(array.dtype)), to_memory(ctx, value, form, array.dtype)
    count = [] if item.count is None else [operand(ctx, item.count)]
    if stored.is_vector:
        name = ctx.lib.need("store_first" if count else "store", stored)
        ctx.write_line(f"{call(name, address(ctx, array, at), text, *count).code};", item.line)
        return
    guard = f"if ({fill('{0} < {1}', (integer(0), *count)).code}) " if count else ""
    ctx.write_line(f"{guard}{ctx.array_names[array]}[{at.code}] = {text.code};", item.line)


def atomic(ctx: CContext, value: ir.Value, at: Text, operands: Sequence[Text]) -> Text:
    """Return an expression that changes an element and yields its old value."""
    array, _ = value.attr
    cell, words = atomic_cell(ctx, value), (address(ctx, array, at), *operands)
    if cell.startswith("expand:"):
        return call(ctx.lib.need(cell.removeprefix("expand:"), Form(array.dtype, 0)), *words)
    return fill(cell, words)


def from_memory(ctx: CContext, text: Text, dtype: DType, to: Form) -> Text:
    """Convert an element in memory form, or a vector of them, to a value."""
    stored = to.of(memory_dtype(dtype))
    if dtype in SHORT:
        return widened(ctx, cast_text(ctx, text, stored, to.of(u32)), to.of(dtype))
    return cast_text(ctx, text, stored, to)


def to_memory(ctx: CContext, text: Text, value: Form, dtype: DType) -> Text:
    """Convert a value to the memory form of an array of the dtype."""
    stored = value.of(memory_dtype(dtype))
    if dtype in SHORT:
        return cast_text(ctx, narrowed(ctx, text, value.of(dtype)), value.of(u32), stored)
    return cast_text(ctx, text, value, stored)
