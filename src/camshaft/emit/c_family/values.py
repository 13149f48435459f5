"""Values in a C-family dialect: the instruction table by its column, structural values, names. Between c_family_writer.py and
c_family.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from camshaft.emit.c_family.text import Text, add, call, fill, integer, multiply
from camshaft.emit.c_family.uses import COLLECTIVES, EFFECTS
from camshaft.emit.c_family.writer import CFamilyWriter
from camshaft.lang import ir
from camshaft.lang.atomics import ATOMICS
from camshaft.lang.dialects import Absent
from camshaft.lang.instructions import INSTRUCTIONS

# Longer expressions are cut into named parts; what a statement stores may be longer.
LONGEST_INLINE, LONGEST_STATEMENT = 88, 160
# Values that are names or numbers anyway.
_FREE = frozenset({"const", "scalar", "program", "index", "lane", "lane_count"})


class CFamilyValues(CFamilyWriter):
    """Emits values; statements are above it, in CFamilyEmitter."""

    # --- values ------------------------------------------------------------------------------------------------------
    def define(self, value: ir.Value) -> None:
        """Makes the text of a value, and writes it down where it needs a name."""
        if not self.uses.alive(value):
            return
        self.gathered = frozenset()
        text = self.expression(value)
        reads = self.gathered
        if value.op in EFFECTS and value not in self.uses.count:
            self.write_line(f"{text.code};", value.line)
        elif value.op in _FREE or (text.code.isidentifier() and not reads):
            self.texts[value] = text
        elif self._is_inline(value, text):
            self.texts[value] = text
            if reads:
                self.pending[value] = reads
        else:
            self.let(value, text)

    def _is_inline(self, value: ir.Value, text: Text) -> bool:
        longest = LONGEST_STATEMENT if value in self.uses.by_statement else LONGEST_INLINE
        if value in self.wanted or len(text.code) > longest or value.op in COLLECTIVES | EFFECTS:
            return False
        return self.uses.once_in(value, self.here)

    def let(self, value: ir.Value, text: Text) -> None:
        """Writes a constant of the value's name."""
        name = self.names.new(self.wanted.get(value, self._plain_name(value)))
        typed = self.type_name(value.dtype)
        self.write_line(self.dialect.constant.format(name=name, type=typed, value=text.code), value.line)
        self.texts[value] = Text(name)

    def _plain_name(self, value: ir.Value) -> str:
        if value.op == "load":
            return f"{self.array_names[value.attr[0]]}_value"
        return f"v{len(self.names.taken)}"

    def operand(self, value: ir.Value) -> Text:
        """The text of an operand; what it reads is read here."""
        self.gathered |= self.pending.pop(value, frozenset())
        return self.texts[value]

    def operands(self, values: Iterable[ir.Value]) -> list[Text]:
        return [self.operand(v) for v in values]

    def flush(self, touched: frozenset[ir.Var | ir.Array] | None = None) -> None:
        """Names the pending values that read what is about to change (None: anything may)."""
        for value, reads in list(self.pending.items()):
            if touched is None or touched & reads:
                del self.pending[value]
                self.let(value, self.texts[value])

    def expression(self, value: ir.Value) -> Text:
        """The text of a value from those of its operands."""
        if value.op in INSTRUCTIONS:
            return self.instruction(value)
        text: Text = self._method("value", value.op, value.line)(value)
        return text

    def instruction(self, value: ir.Value) -> Text:
        """A row of the table, by this dialect's column."""
        operands = self.operands(value.args)
        if value.op in ("floor_divide", "remainder"):
            divided = self.division(value, operands)
            if divided is not None:
                return divided
        if value.op == "cast":
            return self.cast(value, operands[0])
        if value.op == "multiply" and value.dtype.kind == "i" and any(o.code == "1" for o in operands):
            return operands[operands[0].code == "1"]
        if value.op == "add":
            if value.dtype.is_integer and any(o.code == "0" for o in operands):
                return add(*operands)
            self.sums[value] = (operands[0], operands[1])
        return self.lowered(value.op, value, operands)

    def lowered(self, op: str, value: ir.Value, operands: Sequence[Text]) -> Text:
        """Operands put into the cell of instruction `op`."""
        kind = value.args[1 if op == "select" else 0].dtype.kind
        cell = INSTRUCTIONS[op].column(self.dialect.column)[kind]
        if isinstance(cell, Absent):
            raise self.fail(value.line, cell.reason)
        if cell.startswith("expand:"):
            return call(self.use(self.helper_name(cell.removeprefix("expand:"), value)), *operands)
        return fill(cell.replace("{T}", self.type_name(value.dtype)), operands)

    def helper_name(self, name: str, value: ir.Value) -> str:
        """The helper of an expansion: NAME_dtype, for conversions NAME_from_to."""
        source = value.args[0].dtype.name
        return f"{name}_{source}_{value.dtype.name}" if name in ("cast", "bitcast") else f"{name}_{source}"

    def cast(self, value: ir.Value, operand: Text) -> Text:
        """A conversion by value."""
        return self.lowered("cast", value, (operand,))

    def division(self, value: ir.Value, operands: Sequence[Text]) -> Text | None:
        """A division by a known number without its helper: plain above 0, a shift or a mask by powers of two."""
        a, b = value.args
        if b.op != "const" or b.attr <= 0 or value.dtype.kind != "i":
            return None
        is_quotient = value.op == "floor_divide"
        if self.nonnegative(a):
            return fill("{0} / {1}" if is_quotient else "{0} % {1}", operands)
        if b.attr & (b.attr - 1):
            return None
        if is_quotient:
            return self.lowered("shift_right", value, (operands[0], integer(b.attr.bit_length() - 1)))
        return self.lowered("and", value, (operands[0], integer(b.attr - 1)))

    # --- structural values -------------------------------------------------------------------------------------------
    def value_const(self, value: ir.Value) -> Text:
        return self.literal(value.attr, value.dtype)

    def value_program(self, value: ir.Value) -> Text:
        return Text(self.program_names[value.attr])

    def value_scalar(self, value: ir.Value) -> Text:
        return Text(self.scalar_names[value.attr])

    def value_lane(self, value: ir.Value) -> Text:
        return Text("lane")

    def value_var_get(self, value: ir.Value) -> Text:
        self.gathered |= {value.attr}
        return Text(self.var_names[value.attr])

    def value_load(self, value: ir.Value) -> Text:
        array, _gather, counted = value.attr
        at = self.linear(array, value.args[:-1] if counted else value.args)
        self.gathered |= {array}
        return self.read(array, at, value)

    def value_atomic(self, value: ir.Value) -> Text:
        array, kind = value.attr
        count = ATOMICS[kind].operands
        operands, at = self.operands(value.args[:count]), self.linear(array, value.args[count:])
        self.flush(frozenset({array}))
        return self.atomic(value, at, operands)

    def linear(self, array: ir.Array, indices: Sequence[ir.Value]) -> Text:
        """The element's number in its array: row-major."""
        total = integer(0)
        for index, stride in zip(indices, array.strides, strict=True):
            total = add(total, multiply(self.operand(index), stride))
        return total
