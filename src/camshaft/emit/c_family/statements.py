"""Statements in a C-family dialect: blocks, variables, loops, branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from camshaft.emit.c_family.context import Context
from camshaft.emit.c_family.text import ATOM, Text
from camshaft.emit.c_family.values import define, flush, let, linear, operand
from camshaft.lang import ir


def write_body(ctx: Context) -> list[str]:
    """Return the body's lines, indented by one level."""
    write_block(ctx, ctx.kernel.body)
    return ctx.lines


def write_block(ctx: Context, block: ir.Block) -> None:
    """Write a block's items; no value stays pending at its end."""
    outer, ctx.here, opened = ctx.here, block, len(ctx.names.taken)
    for item in block.statements:
        if isinstance(item, ir.Value):
            define(ctx, item)
        else:
            _statement(ctx, item)
    flush(ctx)
    ctx.names.close(opened)
    ctx.here = outer


def _statement(ctx: Context, item: ir.Statement) -> None:
    rule = ctx.dialect.statements.get(type(item))
    if rule is None:
        name = type(item).__name__.lower()
        raise ctx.fail(item.line, f"{ctx.dialect.column} has no rule for the statement {name}")
    rule(ctx, item)


def inner(ctx: Context, block: ir.Block) -> None:
    """Write a block in braces, one level deeper; the caller gives its first line."""
    ctx.depth += 1
    write_block(ctx, block)
    ctx.depth -= 1
    ctx.write_line("}")


# --- statements --------------------------------------------------------------------------------------------------


def var_new(ctx: Context, item: ir.VarNew) -> None:
    init = operand(ctx, item.var.init)
    name = ctx.var_names[item.var] = ctx.names.new(ctx.source_names.get(item.var, "var"))
    typed = ctx.type_name(item.var.dtype)
    ctx.write_line(ctx.dialect.variable.format(name=name, type=typed, value=init.code), item.line)


def var_set(ctx: Context, item: ir.VarSet) -> None:
    name, value = ctx.var_names[item.var], operand(ctx, item.value)
    flush(ctx, frozenset({item.var}))
    first, second = ctx.sums.get(item.value, (None, None))
    if first is not None and second is not None and value.level != ATOM and first.code == name:
        ctx.write_line(f"{name} += {second.code};", item.line)
    elif value.code != name:
        ctx.write_line(f"{name} = {value.code};", item.line)


def store(ctx: Context, item: ir.Store) -> None:
    at, value = linear(ctx, item.array, item.indices), operand(ctx, item.value)
    flush(ctx, frozenset({item.array}))
    ctx.dialect.write(ctx, item.array, at, value, item)


def range_loop(ctx: Context, item: ir.Range) -> None:
    loop(ctx, item, item.step)


def loop(ctx: Context, item: ir.Range | ir.Lanes, step: int) -> None:
    """for (index = start; index < stop; index += step). The stop is computed once."""
    start, stop = ctx.dialect.bound(ctx, item, item.start), ctx.dialect.bound(ctx, item, item.stop)
    flush(ctx)
    opened = len(ctx.names.taken)
    name = ctx.names.new(ctx.source_names.get(item.index, "i"))
    ctx.texts[item.index] = Text(name)
    words = {"name": name, "type": ctx.type_name(item.index.dtype), "start": start.code, "step": step}
    ctx.write_line(ctx.dialect.loop.format(**words, stop=stop.at_least(ATOM)), item.line)
    inner(ctx, item.body)
    ctx.names.close(opened)


def bound(ctx: Context, item: ir.Range | ir.Lanes, value: ir.Value) -> Text:
    """The start or the stop of a loop."""
    return stable(ctx, value)


def condition(ctx: Context, item: ir.When) -> Text:
    """The condition of a branch."""
    return operand(ctx, item.condition)


def stable(ctx: Context, value: ir.Value) -> Text:
    """Return a text that can be repeated: an operand that reads memory or variables becomes a named local."""
    if value in ctx.pending:
        del ctx.pending[value]
        let(ctx, value, ctx.texts[value])
    return ctx.texts[value]


def when(ctx: Context, item: ir.When) -> None:
    text = ctx.dialect.condition(ctx, item)
    flush(ctx)
    ctx.write_line(f"if ({text.code}) {{", item.line)
    inner(ctx, item.body)


def barrier(ctx: Context, item: ir.Barrier) -> None:
    flush(ctx)
    for text in ctx.dialect.barrier:
        ctx.write_line(text, item.line)


COMMON_STATEMENTS: dict[type[ir.Statement], Callable[[Context, Any], None]] = {
    ir.VarNew: var_new,
    ir.VarSet: var_set,
    ir.Store: store,
    ir.Range: range_loop,
    ir.When: when,
    ir.Barrier: barrier,
}
