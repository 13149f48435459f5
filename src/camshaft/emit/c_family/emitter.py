"""The C-family emitter: Kernel IR to readable text. A dialect (C, WGSL, Metal) subclasses CFamilyEmitter and spells things out.

Two forms feed it: SIMT form (form.py: every value is one thread's scalar) for WGSL and Metal, and plain Kernel IR at one
lane, with explicit vectors, for C. What a dialect gives:

- a `Dialect`: its column in lang/dialects.py and lang/storage.py, its patterns of declarations, its reserved words and the text
  of its helper functions (what the table calls "expand:NAME": NAME_f32, cast_f32_i32, ...);
- methods: `literal`; `read`, `write` and `atomic` (an element of an array, storage conversion included); `value_NAME` for
  structural values (lang/structural.py) that are not here (program, scalar and lane are names by default); `statement_NAME`.

A value gets a name of its own where the source names it, or where it is used more than once or elsewhere; else it stands inside
the expression that uses it. What reads memory or variables never moves past a statement that may change them.

Below this file: c_family_values.py (values), then c_family_writer.py (text, names, what a dialect gives).
"""

from __future__ import annotations

from camshaft.emit.c_family.text import ATOM, Text
from camshaft.emit.c_family.values import CFamilyValues
from camshaft.emit.c_family.writer import Dialect as Dialect
from camshaft.lang import ir


class CFamilyEmitter(CFamilyValues):
    """Writes one kernel's body. After `emit`, `lines` holds it and `functions` the helpers that it calls."""

    def emit(self) -> list[str]:
        """The body's lines, indented by one level."""
        self.block(self.kernel.body)
        return self.lines

    # --- blocks ------------------------------------------------------------------------------------------------------
    def block(self, block: ir.Block) -> None:
        """A block's items; nothing of it stays pending."""
        outer, self.here, opened = self.here, block, len(self.names.taken)
        for item in block.statements:
            if isinstance(item, ir.Value):
                self.define(item)
            else:
                self._method("statement", type(item).__name__.lower(), item.line)(item)
        self.flush()
        self.names.close(opened)
        self.here = outer

    def inner(self, block: ir.Block) -> None:
        """A block in braces, one level deeper; its first line is the caller's."""
        self.depth += 1
        self.block(block)
        self.depth -= 1
        self.write_line("}")

    # --- statements --------------------------------------------------------------------------------------------------
    def statement_varnew(self, item: ir.VarNew) -> None:
        init = self.operand(item.var.init)
        name = self.var_names[item.var] = self.names.new(self.wanted.get(item.var, "var"))
        typed = self.type_name(item.var.dtype)
        self.write_line(self.dialect.variable.format(name=name, type=typed, value=init.code), item.line)

    def statement_varset(self, item: ir.VarSet) -> None:
        name, value = self.var_names[item.var], self.operand(item.value)
        self.flush(frozenset({item.var}))
        first, second = self.sums.get(item.value, (None, None))
        if first is not None and second is not None and value.level != ATOM and first.code == name:
            self.write_line(f"{name} += {second.code};", item.line)
        elif value.code != name:
            self.write_line(f"{name} = {value.code};", item.line)

    def statement_store(self, item: ir.Store) -> None:
        at, value = self.linear(item.array, item.indices), self.operand(item.value)
        self.flush(frozenset({item.array}))
        self.write(item.array, at, value, item)

    def statement_range(self, item: ir.Range) -> None:
        self.loop(item, item.step)

    def loop(self, item: ir.Range | ir.Lanes, step: int) -> None:
        """for (index = start; index < stop; index += step). The stop is computed once."""
        start, stop = self.bound(item, item.start), self.bound(item, item.stop)
        self.flush()
        opened = len(self.names.taken)
        name = self.names.new(self.wanted.get(item.index, "i"))
        self.texts[item.index] = Text(name)
        words = {"name": name, "type": self.type_name(item.index.dtype), "start": start.code, "step": step}
        self.write_line(self.dialect.loop.format(**words, stop=stop.at_least(ATOM)), item.line)
        self.inner(item.body)
        self.names.close(opened)

    def bound(self, item: ir.Range | ir.Lanes, value: ir.Value) -> Text:
        """The start or the stop of a loop."""
        return self.stable(value)

    def condition(self, item: ir.When) -> Text:
        """The condition of a branch."""
        return self.operand(item.condition)

    def stable(self, value: ir.Value) -> Text:
        """A text that means the same wherever it is repeated: what reads memory or variables gets a name."""
        if value in self.pending:
            del self.pending[value]
            self.let(value, self.texts[value])
        return self.texts[value]

    def statement_when(self, item: ir.When) -> None:
        condition = self.condition(item)
        self.flush()
        self.write_line(f"if ({condition.code}) {{", item.line)
        self.inner(item.body)

    def statement_barrier(self, item: ir.Barrier) -> None:
        self.flush()
        for text in self.dialect.barrier:
            self.write_line(text, item.line)
