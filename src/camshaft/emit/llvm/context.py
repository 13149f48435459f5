"""Context: the LLVM IR of a kernel while it is written. Typed: writes instructions on values of one dtype and width."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

from camshaft.dtypes import DType, f32, f64, i64
from camshaft.emit.llvm.basic_blocks import FunctionText
from camshaft.emit.llvm.values import Rep, literal, memory_dtype, scalar_type, suffix, vector_type
from camshaft.emit.target import CpuTarget
from camshaft.errors import KernelError
from camshaft.lang import ir, tile_ir

C = TypeVar("C", bound="Context")


@dataclass(frozen=True)
class Rules(Generic[C]):
    """The lowering functions: of values by op, of statements by type."""

    values: Mapping[str, Callable[[C, ir.Value], Rep]]
    statements: Mapping[type[ir.Statement], Callable[[C, Any], None]]


@dataclass
class Context(FunctionText):
    """The text of one kernel so far. `declarations`: of the functions that it calls, by name.

    `reps`: the forms of values. `slots`: the addresses of variables; `tiles`: of the pieces of tiles. `left`: the place of the
    last product's left operand in this basic block, and its pieces. `mask`: the active lanes, None if all are;
    `mask_is_prefix`: the active lanes are the first ones. `fences`: nontemporal stores were emitted.
    """

    name: str
    target: CpuTarget
    rules: Rules[Any]
    varying: frozenset[ir.Value] = frozenset()
    varying_vars: frozenset[ir.Var] = frozenset()
    declarations: dict[str, str] = field(default_factory=dict)
    reps: dict[ir.Value, Rep] = field(default_factory=dict)
    slots: dict[ir.Var, str] = field(default_factory=dict)
    tiles: dict[tile_ir.Tile, list[list[Any]]] = field(default_factory=dict)
    left: tuple[Any, dict[int, str]] | None = None
    mask: str | None = None
    mask_is_prefix: bool = False
    fences: bool = False

    def __post_init__(self) -> None:
        self.lanes = self.target.lanes
        self.mask_type = f"<{self.lanes} x i1>"
        self.index_type = f"<{self.lanes} x i64>"
        self._typed: dict[tuple[str, int], Typed] = {}

    # --- instructions ------------------------------------------------------------------------------------------------

    def line(self, text: str) -> str:
        """Write an instruction and return the name of its result."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def open(self, label: str) -> None:
        """Begin a basic block."""
        self.left = None
        self.lines.append(f"{label}:")

    def slot(self, prefix: str, typ: str, suffix: str = "") -> str:
        """Allocate a stack variable and return its address."""
        name = self.fresh(prefix)
        self.allocas.append(f"{name} = alloca {typ}{suffix}")
        return name

    def call(self, name: str, result: str, *arguments: tuple[str, str], attributes: str = "") -> str:
        """Declare and call a function of LLVM. Arguments are (type, name). Return the name of the result, "" if void."""
        if name not in self.declarations:
            self.declarations[name] = f"declare {result} @{name}({', '.join([t for t, _ in arguments])}){attributes}"
        text = f"call {result} @{name}({', '.join([f'{t} {x}' for t, x in arguments])})"
        if result != "void":
            return self.line(text)
        self.write(text)
        return ""

    def shuffled(self, typ: str, name: str, order: Sequence[int], second: str = "poison") -> str:
        """The elements `order` of a vector, or of two vectors one after the other."""
        elements = ", ".join(f"i32 {i}" for i in order)
        return self.line(f"shufflevector {typ} {name}, {typ} {second}, <{len(order)} x i32> <{elements}>")

    def alignment(self, array: ir.Array, at: Rep) -> int:
        """Return the number of bytes that the address of element `at` is known to be a multiple of."""
        return memory_dtype(array.dtype).nbytes

    def typed(self, dtype: DType, n: int) -> Typed:
        """Return the writer of instructions on values of that dtype and width."""
        found = self._typed.get((dtype.name, n))
        if found is None:
            found = self._typed[dtype.name, n] = Typed(self, dtype, n)
        return found

    def fail(self, line: int, message: str) -> KernelError:
        return KernelError(f"kernel {self.name}, line {line}: {message}")

    # --- scalars and vectors -----------------------------------------------------------------------------------------

    def splat(self, name: str, dtype: DType, n: int) -> str:
        """A scalar repeated n times."""
        if n <= 1:
            return name
        element = scalar_type(dtype)
        if not name.startswith("%"):
            return f"splat ({element} {name})"
        vector = vector_type(dtype, n)
        first = self.line(f"insertelement {vector} poison, {element} {name}, i64 0")
        return self.line(f"shufflevector {vector} {first}, {vector} poison, <{n} x i32> zeroinitializer")

    def as_vector(self, rep: Rep, dtype: DType, n: int) -> str:
        """The name of a value as `n` elements: a scalar is repeated, an affine index becomes a vector."""
        if rep.affine is not None:
            base = self.splat(rep.affine.base.name, i64, self.lanes)
            steps = [rep.affine.coefficient * (i // rep.affine.divisor) for i in range(self.lanes)]
            offsets = "<" + ", ".join(f"i64 {s}" for s in steps) + ">"
            return self.line(f"add nsw {self.index_type} {base}, {offsets}")
        return rep.name if n <= 1 or rep.n else self.splat(rep.name, dtype, n)

    def index_vector(self, rep: Rep) -> str:
        """An index's name as an i64 per lane."""
        return self.as_vector(rep, i64, self.lanes)

    def var_width(self, var: ir.Var) -> int:
        """Number of elements of a variable; 0: a scalar."""
        return var.width or (self.lanes if var in self.varying_vars and self.lanes > 1 else 0)

    def width_of(self, reps: Sequence[Rep]) -> int:
        """The common width of operands: that of the vectors among them."""
        return max([0, *[rep.n if rep.affine is None else self.lanes for rep in reps]])


@dataclass(frozen=True)
class Typed:
    """Writes instructions on values of `n` elements of `dtype` (n 0: scalar)."""

    ctx: Context
    dtype: DType
    n: int

    @property
    def target(self) -> CpuTarget:
        return self.ctx.target

    def line(self, text: str) -> str:
        return self.ctx.line(text)

    @cached_property
    def typ(self) -> str:
        """LLVM's type of the values."""
        return vector_type(self.dtype, self.n)

    @cached_property
    def mask_type(self) -> str:
        return f"<{self.n} x i1>" if self.n > 1 else "i1"

    @cached_property
    def suffix(self) -> str:
        """The type in an intrinsic's name."""
        return suffix(self.dtype, self.n if self.n > 1 else 0)

    @cached_property
    def lacks_fma(self) -> bool:
        """Whether LLVM would call the C library's fmaf."""
        return self.dtype == f32 and not self.target.has_fma

    def type_of(self, dtype: DType) -> str:
        """LLVM's type of another dtype at this width."""
        return vector_type(dtype, self.n)

    def const(self, value: float, dtype: DType | None = None) -> str:
        """A constant operand of this width."""
        chosen = dtype or self.dtype
        text = literal(value, chosen)
        return f"splat ({vector_type(chosen, 0)} {text})" if self.n > 1 else text

    def op(self, opcode: str, *names: str) -> str:
        return self.line(f"{opcode} {self.typ} {', '.join(names)}")

    def bitcast(self, name: str, dtype: DType) -> str:
        """The same bits as another dtype of that size."""
        return self.line(f"bitcast {self.typ} {name} to {self.type_of(dtype)}")

    def bits_as(self, typ: str, *names: str) -> list[str]:
        """The same bits as LLVM's type `typ`."""
        return [self.line(f"bitcast {self.typ} {name} to {typ}") for name in names]

    def call(self, intrinsic: str, *names: str) -> str:
        """Call an overloaded intrinsic whose operands and result all have this type."""
        if intrinsic == "llvm.fma" and self.lacks_fma:
            return self._fma_in_f64(*names)
        return self.ctx.call(f"{intrinsic}.{self.suffix}", self.typ, *[(self.typ, name) for name in names])

    def _fma_in_f64(self, a: str, b: str, c: str) -> str:
        """An f32 multiply-add where LLVM would call fmaf per lane: the product is exact in f64, and so is almost every sum."""
        wide = self.as_dtype(f64)
        a, b, c = (self.line(f"fpext {self.typ} {x} to {wide.typ}") for x in (a, b, c))
        total = wide.op("fadd", wide.op("fmul", a, b), c)
        return self.line(f"fptrunc {wide.typ} {total} to {self.typ}")

    def select(self, condition: str, a: str, b: str) -> str:
        return self.line(f"select {self.mask_type} {condition}, {self.typ} {a}, {self.typ} {b}")

    def as_dtype(self, dtype: DType) -> Typed:
        """The same writer and width for another dtype."""
        return self.ctx.typed(dtype, self.n)

    def as_width(self, n: int) -> Typed:
        return self.ctx.typed(self.dtype, n)
