"""Context: the text of a kernel in a C-family dialect while it is written. Dialect: a dialect's syntax and lowering functions.

Two forms are written: SIMT form (lang/simt/form.py: every value is one thread's scalar) for WGSL and Metal, and plain Kernel IR
at one lane, with explicit vectors, for C. A value becomes a named local if the source names it, if it has several uses, or if its
use is in another block; else it is inlined into the expression that uses it. A read of memory or variables never moves past a
statement that may change them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from camshaft.dtypes import DType
from camshaft.emit.c_family import source
from camshaft.emit.c_family.analysis import NonNegative, uses_of
from camshaft.emit.c_family.text import Text
from camshaft.errors import KernelError
from camshaft.lang import ir
from camshaft.lang.dialects import Absent
from camshaft.lang.targets import VALUES

_INDENT = "    "


C = TypeVar("C", bound="Context")


def type_name(ctx: Context, dtype: DType) -> str:
    """Return the type of a value, by the dialect's column of lang/targets.py."""
    cell = VALUES[ctx.dialect.column][dtype.name]
    if isinstance(cell, Absent):
        raise KernelError(f"kernel {ctx.kernel.name}: {cell.reason}")
    return cell


@dataclass(frozen=True, kw_only=True)
class Dialect(Generic[C]):
    """The syntax and the lowering functions of a dialect.

    Patterns take {name} {type} {value}; `loop` takes {name} {type} {start} {stop} {step}.

    - `functions`: helper name -> its text, in the order of emission; a helper may call others.
    - `type_name(dtype)`, `value_type(value)`, `literal(number, dtype)`: the texts of a type, of a value's type, of a constant.
    - `read(array, at, value)`: element `at` of an array, in `value`'s dtype; `write(array, at, value, item)`: the
      statement array[at] = value; `atomic(value, at, operands)`: an expression that changes element `at` and yields the old one.
    - `lowered(op, value, operands)`: the cell of an instruction with its operands filled in; `cast(value, operand)`;
      `helper(name, value)`: the function of an expansion.
    - `bound(item, value)`, `condition(item)`: the start or the stop of a loop, the condition of a branch.
    - `values` and `statements`: the lowering functions by op and by statement type.
    """

    column: str
    constant: str
    variable: str
    loop: str
    barrier: tuple[str, ...]
    reserved: frozenset[str]
    functions: Mapping[str, str] = field(default_factory=dict)
    type_name: Callable[[C, DType], str] = type_name
    value_type: Callable[[C, ir.Value], str] = lambda ctx, value: str(ctx.type_name(value.dtype))
    literal: Callable[[C, float | int | bool, DType], Text]
    read: Callable[[C, ir.Array, Text, ir.Value], Text]
    write: Callable[[C, ir.Array, Text, Text, ir.Store], None]
    atomic: Callable[[C, ir.Value, Text, Sequence[Text]], Text]
    lowered: Callable[[C, str, ir.Value, Sequence[Text]], Text]
    cast: Callable[[C, ir.Value, Text], Text]
    helper: Callable[[C, str, ir.Value], str]
    bound: Callable[[C, ir.Range | ir.Lanes, ir.Value], Text]
    condition: Callable[[C, ir.When], Text]
    values: Mapping[str, Callable[[C, ir.Value], Text]]
    statements: Mapping[type[ir.Statement], Callable[[C, Any], None]]


class Source(Protocol):
    """The common interface of KernelIR and SimtKernel."""

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


@dataclass
class Context:
    """The state of one kernel's text while it is written.

    `arrays`: scratch of every kind, which needs names in addition to the kernel's arrays. `lines`: the body. `functions`: the
    helpers that it calls. `pending`: the values not yet emitted, with what they read. `gathered`: what the current expression
    reads.
    """

    kernel: Source
    dialect: Dialect[Any]
    arrays: InitVar[Iterable[ir.Array]] = ()
    var_names: dict[ir.Var, str] = field(default_factory=dict)
    texts: dict[ir.Value, Text] = field(default_factory=dict)
    sums: dict[ir.Value, tuple[Text, Text]] = field(default_factory=dict)
    pending: dict[ir.Value, frozenset[ir.Var | ir.Array]] = field(default_factory=dict)
    gathered: frozenset[ir.Var | ir.Array] = frozenset()
    functions: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    line: int = 0

    def __post_init__(self, arrays: Iterable[ir.Array]) -> None:
        kernel, dialect = self.kernel, self.dialect
        self.names = source.Names(dialect.reserved | frozenset(dialect.functions))
        self.source_names = source.names_of(kernel.body, kernel.source_file)
        self.uses = uses_of(kernel.body)
        self.nonnegative = NonNegative(kernel.body)
        self.entry = self.names.new(kernel.name)
        named = {a: source.name_of_array(a, kernel.source_file) for a in (*kernel.arrays, *arrays)}
        self.array_names = {a: self.names.new(name) for a, name in named.items()}
        self.scalar_names = [self.names.new(name) for name in kernel.scalars]
        self.program_names = [self.names.new(self._program_name(axis)) for axis in range(len(kernel.grid))]
        self.here = kernel.body

    def _program_name(self, axis: int) -> str:
        named = [v for v in self.kernel.body.statements if isinstance(v, ir.Value) and v.op == "program"]
        return next(
            (self.source_names[v] for v in named if v.attr == axis and v in self.source_names), f"program{axis}"
        )

    def type_name(self, dtype: DType) -> str:
        """Return the type of a value of that dtype."""
        return self.dialect.type_name(self, dtype)

    def literal(self, value: float | int | bool, dtype: DType) -> Text:
        """Return the text of a constant."""
        return self.dialect.literal(self, value, dtype)

    def grid_sizes(self) -> list[str]:
        """Return the number of programs along each axis."""
        return [self._grid_size(dim) for dim in self.kernel.grid]

    def _grid_size(self, dim: ir.GridDim) -> str:
        if dim.scalar is None:
            return str(dim.size)
        name = self.scalar_names[self.kernel.scalars.index(dim.scalar)]
        return name if dim.divisor == 1 else f"(({name} + {dim.divisor - 1}) / {dim.divisor})"

    def fail(self, line: int, message: str) -> KernelError:
        return KernelError(f"kernel {self.kernel.name}, line {line}: {message}")

    def heading(self) -> list[str]:
        """Return the kernel's name and its formula, as comments."""
        return [f"// {line}" for line in (self.kernel.name, *source.formula(self.kernel.source_file, self.kernel.name))]

    def helper_texts(self) -> list[str]:
        """Return the texts of the helper functions called, in the dialect's order."""
        return [text for name, text in self.dialect.functions.items() if name in self.functions]

    def write_line(self, text: str, line: int = 0) -> None:
        """Append a line of text, after a comment with the kernel's source line if that changed."""
        if line and line != self.line:
            self.line = line
            text_of_line = source.source_line(self.kernel.source_file, line)
            self.lines.append(f"{_INDENT * self.depth}// line {line}{': ' if text_of_line else ''}{text_of_line}")
        self.lines.append(f"{_INDENT * self.depth}{text}")

    def use(self, function: str) -> str:
        """Record the use of a helper and of the helpers it calls; return its name."""
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
