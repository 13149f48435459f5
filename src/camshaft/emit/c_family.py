"""The C-family emitter: Kernel IR to readable text. A dialect (C, WGSL, Metal) subclasses CFamilyEmitter and spells things out.

Two forms feed it: SIMT form (lang/simt.py: every value is one thread's scalar) for WGSL and Metal, and plain Kernel IR at one
lane, with explicit vectors, for C. What a dialect gives:

- a `Dialect`: its column in lang/dialects.py and lang/storage.py, its patterns of declarations, its reserved words and the text
  of its helper functions (what the table calls "expand:NAME": NAME_f32, cast_f32_i32, ...);
- methods: `literal`; `read`, `write` and `atomic` (an element of an array, storage conversion included); `value_NAME` for
  structural values (lang/structural.py) that are not here (program, scalar and lane are names by default); `statement_NAME`.

A value gets a name of its own where the source names it, or where it is used more than once or elsewhere; else it stands inside
the expression that uses it. What reads memory or variables never moves past a statement that may change them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from camshaft.dtypes import DType
from camshaft.emit.c_family_range import NonNegative
from camshaft.emit.c_family_source import Names, formula, names_of, source_line
from camshaft.emit.c_family_text import ATOM, Text, add, call, fill, integer, multiply
from camshaft.emit.c_family_uses import EFFECTS, uses_of
from camshaft.errors import KernelError
from camshaft.lang import ir
from camshaft.lang.atomics import ATOMICS
from camshaft.lang.dialects import Absent
from camshaft.lang.instructions import INSTRUCTIONS
from camshaft.lang.storage import VALUES

# Longer expressions are cut into named parts; what a statement stores may be longer.
LONGEST_INLINE, LONGEST_STATEMENT = 88, 160
# Values that are names or numbers anyway.
_FREE = frozenset({"const", "scalar", "program", "index", "lane", "lane_count"})
# Values that the threads make together: a dialect flushes before them, and none moves from its place.
COLLECTIVES = frozenset({"reduce", "broadcast", "scan", "shuffle"})
_INDENT = "    "


@dataclass(frozen=True)
class Dialect:
    """How a dialect spells things. Patterns take {name} {type} {value}; `loop` takes {name} {type} {start} {stop} {step}.

    `functions`: helper name -> its text, in an order that suits the dialect; a helper may call others.
    """

    column: str
    constant: str
    variable: str
    loop: str
    barrier: tuple[str, ...]
    reserved: frozenset[str]
    functions: Mapping[str, str] = field(default_factory=dict)


class Source(Protocol):
    """What KernelIR and SimtKernel have in common."""

    @property
    def name(self) -> str: ...
    @property
    def arrays(self) -> tuple[ir.Array, ...]: ...
    @property
    def scalars(self) -> tuple[str, ...]: ...
    @property
    def grid(self) -> tuple[ir.GridDim, ...]: ...
    @property
    def body(self) -> ir.Block: ...
    @property
    def source_file(self) -> str: ...


class CFamilyEmitter:
    """Writes one kernel's body. After `emit`, `lines` holds it and `functions` the helpers that it calls."""

    dialect: ClassVar[Dialect]

    def __init__(self, kernel: Source, arrays: Iterable[ir.Array] = ()) -> None:
        """`arrays`: scratch of every kind, which needs a name besides the kernel's own arrays."""
        self.kernel = kernel
        self.names = Names(self.dialect.reserved | frozenset(self.dialect.functions))
        self.wanted = names_of(kernel.body, kernel.source_file)
        self.uses = uses_of(kernel.body)
        self.nonnegative = NonNegative(kernel.body)
        self.entry = self.names.new(kernel.name)
        self.array_names = {array: self.names.new(array.name) for array in (*kernel.arrays, *arrays)}
        self.scalar_names = [self.names.new(name) for name in kernel.scalars]
        self.program_names = [self.names.new(self._program_name(axis)) for axis in range(len(kernel.grid))]
        self.var_names: dict[ir.Var, str] = {}
        self.texts: dict[ir.Value, Text] = {}
        self.sums: dict[ir.Value, tuple[Text, Text]] = {}
        self.pending: dict[ir.Value, frozenset[ir.Var | ir.Array]] = {}
        self.gathered: frozenset[ir.Var | ir.Array] = frozenset()
        self.functions: set[str] = set()
        self.lines: list[str] = []
        self.depth, self.line = 1, 0
        self.here = kernel.body

    def _program_name(self, axis: int) -> str:
        named = [v for v in self.kernel.body.statements if isinstance(v, ir.Value) and v.op == "program"]
        return next((self.wanted[v] for v in named if v.attr == axis and v in self.wanted), f"program{axis}")

    # --- what a dialect gives ----------------------------------------------------------------------------------------
    def literal(self, value: float | int | bool, dtype: DType) -> Text:
        """A constant."""
        raise NotImplementedError

    def read(self, array: ir.Array, at: Text, value: ir.Value) -> Text:
        """Element `at` of an array, as a value of `value.dtype` (and width)."""
        raise NotImplementedError

    def write(self, array: ir.Array, at: Text, value: Text, item: ir.Store) -> None:
        """Writes the statement array[at] = value."""
        raise NotImplementedError

    def atomic(self, value: ir.Value, at: Text, operands: Sequence[Text]) -> Text:
        """The atomic of lang/atomics.py that `value` is, on element `at`: an expression that is the old element."""
        raise NotImplementedError

    def type_name(self, dtype: DType) -> str:
        """The type of a value."""
        cell = VALUES[self.dialect.column][dtype.name]
        if isinstance(cell, Absent):
            raise KernelError(f"kernel {self.kernel.name}: {cell.reason}")
        return cell

    # --- text --------------------------------------------------------------------------------------------------------
    def fail(self, line: int, message: str) -> KernelError:
        return KernelError(f"kernel {self.kernel.name}, line {line}: {message}")

    def emit(self) -> list[str]:
        """The body's lines, indented by one level."""
        self.block(self.kernel.body)
        return self.lines

    def heading(self) -> list[str]:
        """The kernel's name and its formula, as comments."""
        return [f"// {line}" for line in (self.kernel.name, *formula(self.kernel.source_file, self.kernel.name))]

    def helper_texts(self) -> list[str]:
        """The helper functions called, in the dialect's order."""
        return [text for name, text in self.dialect.functions.items() if name in self.functions]

    def write_line(self, text: str, line: int = 0) -> None:
        """A line of text, under a comment with the kernel's line where that is another one than before."""
        if line and line != self.line:
            self.line = line
            source = source_line(self.kernel.source_file, line)
            self.lines.append(f"{_INDENT * self.depth}// line {line}{': ' if source else ''}{source}")
        self.lines.append(f"{_INDENT * self.depth}{text}")

    def use(self, function: str) -> str:
        """Notes that a helper is called, and the helpers it calls; gives its name."""
        if function not in self.functions:
            self.functions.add(function)
            try:
                text = self.dialect.functions[function]
            except KeyError:
                raise KernelError(
                    f"kernel {self.kernel.name}: {self.dialect.column} has no helper {function}"
                ) from None
            for word in set(re.findall(r"\w+", text)) & self.dialect.functions.keys():
                self.use(word)
        return function

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

    def _method(self, prefix: str, name: str, line: int) -> Any:
        method = getattr(self, f"{prefix}_{name}", None)
        if method is None:
            raise self.fail(line, f"{self.dialect.column} has no rule for the {prefix} {name}")
        return method

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
