"""CFamilyWriter: the text under construction, its names and lines; what a dialect gives."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from camshaft.dtypes import DType
from camshaft.emit.c_family.source import Names, formula, name_of_array, names_of, source_line
from camshaft.emit.c_family.text import Text
from camshaft.emit.c_family.uses import uses_of
from camshaft.errors import KernelError
from camshaft.lang import ir
from camshaft.lang.dialects import Absent
from camshaft.lang.storage import VALUES


class NonNegative:
    """Answers for the values of one kernel."""

    def __init__(self, body: ir.Block) -> None:
        self.starts = {s.index: s.start for s in ir.walk(body) if isinstance(s, (ir.Range, ir.Lanes))}
        self.known: dict[ir.Value, bool] = {}

    def __call__(self, value: ir.Value) -> bool:
        if value not in self.known:
            rule = _RULES.get(value.op)
            self.known[value] = value.dtype.kind == "u" or (rule is not None and rule(self, value))
        return self.known[value]

    def every(self, value: ir.Value) -> bool:
        return all(self(arg) for arg in value.args)

    def some(self, value: ir.Value) -> bool:
        return any(self(arg) for arg in value.args)

    def index(self, value: ir.Value) -> bool:
        return self(self.starts[value])


_RULES: dict[str, Callable[[NonNegative, ir.Value], bool]] = {
    "program": lambda n, v: True,
    "lane": lambda n, v: True,
    "const": lambda n, v: v.dtype.is_integer and v.attr >= 0,
    "index": NonNegative.index,
    "add": NonNegative.every,
    "multiply": NonNegative.every,
    "minimum": NonNegative.every,
    "floor_divide": NonNegative.every,
    "maximum": NonNegative.some,
    "and": NonNegative.some,
    "remainder": lambda n, v: n(v.args[1]),
}


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


class CFamilyWriter(ABC):
    """Holds what is known of each value while text is written."""

    dialect: ClassVar[Dialect]

    def __init__(self, kernel: Source, arrays: Iterable[ir.Array] = ()) -> None:
        """`arrays`: scratch of every kind, which needs a name besides the kernel's own arrays."""
        self.kernel = kernel
        self.names = Names(self.dialect.reserved | frozenset(self.dialect.functions))
        self.wanted = names_of(kernel.body, kernel.source_file)
        self.uses = uses_of(kernel.body)
        self.nonnegative = NonNegative(kernel.body)
        self.entry = self.names.new(kernel.name)
        self.array_names = {a: self.names.new(name_of_array(a, kernel.source_file)) for a in (*kernel.arrays, *arrays)}
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
    @abstractmethod
    def literal(self, value: float | int | bool, dtype: DType) -> Text:
        """A constant."""

    @abstractmethod
    def read(self, array: ir.Array, at: Text, value: ir.Value) -> Text:
        """Element `at` of an array, as a value of `value.dtype` (and width)."""

    @abstractmethod
    def write(self, array: ir.Array, at: Text, value: Text, item: ir.Store) -> None:
        """Writes the statement array[at] = value."""

    @abstractmethod
    def atomic(self, value: ir.Value, at: Text, operands: Sequence[Text]) -> Text:
        """The atomic of lang/atomics.py that `value` is, on element `at`: an expression that is the old element."""

    def type_name(self, dtype: DType) -> str:
        """The type of a value."""
        cell = VALUES[self.dialect.column][dtype.name]
        if isinstance(cell, Absent):
            raise KernelError(f"kernel {self.kernel.name}: {cell.reason}")
        return cell

    # --- text --------------------------------------------------------------------------------------------------------
    def fail(self, line: int, message: str) -> KernelError:
        return KernelError(f"kernel {self.kernel.name}, line {line}: {message}")

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

    def _method(self, prefix: str, name: str, line: int) -> Any:
        method = getattr(self, f"{prefix}_{name}", None)
        if method is None:
            raise self.fail(line, f"{self.dialect.column} has no rule for the {prefix} {name}")
        return method
