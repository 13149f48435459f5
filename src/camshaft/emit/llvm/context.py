"""Context: a kernel's LLVM IR while it is written, and what is known of its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from camshaft.dtypes import DType
from camshaft.emit.llvm.typed import Typed
from camshaft.emit.llvm.values import Rep
from camshaft.emit.target import CpuTarget
from camshaft.errors import KernelError
from camshaft.lang import ir

C = TypeVar("C", bound="Context")


@dataclass(frozen=True)
class Rules(Generic[C]):
    """The emitting functions: of values by op, of statements by type."""

    values: Mapping[str, Callable[[C, ir.Value], Rep]]
    statements: Mapping[type[ir.Statement], Callable[[C, Any], None]]


@dataclass
class Context:
    """The text of one kernel so far: `lines` of its body, `allocas` before them, `declarations` by name after it.

    `reps`: the forms of values; `slots`: the addresses of variables; `tiles`: those of a tile's pieces. `mask`: the active lanes,
    None if all are; `mask_is_prefix`: the active lanes are the first ones. `fences`: nontemporal stores were emitted.
    """

    name: str
    target: CpuTarget
    rules: Rules[Any]
    varying: frozenset[ir.Value] = frozenset()
    varying_vars: frozenset[ir.Var] = frozenset()
    lines: list[str] = field(default_factory=list)
    allocas: list[str] = field(default_factory=list)
    declarations: dict[str, str] = field(default_factory=dict)
    reps: dict[ir.Value, Rep] = field(default_factory=dict)
    slots: dict[ir.Var, str] = field(default_factory=dict)
    tiles: dict[ir.Tile, list[list[Any]]] = field(default_factory=dict)
    mask: str | None = None
    mask_is_prefix: bool = False
    fences: bool = False
    count: int = 0

    def __post_init__(self) -> None:
        self.lanes = self.target.lanes

    def fresh(self, prefix: str = "v") -> str:
        """A new name of a value."""
        self.count += 1
        return f"%{prefix}.{self.count}"

    def label(self, prefix: str) -> str:
        """A new name of a basic block, which `open` begins."""
        self.count += 1
        return f"{prefix}.{self.count}"

    def open(self, label: str) -> None:
        self.lines.append(f"{label}:")

    def write(self, text: str) -> None:
        """An instruction without a result."""
        self.lines.append(f"  {text}")

    def line(self, text: str) -> str:
        """Writes an instruction and gives the name of its result."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def slot(self, prefix: str, typ: str, suffix: str = "") -> str:
        """Allocate a stack variable and return its address."""
        name = self.fresh(prefix)
        self.allocas.append(f"{name} = alloca {typ}{suffix}")
        return name

    def declare(self, name: str, text: str) -> None:
        self.declarations[name] = text

    def typed(self, dtype: DType, n: int) -> Typed:
        """Return a writer of instructions on values of that dtype and width."""
        return Typed(self.line, self.declare, dtype, n, self.target)

    def fail(self, line: int, message: str) -> KernelError:
        return KernelError(f"kernel {self.name}, line {line}: {message}")
