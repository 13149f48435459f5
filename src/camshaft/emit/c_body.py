"""The body of one program in C: declarations and statements. Values are in c_values.py, the rest in the C family's base."""

from __future__ import annotations

from math import prod

from camshaft.emit.c_family_text import Text
from camshaft.emit.c_library import Form, memory_dtype, scalar_type
from camshaft.emit.c_values import ZERO, CValues, form_of
from camshaft.lang import ir

_UNKNOWN_ZERO = (f"    int64_t {ZERO} = 0;", f'    __asm__("" : "+r"({ZERO}));')


class CEmitter(CValues):
    """Writes a kernel's body for one lane."""

    def emit(self) -> list[str]:
        """The body's lines."""
        for array in self.scratch:
            element = scalar_type(memory_dtype(array.dtype))
            self.write_line(f"{element} {self.array_names[array]}[{prod(array.shape)}] __attribute__((aligned(64)));")
        lines = super().emit()
        return [*_UNKNOWN_ZERO, *lines] if self.reads_zero else lines

    def let(self, value: ir.Value, text: Text) -> None:
        """Writes a constant of the value's name, of a vector's type where it is one."""
        name = self.names.new(self.wanted.get(value, self._plain_name(value)))
        words = {"name": name, "type": self.lib.type_of(form_of(value)), "value": text.code}
        self.write_line(self.dialect.constant.format(**words), value.line)
        self.texts[value] = Text(name)

    def statement_varnew(self, item: ir.VarNew) -> None:
        var = item.var
        init = self.spread(self.operand(var.init), var.init, Form(var.dtype, var.width))
        name = self.var_names[var] = self.names.new(self.wanted.get(var, "var"))
        words = {"name": name, "type": self.lib.type_of(Form(var.dtype, var.width)), "value": init.code}
        self.write_line(self.dialect.variable.format(**words), item.line)
        if not any(value.op == "var_get" and value.attr is var for value in self.uses.count):
            self.write_line(f"(void){name};")  # set, and never read

    def statement_varset(self, item: ir.VarSet) -> None:
        form = Form(item.var.dtype, item.var.width)
        if form.is_vector and item.value.width <= 1:
            text = self.spread(self.operand(item.value), item.value, form)
            self.flush(frozenset({item.var}))
            self.write_line(f"{self.var_names[item.var]} = {text.code};", item.line)
        else:
            super().statement_varset(item)

    def statement_lanes(self, item: ir.Lanes) -> None:
        """There is one lane: a loop."""
        self.loop(item, 1)

    def statement_prefetch(self, item: ir.Prefetch) -> None:
        at = self.linear(item.array, item.indices)
        self.write_line(f"__builtin_prefetch({self.address(item.array, at).code}, 0, 3);", item.line)
