"""The body of one program in C: statements, and which values get a name. Values are in c_values.py. Used by emit/c.py."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from camshaft.emit.c_family_source import Names, names_of, source_line
from camshaft.emit.c_family_text import ATOM, Text
from camshaft.emit.c_family_uses import uses_of
from camshaft.emit.c_library import Form, memory_dtype, scalar_type
from camshaft.emit.c_values import ValueWriter, form_of
from camshaft.lang import ir

# A longer expression gets a name, so that a line stays readable.
LONGEST_INLINE = 72
_PLAIN = frozenset({"const", "program", "scalar", "index", "lane", "lane_count"})
RESERVED = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while args first last program
    linear rest memcpy asm typeof linux unix""".split()
)


class BodyWriter(ValueWriter):
    """Writes statements as lines of C."""

    def __init__(self, kernel: ir.KernelIR) -> None:
        super().__init__(kernel)
        self.lines: list[str] = []
        self.depth, self.at_line = 1, 0
        self.uses = uses_of(kernel.body)
        self.wanted = names_of(kernel.body, kernel.source_file)
        self.names = Names(RESERVED)
        self.inline = _inlined(kernel.body, self.uses.count)
        self.names.taken.update(f"program{i}" for i in range(len(kernel.grid)))
        self.scalar_names = [self.names.new(name) for name in kernel.scalars]
        for array in (*kernel.arrays, *kernel.scratch):
            self.array_names[array] = self.names.new(array.name)

    def write(self, text: str) -> None:
        self.lines.append(f"{'    ' * self.depth}{text}")

    def emit(self) -> None:
        """The whole body."""
        for array in self.kernel.scratch:
            element = scalar_type(memory_dtype(array.dtype))
            self.write(f"{element} {self.array_names[array]}[{prod(array.shape)}] __attribute__((aligned(64)));")
        self.block(self.kernel.body)

    def block(self, block: ir.Block) -> None:
        for item in block.statements:
            if isinstance(item, ir.Value):
                if self.uses.alive(item):
                    self.texts[item] = self.named(item)
            else:
                self.comment(item.line)
                _STATEMENTS[type(item)](self, item)

    def comment(self, line: int) -> None:
        """The kernel's own line, where it is another than that of the text before."""
        if line and line != self.at_line:
            self.at_line = line
            self.write(f"// {line}: {source_line(self.kernel.source_file, line)}")

    def named(self, value: ir.Value) -> Text:
        """The value's expression, or the name that it is now kept under."""
        text = self.value(value)
        if value.op in _PLAIN or (text.level == ATOM and text.code.isidentifier() and value.op != "var_get"):
            return text
        if value in self.inline and len(text.code) <= LONGEST_INLINE:
            return text
        self.comment(value.line)
        name = self.names.new(self.wanted.get(value, "v"))
        self.write(f"const {self.lib.type_of(form_of(value))} {name} = {text.code};")
        return Text(name)

    # --- variables and memory --------------------------------------------------------------------------------------
    def var_new(self, item: ir.VarNew) -> None:
        var = item.var
        form, name = Form(var.dtype, var.width), self.names.new(self.wanted.get(var, "var"))
        self.var_names[var] = name
        self.write(f"{self.lib.type_of(form)} {name} = {self.spread(var.init, form).code};")
        if not any(isinstance(v, ir.Value) and v.op == "var_get" and v.attr is var for v in self.uses.count):
            self.write(f"(void){name};")

    def var_set(self, item: ir.VarSet) -> None:
        form = Form(item.var.dtype, item.var.width)
        self.write(f"{self.var_names[item.var]} = {self.spread(item.value, form).code};")

    def store(self, item: ir.Store) -> None:
        array, form = item.array, form_of(item.value)
        text = self.to_memory(self.texts[item.value], form, array.dtype)
        stored = form.of(memory_dtype(array.dtype))
        if stored.is_vector:
            at = self.address(array, item.indices).code
            name = self.lib.need("store" if item.count is None else "store_first", stored)
            count = "" if item.count is None else f", {self.texts[item.count].code}"
            self.write(f"{name}({at}, {text.code}{count});")
            return
        guard = "" if item.count is None else f"if {self.some(item.count).code} "
        self.write(f"{guard}{self.array_names[array]}[{self.place(array, item.indices).code}] = {text.code};")

    def prefetch(self, item: ir.Prefetch) -> None:
        self.write(f"__builtin_prefetch({self.address(item.array, item.indices).code}, 0, 3);")

    # --- flow ------------------------------------------------------------------------------------------------------
    def inside(self, head: str, body: ir.Block) -> None:
        self.write(f"{head} {{")
        self.depth += 1
        self.block(body)
        self.depth -= 1
        self.write("}")

    def loop(self, item: ir.Lanes | ir.Range) -> None:
        """A lanes loop is a loop: there is one lane."""
        name = self.names.new(self.wanted.get(item.index, "i"))
        self.texts[item.index] = Text(name)
        start, stop = self.texts[item.start].code, self.bound(item.stop)
        step = f"{name} += {item.step}" if isinstance(item, ir.Range) and item.step != 1 else f"{name}++"
        self.inside(f"for (int64_t {name} = {start}; {name} < {stop}; {step})", item.body)

    def bound(self, stop: ir.Value) -> str:
        """A loop's bound, computed once: the loop may set what it was computed from."""
        code = self.texts[stop].code
        if stop not in self.inline or stop.op in _PLAIN:
            return code
        name = self.names.new("stop")
        self.write(f"const int64_t {name} = {code};")
        return name

    def when(self, item: ir.When) -> None:
        self.inside(f"if ({self.texts[item.condition].code})", item.body)

    def barrier(self, item: ir.Barrier) -> None:
        """There is one lane: nobody to wait for."""


_STATEMENTS: dict[type, Callable[[BodyWriter, Any], None]] = {
    ir.VarNew: BodyWriter.var_new,
    ir.VarSet: BodyWriter.var_set,
    ir.Store: BodyWriter.store,
    ir.Lanes: BodyWriter.loop,
    ir.Range: BodyWriter.loop,
    ir.When: BodyWriter.when,
    ir.Barrier: BodyWriter.barrier,
    ir.Prefetch: BodyWriter.prefetch,
}


def _inlined(block: ir.Block, count: dict[ir.Value, int]) -> set[ir.Value]:
    """Values used once, in their own block, that mean the same where they are used: nothing between changes what they read."""
    found: set[ir.Value] = set()
    user: dict[ir.Value, int] = {}
    place: dict[ir.Value, int] = {}
    for index, item in enumerate(block.statements):
        inner = getattr(item, "body", None)
        if inner is not None:
            found |= _inlined(inner, count)
        if not isinstance(item, ir.Value) or item in count:
            user.update(dict.fromkeys(ir.operands(item), index))
    for index in range(len(block.statements) - 1, -1, -1):
        item = block.statements[index]
        if not isinstance(item, ir.Value):
            continue
        at = user.get(item, -1)
        if count.get(item) == 1 and at > index:
            by = block.statements[at]
            final = place[by] if isinstance(by, ir.Value) and by in found else at
            if _holds(item, block.statements[index + 1 : final]):
                found.add(item)
                place[item] = final
    return found


def _holds(value: ir.Value, between: list[ir.Value | ir.Statement]) -> bool:
    """Whether what the value reads stays as it is."""
    if value.op == "var_get":
        return not any(
            hasattr(item, "body") or (isinstance(item, ir.VarSet) and item.var is value.attr) for item in between
        )
    if value.op == "load":
        return not any(hasattr(item, "body") or isinstance(item, (ir.Store, ir.Barrier)) for item in between)
    return True
